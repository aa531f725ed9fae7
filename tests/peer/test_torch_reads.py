"""torch and numpy judge: they read what we write, and we read what they write, bit for bit."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from msformat.dtypes import dtype_from_numpy, dtype_named, known_dtypes
from msformat.errors import UnsafeInputError
from msformat.stores.files import FilesStore
from msformat.stores.npyfile import npy_parts
from msformat.stores.ptfile import pt_needs_sidecar, pt_parts
from msformat.stores.zipmembers import zip_parts
from tests.contract.store_contract import exotic_arrays, random_bits

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")

TORCH_DTYPES = [dtype for dtype in known_dtypes() if not pt_needs_sidecar(dtype) and hasattr(torch, dtype.name)]
SHAPES = [(), (5,), (0,), (0, 3), (3, 0), (2, 3, 4)]


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Logical values of a tensor, contiguous, as torch itself lays them out."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype.itemsize in (1, 2, 4, 8):
        carrier = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
        return tensor.view(carrier).contiguous().numpy().tobytes()
    return tensor.contiguous().numpy().tobytes()


def read(path: Path) -> Any:
    store = FilesStore(str(path.parent.parent))
    return store.get(path.name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "dump_tensor_data"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=lambda dtype: dtype.name)
def test_torch_loads_what_we_write(dtype: Any, data: Path) -> None:
    for number, shape in enumerate(SHAPES):
        bits = random_bits(dtype, shape, seed=number)
        path = data / f"{number}.pt"
        path.write_bytes(b"".join(pt_parts(bits, dtype)))
        for weights_only, mmap in ((True, False), (True, True), (False, False)):
            tensor = torch.load(path, weights_only=weights_only, mmap=mmap)
            assert tensor.dtype == getattr(torch, dtype.name)
            assert tuple(tensor.shape) == shape
            assert tensor.is_contiguous()
            assert raw_bytes(tensor) == bits.tobytes()
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None


def test_the_types_torch_has_are_all_there() -> None:
    names = {dtype.name for dtype in TORCH_DTYPES}
    assert {"float32", "bfloat16", "bool", "complex64", "uint16", "float8_e4m3fn"} <= names
    for dtype in known_dtypes():
        torch_type = getattr(torch, dtype.name, None)
        if torch_type is None or dtype.name in names:
            continue
        # The others torch cannot save as a plain tensor either.
        with pytest.raises((RuntimeError, KeyError, TypeError)):
            _save_empty(torch_type)


def _save_empty(torch_type: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(torch.empty(3, dtype=torch_type), io.BytesIO())


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=lambda dtype: dtype.name)
def test_we_read_what_torch_saves(dtype: Any, data: Path) -> None:
    for number, shape in enumerate(SHAPES):
        bits = random_bits(dtype, shape, seed=number)
        raw = torch.from_numpy(np.frombuffer(bits.tobytes() or b"", np.uint8).copy()) if bits.size else None
        native = getattr(torch, dtype.name)
        tensor = torch.empty(shape, dtype=native) if raw is None else raw.view(native).reshape(shape)
        torch.save(tensor, data / f"{number}.pt")
        stored = read(data / f"{number}.pt")
        assert (stored.dtype, stored.shape) == (dtype, shape)
        assert stored.bits().tobytes() == bits.tobytes()
        stored.verify()


def _tagged() -> torch.Tensor:
    tensor = torch.arange(4.0)
    tensor.tag = "a Python attribute"  # type: ignore[attr-defined]
    return tensor


def _tagged_parameter() -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.arange(4.0))
    parameter.tag = [1, {"x": None}]  # type: ignore[attr-defined]
    return parameter


BASE = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
COMPLEX = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: BASE.transpose(0, 3),
    "permuted": lambda: BASE.permute(2, 0, 3, 1),
    "slice of a large storage": lambda: torch.arange(1_000_000, dtype=torch.float32)[123_456:123_466],
    "strided slice": lambda: torch.arange(1_000_000, dtype=torch.int16)[5::99_999],
    "inner slice": lambda: BASE[1, :, 1:3, ::2],
    "scalar of a storage": lambda: BASE[1, 2, 3, 4],
    "expanded": lambda: torch.tensor([1.0, 2.0])[:, None].expand(2, 7),
    "channels last": lambda: BASE.contiguous(memory_format=torch.channels_last),
    "overlapping": lambda: torch.arange(10).as_strided((4, 3), (2, 1)),
    "empty slice": lambda: BASE[:, 3:],
    "bfloat16 view": lambda: BASE.to(torch.bfloat16).transpose(1, 2),
    "float8 view": lambda: BASE.to(torch.float8_e5m2).transpose(1, 2)[1:],
    "conjugated": COMPLEX.conj,
    "conjugated view": lambda: COMPLEX.to(torch.complex128).conj().T[1:, ::2],
    "negated": lambda: COMPLEX.conj().imag,
    "conjugated NaN": lambda: torch.complex(
        torch.tensor([1.0, float("nan")]), torch.tensor([float("nan"), -0.0])
    ).conj(),
    "parameter": lambda: torch.nn.Parameter(BASE[0]),
    "frozen parameter": lambda: torch.nn.Parameter(BASE[0], requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(torch.arange(3.0)),
    "requires grad": lambda: torch.arange(4.0, requires_grad=True),
    "with an attribute": _tagged,
    "parameter with an attribute": _tagged_parameter,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_parameters(name: str, data: Path) -> None:
    tensor = VIEWS[name]()
    torch.save(tensor, data / "x.pt")
    stored = read(data / "x.pt")
    assert stored.shape == tuple(tensor.shape)
    assert stored.bits().tobytes() == raw_bytes(tensor)
    if tensor.ndim and len(tensor):
        assert stored.bits(slice(None, None, 2)).tobytes() == raw_bytes(tensor.detach()[::2])
        assert stored.bits((..., -1)).tobytes() == raw_bytes(tensor.detach()[..., -1])


def test_a_lazy_view_that_repeats_its_storage_is_read_in_parts(data: Path) -> None:
    torch.save(torch.tensor([7.0]).expand(1 << 26), data / "x.pt")
    stored = read(data / "x.pt")
    assert stored[-3:].tolist() == [7, 7, 7]
    with pytest.raises(UnsafeInputError, match="slice"):
        stored.bits()


def test_a_file_without_checksums_is_read_and_not_called_corrupt(data: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(BASE, data / "x.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    read(data / "x.pt").verify()
    assert read(data / "x.pt").bits().tobytes() == raw_bytes(BASE)


@pytest.mark.parametrize("protocol", [2, 3])
def test_pickle_protocols(protocol: int, data: Path) -> None:
    torch.save(BASE, data / "x.pt", pickle_protocol=protocol)
    assert read(data / "x.pt").bits().tobytes() == raw_bytes(BASE)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "complex64", "complex128", "float64", "bool"])
def test_big_endian(name: str, data: Path) -> None:
    """torch's loader, which swaps such files as well, is the judge."""
    dtype = dtype_named(name)
    bits = random_bits(dtype, (3, 4))
    part = bits.dtype.itemsize // (2 if bits.dtype.kind == "c" else 1)
    swapped = bits.view(f"u{part}").byteswap().tobytes()
    with zipfile.ZipFile(io.BytesIO(b"".join(pt_parts(bits, dtype)))) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    members |= {"archive/byteorder": b"big", "archive/data/0": swapped}
    path = data / "x.pt"
    path.write_bytes(b"".join(zip_parts([(member, [content]) for member, content in members.items()])))
    judged = torch.load(path, weights_only=True)
    assert raw_bytes(judged) == bits.tobytes()
    assert read(path).bits().tobytes() == bits.tobytes()
    assert read(path)[1:, ::2].tobytes() == dtype.from_bits(bits)[1:, ::2].tobytes()


def test_numpy_loads_what_we_write(data: Path) -> None:
    arrays = [random_bits(dtype, (3, 4)) for dtype in known_dtypes() if dtype.is_native]
    for array in (*arrays, *exotic_arrays(), np.zeros((), np.int8), np.zeros((0, 3), np.float64)):
        dtype = dtype_from_numpy(array.dtype)
        path = data / "x.npy"
        path.write_bytes(b"".join(npy_parts(dtype.to_bits(array), dtype)))
        loaded = np.load(path, allow_pickle=False)
        assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
        assert loaded.tobytes() == array.tobytes()
        with io.BytesIO() as own:
            np.save(own, array)
            assert own.getvalue() == path.read_bytes()


def test_we_read_what_numpy_saves(data: Path) -> None:
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "c": base,
        "fortran": np.asfortranarray(base),
        "big": base.astype(">f4"),
        "big fortran": np.asfortranarray(base.astype(">f8")),
        "big complex": base.astype(">c8"),
        "scalar": np.array(3, ">i2"),
        "fortran large": np.asfortranarray(np.arange(300 * 400.0).reshape(300, 400)),
        "strings": np.array([["ab", "c"]], ">U2"),
        "dates": np.array(["2024-01-01"], ">M8[D]"),
        "bool": np.array([True, False]),
        "half": base.astype(np.float16),
    }
    for name, array in arrays.items():
        np.save(data / f"{name}.npy", array)
        stored = read(data / f"{name}.npy")
        assert stored.shape == array.shape
        assert np.array_equal(stored.numpy(), array), name
        assert stored.numpy().dtype.isnative
        if array.ndim > 1:
            assert np.array_equal(stored[1:, ::-2], array[1:, ::-2])
            assert np.array_equal(stored[..., 0], array[..., 0])


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version: tuple[int, int], data: Path) -> None:
    with (data / "x.npy").open("wb") as stream:
        np.lib.format.write_array(stream, np.arange(6).reshape(2, 3), version=version)
    assert read(data / "x.npy").numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
