"""``.pt`` files that are no plain tensor: each is told apart by name. Bits are judged in ``tests/peer``."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError, FormatError
from msformat.filesystem import LocalFileSystem
from msformat.stores.files import FilesStore
from msformat.stores.ptfile import pt_parts
from msformat.stores.ptpickle import TensorRecord, read_tensor_record
from msformat.stores.zipmembers import read_members
from tests.contract.store_contract import random_bits
from tests.judges import judge

torch = judge("torch")


def open_one(tmp_path: Path, content: bytes) -> Any:
    directory = tmp_path / "dump_tensor_data"
    directory.mkdir(exist_ok=True)
    (directory / "x.pt").write_bytes(content)
    return FilesStore(str(tmp_path)).get("x.pt")


def saved(value: Any, **options: Any) -> bytes:
    with io.BytesIO() as stream:
        torch.save(value, stream, **options)
        return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"weight": torch.ones(2)}, "a dict"),
        ([torch.ones(2)], "a list"),
        ((torch.ones(2), torch.ones(2)), "a tuple"),
        (3, "a int"),
        (2.5, "a float"),
        ("text", "a str"),
        (None, "None"),
        (np.ones(3), "a numpy array"),
        (np.float64(3), "a numpy scalar"),
        (torch.eye(3).to_sparse(), "a sparse tensor"),
        (torch.empty(3, device="meta"), "a meta tensor"),
        (torch.Size([1, 2]), "a tuple"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_other_things_are_named(tmp_path: Path, value: Any, kind: str) -> None:
    with pytest.raises(FormatError, match=rf"x\.pt: holds {kind}"):
        open_one(tmp_path, saved(value))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantised_tensors_are_named(tmp_path: Path) -> None:
    content = saved(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    with pytest.raises(FormatError, match="quantised"):
        open_one(tmp_path, content)


def test_the_legacy_layout(tmp_path: Path) -> None:
    content = saved(torch.ones(3), _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match=r"legacy layout.*save it again"):
        open_one(tmp_path, content)


def test_the_tar_layout(tmp_path: Path) -> None:
    with io.BytesIO() as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name in ("storages", "tensors", "pickle"):
                archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        content = stream.getvalue()
    with pytest.raises(FormatError, match=r"tar layout.*save it again"):
        open_one(tmp_path, content)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript(tmp_path: Path) -> None:
    with io.BytesIO() as stream:
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), stream)
        content = stream.getvalue()
    with pytest.raises(FormatError, match="TorchScript"):
        open_one(tmp_path, content)


@pytest.mark.parametrize("content", [b"", b"hello, this is text", b"PK\x03\x04", b"\x00" * 600])
def test_no_pt_at_all(tmp_path: Path, content: bytes) -> None:
    with pytest.raises((FormatError, CorruptTensorError), match=r"x\.pt"):
        open_one(tmp_path, content)


def test_files_cut_short(tmp_path: Path) -> None:
    whole = saved(torch.arange(10.0))
    for length in range(4, len(whole), 7):
        with pytest.raises((FormatError, CorruptTensorError)):
            open_one(tmp_path, whole[:length])


def test_the_description_is_inert() -> None:
    bits = np.zeros((2, 3), np.float32)
    content = b"".join(pt_parts(bits, dtype_named("float32")))
    member = read_members(content, "x")["archive/data.pkl"]
    record = read_tensor_record(content[member.offset : member.offset + member.size], "x")
    assert record == TensorRecord("0", dtype_named("float32"), 0, (2, 3), (3, 1))


def test_a_slice_reads_only_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    stored = open_one(tmp_path, b"".join(pt_parts(array, dtype_named("float32"))))
    read: list[int] = []
    plain_open = LocalFileSystem.open

    def counting(self: LocalFileSystem, path: str) -> Any:
        stream: Any = plain_open(self, path)

        class Counting:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                stream.close()

            def __getattr__(self, name: str) -> Any:
                return getattr(stream, name)

            def readinto(self, buffer: memoryview) -> int:
                read.append(stream.readinto(buffer))
                return read[-1]

        return Counting()

    monkeypatch.setattr(LocalFileSystem, "open", counting)
    assert stored[512, :4].tolist() == array[512, :4].tolist()
    assert sum(read) == 16
    read.clear()
    # A column is mapped: pages are touched, nothing is read.
    assert stored[::256, 7].tolist() == array[::256, 7].tolist()
    assert sum(read) == 0


def test_a_mapped_read_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """100,000 lazy tensors must not need 100,000 descriptors."""
    array = random_bits(dtype_named("int64"), (300, 300))
    content = b"".join(pt_parts(array, dtype_named("int64")))
    open_one(tmp_path, content)
    store = FilesStore(str(tmp_path))
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("no /proc")
    before = len(list(descriptors.iterdir()))
    held = [store.get("x.pt") for _ in range(50)]
    arrays = [tensor[:, 3] for tensor in held]
    assert len(list(descriptors.iterdir())) == before
    assert all(np.array_equal(found, array[:, 3]) for found in arrays)
