"""``.pt`` files made to run code, exhaust memory or read beside their storage. Each is refused before it can."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError, FormatError, MsformatError, UnsafeInputError
from msformat.stores.files import FilesStore
from msformat.stores.ptfile import pt_parts
from msformat.stores.ptpickle import read_tensor_record
from msformat.stores.zipmembers import zip_parts
from tests.judges import judge

torch = judge("torch")

FLOAT32 = dtype_named("float32")


@pytest.fixture
def open_pickle(tmp_path: Path) -> Callable[..., Any]:
    """Open a ``.pt`` of that pickle and storage; nothing may appear beside it."""
    unit = tmp_path / "unit"
    data = unit / "dump_tensor_data"
    data.mkdir(parents=True)

    def open_it(pickled: bytes, storage: bytes = bytes(64)) -> Any:
        members = [("archive/data.pkl", [pickled]), ("archive/byteorder", [b"little"]), ("archive/data/0", [storage])]
        (data / "x.pt").write_bytes(b"".join(zip_parts(members)))
        return FilesStore(str(unit)).get("x.pt")

    return open_it


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Whatever is attempted within must get by with half a gigabyte more than is in use."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def tensor_pickle(
    *, offset: Any = 0, shape: Any = (4,), stride: Any = (1,), storage: str = "FloatStorage", key: str = "0"
) -> bytes:
    """A pickle as torch writes it, with numbers that torch would not write."""
    return b"".join((
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((",
        _plain("storage"), f"ctorch\n{storage}\n".encode(), _plain(key), _plain("cpu"), _plain(16), b"tQ",
        _plain(offset), _plain(shape), _plain(stride), b"\x89ccollections\nOrderedDict\n)RtR.",
    ))  # fmt: skip


def _plain(value: Any) -> bytes:
    # The body of a real pickle, without its header and end.
    return pickle.dumps(value, protocol=2)[2:-1]


class _Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_a_plain_one_is_read(open_pickle: Callable[..., Any]) -> None:
    assert open_pickle(tensor_pickle(), np.arange(4, dtype=np.float32).tobytes()).numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("function", [os.system, eval, exec, os.unlink, open, __import__, getattr])
def test_reduce_payloads(function: Any, protocol: int, open_pickle: Callable[..., Any], tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    payload = pickle.dumps(_Runs(function, f"touch {mark}"), protocol=protocol)
    with pytest.raises(UnsafeInputError, match=r"x\.pt"):
        open_pickle(payload)
    assert not mark.exists()


def test_the_refused_global_is_named(open_pickle: Callable[..., Any]) -> None:
    with pytest.raises(UnsafeInputError, match=r"posix\.system"):
        open_pickle(b"\x80\x02cposix\nsystem\n" + _plain(("id",)) + b"R.")


@pytest.mark.parametrize(
    "name",
    [
        "torch._utils _rebuild_tensor_v2.__globals__",
        "torch load",
        "torch hub.load",
        "torch serialization.load",
        "torch.storage _load_from_bytes",
        "torch.jit load",
        "collections OrderedDict.__init__",
        "builtins eval",
        "__builtin__ eval",
        "torch FloatStorage.__class__",
    ],
)
def test_names_near_the_allowed_ones(name: str, open_pickle: Callable[..., Any]) -> None:
    module, _, attribute = name.partition(" ")
    with pytest.raises(UnsafeInputError, match="refused"):
        open_pickle(f"\x80\x02c{module}\n{attribute}\n".encode("latin-1") + _plain(("x",)) + b"R.")


def test_a_name_that_is_only_dropped_is_refused_too(open_pickle: Callable[..., Any]) -> None:
    with pytest.raises(UnsafeInputError, match=r"names 'posix\.system'"):
        open_pickle(b"\x80\x02cposix\nsystem\n0" + tensor_pickle()[2:])


def test_an_allowed_name_is_never_called(open_pickle: Callable[..., Any]) -> None:
    for body in (
        b"ctorch\nFloatStorage\n" + _plain((1 << 40,)) + b"R.",
        b"ccollections\nOrderedDict\n" + _plain(([("a", 1)],)) + b"R.",
        b"ctorch\nfloat32\n)R.",
        b"ctorch._utils\n_rebuild_parameter\n" + _plain((1, 2)) + b"R.",
        b"ctorch\nTensor\n)R.",
        _plain("text") + b")R.",
    ):
        with pytest.raises(FormatError):
            open_pickle(b"\x80\x02" + body)


@pytest.mark.parametrize("opcode", [b"b", b"o", b"i", b"\x81", b"\x82", b"P", b"\x93", b"\x92", b"B", b"V", b"I", b"2"])
def test_opcodes_no_tensor_needs(opcode: bytes, open_pickle: Callable[..., Any]) -> None:
    with pytest.raises(UnsafeInputError, match="opcode"):
        open_pickle(b"\x80\x02}" + opcode + b"os\nsystem\n.")


@pytest.mark.usefixtures("little_memory")
class TestBombs:
    def test_memo_bomb(self, open_pickle: Callable[..., Any]) -> None:
        """2**200 elements if anything expanded, hashed or printed it."""
        body = b")q\x00" + b"".join(b"h%c" % i + b"h%c" % i + b"\x86q" + bytes([i + 1]) for i in range(200))
        for end in (b".", b"}h\xc8Ns.", b"(h\xc8h\xc8u.", b"ctorch._utils\n_rebuild_tensor_v2\nh\xc8R.", b"h\xc8Q."):
            with pytest.raises(FormatError):
                open_pickle(b"\x80\x02" + body + end)

    def test_deep_nesting(self, open_pickle: Callable[..., Any]) -> None:
        for nest in (b"\x85" * 900_000, b"(" * 900_000, b"(t" * 400_000):
            with pytest.raises(FormatError):
                open_pickle(b"\x80\x02)" + nest + b".")

    def test_a_huge_memo_index_allocates_nothing(self, open_pickle: Callable[..., Any]) -> None:
        with pytest.raises(FormatError, match="holds a tuple"):
            open_pickle(b"\x80\x02)r\xff\xff\xff\xff.")

    def test_declared_lengths(self, open_pickle: Callable[..., Any]) -> None:
        for body in (b"X\xff\xff\xff\xffabc.", b"\x8a\xff" + bytes(300) + b".", b"c" + b"x" * 100_000):
            with pytest.raises(FormatError):
                open_pickle(b"\x80\x02" + body)

    def test_a_pickle_that_is_no_tensor_by_size(self, open_pickle: Callable[..., Any]) -> None:
        with pytest.raises(FormatError, match="no single tensor"):
            open_pickle(b"\x80\x02" + b"N0" * (1 << 20))

    @pytest.mark.parametrize(
        ("shape", "stride"),
        [
            ((5,), (1,)),
            ((1 << 40,), (1,)),
            ((1 << 62, 1 << 62), (1, 1)),
            ((2, 2), (1 << 62, 1)),
            ((1 << 31, 1 << 31), (0, 1)),
            ((2,), (4,)),
        ],
    )
    def test_shapes_the_storage_cannot_back(self, shape: Any, stride: Any, open_pickle: Callable[..., Any]) -> None:
        with pytest.raises(CorruptTensorError, match="needs"):
            open_pickle(tensor_pickle(shape=shape, stride=stride), bytes(16))

    @pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62,), (1 << 30, 1 << 30)])
    def test_views_that_repeat_a_storage_without_end(self, shape: Any, open_pickle: Callable[..., Any]) -> None:
        stored = open_pickle(tensor_pickle(shape=shape, stride=(0,) * len(shape)), bytes(16))
        with pytest.raises(UnsafeInputError, match="slice"):
            stored.bits()
        assert stored[(0,) * len(shape)] == 0

    def test_an_empty_view_of_absurd_shape(self, open_pickle: Callable[..., Any]) -> None:
        stored = open_pickle(tensor_pickle(shape=(0, 1 << 62, 1 << 62), stride=(1, 1, 1)), b"")
        with pytest.raises(MsformatError):
            stored.bits()


@pytest.mark.parametrize(
    "numbers",
    [
        {"offset": -1},
        {"stride": (-1,)},
        {"shape": (-4,)},
        {"offset": 1 << 63},
        {"offset": 1.0},
        {"offset": True},
        {"shape": (4.0,)},
        {"shape": [4]},
        {"shape": (4, 4)},
        {"shape": (1,) * 65, "stride": (1,) * 65},
        {"offset": None},
    ],
)
def test_numbers_that_are_no_geometry(numbers: dict[str, Any], open_pickle: Callable[..., Any]) -> None:
    with pytest.raises(FormatError):
        open_pickle(tensor_pickle(**numbers))


def test_an_offset_behind_the_storage(open_pickle: Callable[..., Any]) -> None:
    """Bytes of the next member lie there; they must not be read."""
    with pytest.raises(CorruptTensorError, match="needs"):
        open_pickle(tensor_pickle(offset=13), bytes(64))


@pytest.mark.parametrize("key", ["1", "../../data/0", "", "0/", "/0", "..", "0\0"])
def test_storages_that_are_not_there(key: str, open_pickle: Callable[..., Any]) -> None:
    with pytest.raises(CorruptTensorError, match="missing"):
        open_pickle(tensor_pickle(key=key))


# --- the zip around it -----------------------------------------------------------------------------------------------


def open_bytes(tmp_path: Path, content: bytes) -> Any:
    data = tmp_path / "dump_tensor_data"
    data.mkdir(exist_ok=True)
    (data / "x.pt").write_bytes(content)
    return FilesStore(str(tmp_path)).get("x.pt")


def whole() -> bytearray:
    return bytearray(b"".join(pt_parts(np.arange(100, dtype=np.float32), FLOAT32)))


def directory(content: bytes | bytearray) -> dict[str, int]:
    """Where the directory entry of each member lies."""
    found, at = {}, content.find(b"PK\x01\x02")
    while at >= 0:
        length = struct.unpack_from("<H", content, at + 28)[0]
        found[bytes(content[at + 46 : at + 46 + length]).decode()] = at
        at = content.find(b"PK\x01\x02", at + 46)
    return found


def test_overlapping_members(tmp_path: Path) -> None:
    content = whole()
    at = directory(content)["archive/data/0"]
    struct.pack_into("<II", content, at + 20, 460, 460)
    with pytest.raises(UnsafeInputError, match="overlap"):
        open_bytes(tmp_path, bytes(content))


def test_two_members_of_one_name(tmp_path: Path) -> None:
    parts = zip_parts([("archive/data.pkl", [tensor_pickle()]), ("archive/data.pkl", [b"N."])])
    with pytest.raises(UnsafeInputError, match=r"two zip members.*data\.pkl"):
        open_bytes(tmp_path, b"".join(parts))


def test_members_outside_the_file(tmp_path: Path) -> None:
    for at_field, value in ((42, 1 << 30), (20, 1 << 30)):
        content = whole()
        at = directory(content)["archive/data/0"]
        struct.pack_into("<I", content, at + at_field, value)
        if at_field == 20:
            struct.pack_into("<I", content, at + 24, value)
        with pytest.raises((UnsafeInputError, FormatError)):
            open_bytes(tmp_path, bytes(content))


def test_a_directory_of_millions(tmp_path: Path) -> None:
    content = whole()
    end = content.rfind(b"PK\x05\x06")
    struct.pack_into("<HH", content, end + 8, 60_000, 60_000)
    with pytest.raises(UnsafeInputError, match="60000"):
        open_bytes(tmp_path, bytes(content))


def test_a_deflated_bomb(tmp_path: Path) -> None:
    data = tmp_path / "dump_tensor_data"
    data.mkdir()
    with zipfile.ZipFile(data / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", tensor_pickle())
        archive.writestr("archive/data/0", bytes(50 << 20))
    with pytest.raises(FormatError, match="compressed"):
        FilesStore(str(tmp_path)).get("x.pt")


def test_two_folders(tmp_path: Path) -> None:
    parts = zip_parts([("a/data.pkl", [tensor_pickle()]), ("b/data.pkl", [tensor_pickle()]), ("a/data/0", [bytes(16)])])
    with pytest.raises(FormatError, match=r"one data\.pkl"):
        open_bytes(tmp_path, b"".join(parts))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_pickles_are_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(tensor_pickle())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        record = read_tensor_record(bytes(content), "x")
    except MsformatError:
        return
    assert all(value >= 0 for value in (record.offset, *record.shape, *record.stride))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([bytes([c]) for c in b"()tqhrj}]sueaQRNKMJXG.\x80\x85\x86\x87\x88\x89\x8a"]), max_size=60)
)
def test_opcode_soup(soup: list[bytes]) -> None:
    with pytest.raises(MsformatError):
        read_tensor_record(b"\x80\x02" + b"".join(soup) + b".", "x")


def test_torch_agrees_that_ours_is_safe(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(bytes(whole()))
    assert torch.load(tmp_path / "x.pt", weights_only=True).tolist() == list(range(100))
