"""Statistics of stored bits, judged by torch and numpy in float64."""

from __future__ import annotations

import json
import math
import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from msformat.dtypes import dtype_from_numpy, dtype_named, known_dtypes
from msformat.model import Stats
from msformat.stats import tensor_stats
from tests.conftest import GOLDEN_DATA
from tests.judges import judge, torch_type

torch = judge("torch")


def stats_of(array: Any) -> Stats:
    array = np.asarray(array)
    dtype = dtype_from_numpy(array.dtype)
    return tensor_stats(dtype.to_bits(array), dtype)


def same(found: Any, wanted: float, relative: float = 1e-12) -> bool:
    return (math.isnan(found) and math.isnan(wanted)) or math.isclose(found, wanted, rel_tol=relative)


FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
          "float8_e5m2fnuz"]  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 1001)])
def test_floats_against_torch_in_float64(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(len(shape))
    tensor = (torch.randn(shape, dtype=torch.float64) * 3).to(torch_type(name))
    dtype = dtype_named(name)
    bits = tensor.view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype)
    raw = bits.numpy() if name != "bfloat16" else tensor.view(torch.int16).numpy()
    found = tensor_stats(raw.view(dtype.storage), dtype)
    wide = tensor.to(torch.float64)
    assert (found.max, found.min) == (wide.max().item(), wide.min().item())
    assert isinstance(found.mean, float)
    assert same(found.mean, wide.mean().item(), 1e-9)
    assert same(found.norm, wide.norm().item())


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_integers_are_exact_and_never_overflow(name: str) -> None:
    limits = np.iinfo(name)
    array = np.array([limits.max, limits.max, limits.max - 1, limits.min, 1], dtype=name)
    found = stats_of(array)
    assert (found.max, found.min) == (limits.max, limits.min)
    assert type(found.max) is int
    wide = array.astype(np.float64)
    assert same(found.mean, float(wide.mean()))
    assert same(found.norm, float(np.linalg.norm(wide)))


def test_integers_beyond_float64_keep_their_last_digit() -> None:
    found = stats_of(np.array([2**53 + 1, -(2**53) - 1]))
    assert (found.max, found.min) == (2**53 + 1, -(2**53) - 1)


def test_float16_norm_is_finite() -> None:
    tensor = torch.full((1000,), 60000.0, dtype=torch.float16)
    found = stats_of(tensor.numpy())
    assert same(found.norm, tensor.double().norm().item())
    assert same(found.mean, 60000.0)


@pytest.mark.parametrize("value", [1e300, 1.7e308, -1.7e308, 1e-300, 5e-324, 1e-160, 1e160])
def test_ends_of_float64_do_not_overflow_or_vanish(value: float) -> None:
    found = stats_of(np.array([value, value, value, 0.0]))
    assert isinstance(found.mean, float)
    assert isinstance(found.norm, float)
    assert found.mean == pytest.approx(value * 0.75, rel=1e-12, abs=5e-324)
    wanted = abs(value) * math.sqrt(3)
    assert found.norm == pytest.approx(wanted, rel=1e-12, abs=5e-324) if math.isfinite(wanted) else found.norm > 1e308
    assert (found.max, found.min) == (max(value, 0.0), min(value, 0.0))


@pytest.mark.parametrize(
    "values", [[1.0, math.nan], [math.nan], [math.inf, 1.0], [-math.inf, 2.0], [math.inf, -math.inf], [-0.0]]
)
@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bfloat16"])
def test_specials_as_torch_has_them(values: list[float], name: str) -> None:
    wide = torch.tensor(values, dtype=torch.float64)
    array = np.array(values, dtype=ml_dtypes.bfloat16 if name == "bfloat16" else name)
    found = stats_of(array)
    wanted = (wide.max(), wide.min(), wide.mean(), wide.norm())
    for got, want in zip((found.max, found.min, found.mean, found.norm), wanted, strict=True):
        assert same(got, want.item()), (found, wanted)


def test_nan_in_a_later_piece_is_not_lost() -> None:
    array = np.zeros((1 << 20) + 5, dtype=np.float32)
    array[-1] = np.nan
    found = stats_of(array)
    assert all(math.isnan(value) for value in (found.max, found.min, found.mean, found.norm))  # type: ignore[arg-type]


def test_pieces_add_up() -> None:
    array = np.random.default_rng(3).standard_normal((3 << 20) + 17, dtype=np.float32)
    found = stats_of(array)
    wide = array.astype(np.float64)
    assert (found.max, found.min) == (float(array.max()), float(array.min()))
    assert same(found.mean, float(wide.mean()), 1e-9)
    assert same(found.norm, float(np.linalg.norm(wide)))


@pytest.mark.parametrize("values", [[True, False], [True, True], [False], [[True], [False]]])
def test_bool_is_any_and_all(values: Any) -> None:
    found = stats_of(np.array(values))
    assert found == Stats(bool(np.any(values)), bool(np.all(values)), None, None)
    assert type(found.max) is bool


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_is_the_modulus_without_norm(name: str) -> None:
    array = np.array([3 + 4j, -1j, 1e30 + 1e30j], dtype=name)
    found = stats_of(array)
    modulus = np.abs(array.astype(np.complex128))
    assert same(found.max, float(modulus.max()))
    assert same(found.min, 1.0)
    assert same(found.mean, float(modulus.mean()))
    assert found.norm is None


@pytest.mark.parametrize("dtype", known_dtypes(), ids=lambda dtype: dtype.name)
def test_every_type_takes_empty_and_rank_0(dtype: Any) -> None:
    assert tensor_stats(np.zeros((0, 3), dtype.storage), dtype) == Stats(None, None, None, None)
    found = tensor_stats(np.zeros((), dtype.storage), dtype)
    json.dumps([found.max, found.min, found.mean, found.norm])


@pytest.mark.parametrize("name", ["complex32", "qint8", "quint4x2", "float4_e2m1fn_x2", "int2", "bits8", "hifloat8"])
def test_bits_without_a_meaning_have_no_statistics(name: str) -> None:
    dtype = dtype_named(name)
    assert tensor_stats(np.ones(4, dtype.storage), dtype) == Stats(None, None, None, None)


@pytest.mark.parametrize(("name", "expected"), [("int4", (7, -8, -0.5)), ("uint4", (15, 0, 7.5))])
def test_integers_of_four_bits_are_integers(name: str, expected: tuple[int, int, float]) -> None:
    """A byte holds one; only its low half counts."""
    found = tensor_stats(np.arange(16, dtype=np.uint8), dtype_named(name))
    assert (found.max, found.min, found.mean) == expected
    assert type(found.max) is int


@pytest.mark.parametrize("array", [np.array(["a", "bc"]), np.array(["2020-01-01"], "M8[D]"), np.array([b"x"])])
def test_text_and_time_have_no_statistics(array: Any) -> None:
    assert stats_of(array) == Stats(None, None, None, None)


def test_strided_input_counts_every_value() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3]
    dtype = dtype_named("float32")
    assert tensor_stats(array, dtype) == stats_of(array.copy())


def test_what_msprobe_wrote() -> None:
    """Its float32 statistics of real MindSpore tensors, to the precision of float32."""
    name = "mindspore_8.1.0_L0_tensor"
    compared = 0
    with zipfile.ZipFile(GOLDEN_DATA / f"{name}.zip") as archive:
        document = json.loads(archive.read(f"{name}/step0/rank/dump.json"))
        for record in tensors_in(document["data"]):
            if record["dtype"] != "Float32":
                continue
            with archive.open(f"{name}/step0/rank/dump_tensor_data/{record['data_name']}") as stream:
                found = stats_of(np.load(stream))
            assert (found.max, found.min) == (record["Max"], record["Min"])
            assert found.mean == pytest.approx(record["Mean"], rel=1e-5, abs=1e-7)
            assert found.norm == pytest.approx(record["Norm"], rel=1e-6)
            compared += 1
    assert compared > 10


def tensors_in(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict) and "data_name" in node:
        return [node]
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [found for child in children for found in tensors_in(child)]
