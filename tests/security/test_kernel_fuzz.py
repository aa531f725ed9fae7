"""Damaged kernel files: whatever a byte becomes and wherever a file ends, it is read or refused, never more.

Nothing may be allocated beyond a small multiple of the file: tracemalloc judges.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import msformat
from msformat.filesystem import open_filesystem
from msformat.foreign.kernel_dump.binary import read_records
from msformat.foreign.kernel_dump.pieces import block_piece
from msformat.foreign.kernel_dump.store import KernelStore
from tests import kernel_files as kf
from tests.conftest import GOLDEN_DATA

# One of each form, small enough for all their bytes.
FORMS = {
    "v2": "good/Many.dtypes.4.10.1735011096426352",
    "nz": "good/Cast.Cast_bf16.3.10.1735011096426351",
    "v1": "odd/V1.inline.16.1.1735011096426349",
    "nano": "nano/ConcatV2D.concat.0.0.550288649",
    "ffts": "ffts/Relu.sgt_graph_0_Relu.3.5.1735011096426349.4.7.0.0",
    "twice": "odd/Twice.appended.15.1.1735011096426349",
    "atb": "atb/0_39943/0/0_WordEmbedding/0_GatherOperation/before/intensor0.bin",
}
_ROOM = 2 << 20


def _content(form: str) -> tuple[str, bytes]:
    with zipfile.ZipFile(GOLDEN_DATA / "kernel" / "kernel_dump.zip") as archive:
        return FORMS[form].rpartition("/")[2], archive.read(f"kernel_dump/{FORMS[form]}")


def _read_all(path: Path) -> bool:
    """Read a file as the reader does; False when it is refused."""
    fs = open_filesystem(str(path.parent))
    try:
        records = read_records(fs, path.name)
    except msformat.FormatError:
        return False
    for record in records:
        for block in record.blocks:
            piece = block_piece(fs, path.name, block, device=False)
            if piece.open is not None:
                tensor = piece.open()
                if tensor.nbytes <= _ROOM:
                    tensor.bits()
    return True


def _flips(content: bytes) -> Iterator[bytes]:
    for at in range(min(len(content), 600)):
        for flipped in (content[at] ^ 0xFF, content[at] ^ 1 << at % 8, 0x80):
            yield content[:at] + bytes([flipped]) + content[at + 1 :]


@pytest.mark.parametrize("form", FORMS)
def test_every_byte_changed(tmp_path: Path, form: str) -> None:
    name, content = _content(form)
    path = tmp_path / name
    read = refused = 0
    tracemalloc.start()
    try:
        for damaged in _flips(content):
            path.write_bytes(damaged)
            if _read_all(path):
                read += 1
            else:
                refused += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read
    assert refused
    assert peak < _ROOM


@pytest.mark.parametrize("form", FORMS)
def test_every_length(tmp_path: Path, form: str) -> None:
    """A cut file is refused. Of two records the first stays; nothing tells version 1 cut between two tensors."""
    name, content = _content(form)
    path = tmp_path / name
    whole = 0
    for length in range(len(content)):
        path.write_bytes(content[:length])
        whole += _read_all(path)
    assert whole == {"twice": len(content) // 2, "v1": 3}.get(form, 0)


def test_noise(tmp_path: Path) -> None:
    """Random headers of a length that the file has."""
    rng = random.Random(5)
    path = tmp_path / kf.NAME
    for _ in range(2000):
        head = rng.randbytes(rng.randrange(1, 200))
        path.write_bytes(struct.pack("<Q", len(head)) + head + rng.randbytes(rng.randrange(64)))
        _read_all(path)


@pytest.mark.parametrize(
    "head",
    [
        kf.text(4, kf.number(1, 1) + kf.shape_message(3, [1 << 62] * 60)),
        kf.text(4, kf.number(1, 1) + kf.number(5, (1 << 64) - 1)),
        kf.text(4, kf.number(1, 28) + kf.shape_message(3, [(1 << 64) - 1]) + kf.number(5, 3)),
        kf.text(4, kf.number(1, 1) + kf.shape_message(3, [0, (1 << 64) - 1])),
        kf.text(4, kf.number(1, 1) + kf.shape_message(3, [0, 1 << 62, 1 << 62])),
        kf.text(4, kf.number(1, 1) + kf.shape_message(3, [1 << 62, 0])),
        kf.text(4, kf.number(1, 1) + kf.number(2, 29) + kf.shape_message(3, [0] * 4) + kf.shape_message(6, [0, 0])),
        kf.text(4, kf.number(1, 1) + kf.number(2, 3) + kf.shape_message(3, [0] * 5) + kf.shape_message(6, [0] * 4)),
        kf.text(4, kf.number(1, 1) + kf.number(2, 4) + kf.shape_message(3, [0] * 4) + kf.shape_message(6, [0] * 4)),
        b"".join(kf.text(4, b"") for _ in range(2000)),
    ],
)
def test_shapes_that_no_tensor_has(tmp_path: Path, head: bytes) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (place / kf.NAME).write_bytes(struct.pack("<Q", len(head)) + head + bytes(3))
    store = KernelStore(str(place))
    try:
        for key in store.keys():  # noqa: SIM118 (a Store is no mapping)
            store.get(key).bits()
    except msformat.MsformatError:
        pass
    assert msformat.convert_dump(place, tmp_path / "out").exit_code in (0, 1, 2)


def test_a_header_of_nothing_but_tensors_is_refused(tmp_path: Path) -> None:
    """Two bytes a tensor would become a gigabyte of objects."""
    head = kf.text(4, b"") * 200_000
    (tmp_path / kf.NAME).write_bytes(struct.pack("<Q", len(head)) + head)
    with pytest.raises(msformat.FormatError, match="more than 100000 tensors"):
        read_records(open_filesystem(str(tmp_path)), kf.NAME)


def test_a_header_as_long_as_a_sparse_file_is_refused_at_once(tmp_path: Path) -> None:
    with (tmp_path / kf.NAME).open("wb") as stream:
        stream.write(struct.pack("<Q", (1 << 31) - 1))
        stream.truncate(3 << 30)
    with pytest.raises(msformat.FormatError, match="field number 0"):
        read_records(open_filesystem(str(tmp_path)), kf.NAME)


def test_zeros_behind_a_dump_are_left_over_once(tmp_path: Path) -> None:
    content, first, _ = kf.small_dump()
    with (tmp_path / kf.NAME).open("wb") as stream:
        stream.write(content)
        stream.truncate(3 << 30)
    (unit,) = msformat.open(tmp_path)
    (problem,) = unit.problems
    assert "left-over" in problem
    assert unit[kf.NAME].inputs[0].numpy().tolist() == first.tolist()


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_is_no_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    import os

    place = tmp_path / "in"
    kf.write_dump(place, [kf.Part(bytes(4), shape=(1,))])
    stranger = place / f"Mul.x.1.2.{kf.STAMP}"
    if kind == "fifo":
        os.mkfifo(stranger)
    else:
        (tmp_path / "secret").write_bytes(kf.small_dump()[0])
        stranger.symlink_to(tmp_path / "secret")
    dump = msformat.open(place)
    assert list(next(iter(dump))) == [kf.NAME]
    assert any(stranger.name in problem for problem in dump.problems)
