"""Bits of tensors, through the stores and back; torch judges."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import msformat
from capture.framework import HostTensor
from tests.capture.pytorch.describing import CHECKSUMS, EVERY_WAY, TENSORS, describe
from tests.judges import torch_saves, torch_types

SAVED_FLOAT8 = [dtype for dtype in torch_types("float8_e4m3fn") if torch_saves(dtype)]
DTYPES = torch_types(
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")


def of_random_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Every bit pattern may occur: NaN with payloads, negative zeros, subnormals."""
    size = torch.empty((), dtype=dtype).element_size()
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.uint8).view(dtype)
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8)
    return raw.view(dtype)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of the logical values, by torch alone."""
    dense = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return dense.view(torch.uint8).numpy().tobytes()


def host_of(tensor: torch.Tensor) -> HostTensor:
    host = describe(tensor, TENSORS).host
    assert host is not None
    return host


def bits_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    host = host_of(tensor)
    assert host.bits is not None
    assert host.bits.flags.c_contiguous
    assert host.bits.dtype == host.dtype.storage
    assert host.bits.shape == tuple(tensor.shape)
    assert host.nbytes == host.bits.nbytes
    return host.bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_keeps_every_bit(dtype: torch.dtype) -> None:
    tensor = of_random_bits(dtype, 33, 16)
    assert bits_of(tensor).tobytes() == raw_bytes(tensor)
    assert host_of(tensor).dtype.torch_name == str(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_are_stored_as_what_they_show(dtype: torch.dtype) -> None:
    base = of_random_bits(dtype, 6, 8)
    for view in (base.t(), base[1:, 2:5], base[:, 3], base[2, 5], base[:1].expand(4, 8), base.unsqueeze(1)):
        assert bits_of(view).tobytes() == raw_bytes(view)


def test_a_slice_is_stored_as_a_slice() -> None:
    assert host_of(torch.zeros(1000, 1000)[0, :4]).nbytes == 16


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0, 4)], ids=str)
def test_scalars_and_empty_tensors(shape: tuple[int, ...]) -> None:
    assert bits_of(torch.ones(shape)).shape == shape


def test_conjugated_and_negated_views_are_carried_out() -> None:
    tensor = torch.randn(5, dtype=torch.complex64)
    np.testing.assert_array_equal(bits_of(tensor.conj()), tensor.numpy().conj())
    np.testing.assert_array_equal(bits_of(tensor.conj().imag), -tensor.numpy().imag)


def test_copies_are_owned() -> None:
    for view in (torch.zeros(4), torch.zeros(3, 4).t(), torch.zeros(3, 4)[:, ::2], torch.zeros(3).expand(4, 3)):
        bits = bits_of(view)
        view.untyped_storage().fill_(255)
        assert not bits.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", ["whole", "transposed", "offset"])
def test_checksum_is_of_the_logical_bytes(dtype: torch.dtype, view: str) -> None:
    tensor = of_random_bits(dtype, 6, 8)
    tensor = {"whole": tensor, "transposed": tensor.t(), "offset": tensor.view(-1)[1:]}[view]
    judged = tensor.to(torch.float32) if dtype == torch.bfloat16 else tensor
    if dtype == torch.bfloat16:
        judged = torch.where(torch.isnan(judged), 0, judged)  # a cast may quieten a NaN: that is the next test's
        tensor = torch.where(torch.isnan(tensor), 0, tensor)
    assert describe(tensor, CHECKSUMS).node["md5"] == f"{zlib.crc32(raw_bytes(judged)):08x}"


# --- no harm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", EVERY_WAY)
@pytest.mark.parametrize("dtype", torch_types("float32", "bfloat16", "uint16", "float8_e5m2", "int64"), ids=str)
def test_storages_stay_resizable(dtype: torch.dtype, wanted: Any) -> None:
    """``Tensor.numpy()`` would end that, and FSDP resizes the storages of its parameters in each step."""
    tensor = torch.ones(8).to(dtype)
    describe(tensor, wanted)
    describe(tensor[::2], wanted)
    if hasattr(tensor.untyped_storage(), "resizable"):  # later than 2.1
        assert tensor.untyped_storage().resizable()
    tensor.untyped_storage().resize_(0)


def state_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    shared = (tensor._version, tensor.grad_fn, tensor.requires_grad, tensor.is_leaf)
    return (*shared, tensor.data_ptr(), tensor.stride(), tensor.shape)


@pytest.mark.parametrize("wanted", EVERY_WAY)
def test_nothing_of_the_tensor_changes(wanted: Any) -> None:
    leaf = torch.randn(4, 3, requires_grad=True)
    made = (leaf * 2).t()
    for tensor in (leaf, made):
        before = state_of(tensor)
        describe(tensor, wanted)
        assert state_of(tensor) == before
    made.sum().backward()
    assert leaf.grad is not None


# --- through the stores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
def test_round_trip_through_a_dump(backend: str, tmp_path: Path) -> None:
    tensors = {str(dtype): of_random_bits(dtype, 5, 8).t() for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "slice": torch.randn(9, 9)[2:, ::3]}
    header = msformat.Header("tensor", "debug", "pytorch")
    writer = msformat.DumpWriter(tmp_path / "step0" / "rank", header, backend=backend)
    for name, tensor in tensors.items():
        node, host, _ = describe(tensor, TENSORS)
        assert host is not None
        assert host.bits is not None
        node["data_name"] = writer.data_name(f"{name}.0.debug.pt")
        writer.put_tensor(node["data_name"], host.bits, host.dtype, owned=True)
        writer.put_entry(f"{name}.0.debug", node)
    writer.finish()
    writer.close()
    unit = next(iter(msformat.open(tmp_path)))
    for name, tensor in tensors.items():
        (stored,) = unit[f"{name}.0.debug"].tensors
        assert stored.shape == tuple(tensor.shape)
        assert np.ascontiguousarray(stored.numpy()).tobytes() == raw_bytes(tensor), name


def test_files_are_loaded_by_torch(tmp_path: Path) -> None:
    tensors = [of_random_bits(dtype, 3, 8) for dtype in (torch.bfloat16, torch.complex64, *SAVED_FLOAT8)]
    writer = msformat.DumpWriter(tmp_path / "step0" / "rank", msformat.Header("tensor", "debug", "pytorch"))
    for number, tensor in enumerate(tensors):
        host = host_of(tensor)
        assert host.bits is not None
        writer.put_tensor(f"x.{number}.debug.pt", host.bits, host.dtype, owned=True)
        writer.put_entry(f"x.{number}.debug", {**describe(tensor).node, "data_name": f"x.{number}.debug.pt"})
    writer.finish()
    writer.close()
    for number, tensor in enumerate(tensors):
        file = tmp_path / "step0" / "rank" / "dump_tensor_data" / f"x.{number}.debug.pt"
        loaded = torch.load(io.BytesIO(file.read_bytes()), weights_only=True)
        assert loaded.dtype == tensor.dtype
        assert raw_bytes(loaded) == raw_bytes(tensor)
