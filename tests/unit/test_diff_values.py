"""How far two tensors are apart: numpy formulas, written out here, judge."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import msformat
from msformat.compare import running, values
from msformat.compare.model import TensorResult
from msformat.dtypes import dtype_from_numpy, dtype_named
from msformat.stores.memory import MemoryStore
from tests.small_dumps import HEADER, record, write_document, write_unit

KEY = "Functional.relu.0.forward"


def compared(tmp_path: Path, a: NDArray[Any], b: NDArray[Any], **thresholds: Any) -> TensorResult:
    """The one tensor of two dumps."""
    for name, array in (("a", a), ("b", b)):
        write_unit(tmp_path / name / "step0" / "rank", {KEY: array})
    options = msformat.DiffOptions(thresholds=msformat.Thresholds(**thresholds), threads=1)
    found = msformat.diff(tmp_path / "a", tmp_path / "b", options)
    (tensor,) = found.units[0].tensors
    return tensor


def measured(a: NDArray[Any], b: NDArray[Any], name_a: str = "", name_b: str = "") -> running.Measured:
    """Two arrays of bits, through a store."""
    dtypes = [dtype_named(name) if name else dtype_from_numpy(x.dtype) for x, name in ((a, name_a), (b, name_b))]
    with MemoryStore(mode="w") as store:
        for key, array, dtype in (("a", a, dtypes[0]), ("b", b, dtypes[1])):
            store.put(key, dtype.to_bits(array) if array.dtype == dtype.numpy else array, dtype)
        return values.PairMeasure().of(store.get("a"), dtypes[0].name, store.get("b"), dtypes[1].name)


def noisy(shape: tuple[int, ...], dtype: Any = np.float32, scale: float = 1e-3) -> tuple[NDArray[Any], NDArray[Any]]:
    """A tensor with noise, and without."""
    random = np.random.default_rng(7)
    b = random.standard_normal(shape)
    b[random.random(shape) < 0.05] = 0.0
    a = b + scale * random.standard_normal(shape) * (random.random(shape) < 0.9)
    return a.astype(dtype), b.astype(dtype)


def expected(a: NDArray[Any], b: NDArray[Any]) -> dict[str, Any]:
    """Every metric from its definition."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        x, y = (side[finite].astype(np.result_type(side.dtype, np.float64)) for side in (a, b))
        error, size = np.abs(x - y), np.abs(y)
        relative = np.where(error == 0, 0.0, error / size)
    has = np.isfinite(relative)
    norm_x, norm_y = np.linalg.norm(x), np.linalg.norm(y)
    return {
        "cosine": float(np.vdot(y, x).real / norm_x / norm_y),
        "max_abs": error.max(),
        "mean_abs": error.mean(),
        "max_rel": relative[has].max(),
        "mean_rel": relative[has].mean(),
        "rmse": np.sqrt(np.mean(error**2)),
        "euclidean": np.linalg.norm(x - y),
        "rel_l2": np.linalg.norm(x - y) / norm_y,
        "within_01": np.mean(relative < 0.001),
        "within_05": np.mean(relative < 0.005),
        "compared": int(finite.sum()),
        "elements": a.size,
        "max_b": size.max(),
    }


def check(found: running.Measured, a: NDArray[Any], b: NDArray[Any]) -> None:
    assert found.metrics is not None
    for name, value in expected(a, b).items():
        assert getattr(found.metrics, name) == pytest.approx(value, rel=1e-9, abs=1e-300), name
    assert found.metrics.worst is not None
    error = np.abs(a[found.metrics.worst].astype(complex) - b[found.metrics.worst].astype(complex))
    assert found.metrics.max_abs == pytest.approx(float(error))


@pytest.mark.parametrize("shape", [(7,), (3, 5, 4), (1,), (running.PIECE + 3,), (5, running.PIECE // 2)], ids=str)
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.complex64, np.complex128], ids=lambda d: d.__name__
)
def test_every_metric_is_what_its_formula_gives(shape: tuple[int, ...], dtype: Any) -> None:
    a, b = noisy(shape, dtype)
    if np.dtype(dtype).kind == "c":
        a, b = (a + 1j * noisy(shape)[0]).astype(dtype), (b + 1j * noisy(shape)[1]).astype(dtype)
    a[(0,) * len(shape)] += 1
    check(measured(a, b), a, b)


def test_a_large_tensor_is_read_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same, whatever the cut; slabs that are equal on both sides count like others."""
    a, b = noisy((6, 50, 40))
    a[2:4] = b[2:4]
    a[0, 3, 5] = np.nan
    whole = measured(a, b)
    monkeypatch.setattr(values, "_AT_ONCE", 100)
    for slab in (1 << 12, 1 << 14, 64):
        monkeypatch.setattr(values, "_SLAB", slab)
        cut = measured(a, b)
        check(cut, a, b)
        assert (cut.special_a, cut.special_b, cut.mismatch) == (whole.special_a, whole.special_b, 1)
        assert measured(b, b).same


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
def test_narrow_floats_are_their_values(name: str) -> None:
    a, b = (side.astype(getattr(ml_dtypes, name)) for side in noisy((40, 9), scale=0.3))
    check(measured(a, b), a.astype(np.float64), b.astype(np.float64))


def test_types_may_differ(tmp_path: Path) -> None:
    a, b = noisy((20, 30))
    half = a.astype(ml_dtypes.bfloat16)
    check(measured(half, b), half.astype(np.float64), b.astype(np.float64))
    found = compared(tmp_path, b.astype(np.float16), b)
    assert found.verdict == "close", "float16 is allowed what it rounds"
    assert "dtype torch.float16 against torch.float32" in found.reasons


def test_integers_are_exact_beyond_what_floats_hold() -> None:
    """2**53 + 1 and 2**53 are one number as float64."""
    a, b = np.array([2**53 + 1, -(2**63), 5], np.int64), np.array([2**53, 2**63 - 1, 5], np.int64)
    found = measured(a, b).metrics
    assert found is not None
    assert found.max_abs == float(2**64 - 1)
    one = measured(a[:1], b[:1]).metrics
    assert one is not None
    assert one.max_abs == 1.0
    mixed = measured(np.array([2**63 + 1], np.uint64), np.array([-1], np.int64)).metrics
    assert mixed is not None
    assert mixed.max_abs == float(2**63 + 2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.bool_], ids=lambda d: d.__name__)
def test_integers_and_bools_have_to_be_equal(tmp_path: Path, dtype: Any) -> None:
    b = np.array([0, 1, 1, 0], dtype)
    a = b.copy()
    a[3] = 1
    found = compared(tmp_path, a, b)
    assert found.verdict == "different"
    assert found.metrics is not None
    assert (found.metrics.max_abs, found.metrics.within_01) == (1.0, 0.75)


def test_int8_against_float(tmp_path: Path) -> None:
    """R133: neither wraps nor fails."""
    found = compared(tmp_path, np.array([127, -128], np.int8), np.array([127.0, 128.0], np.float32))
    assert found.metrics is not None
    assert found.metrics.max_abs == 256.0
    assert found.verdict == "different"


def test_division_by_zero_has_a_defined_result(tmp_path: Path) -> None:
    """R133: 0/0 is no error, x/0 has none and is not within; float16 zeros against the smallest there is."""
    found = measured(np.array([0.0, 1e-3, 2.0]), np.array([0.0, 0.0, 2.0])).metrics
    assert found is not None
    assert (found.max_rel, found.mean_rel, found.within_01) == (0.0, 0.0, pytest.approx(2 / 3))
    only = measured(np.array([1e-3]), np.array([0.0])).metrics
    assert only is not None
    assert (only.max_rel, only.mean_rel, only.rel_l2, only.cosine) == (None, None, math.inf, None)
    half = compared(tmp_path, np.zeros(4, np.float16), np.full(4, 6e-8, np.float16), atol=1e-7)
    assert half.verdict == "close"
    assert half.metrics is not None
    assert math.isfinite(half.metrics.max_abs)


def test_nan_and_infinities_are_counted_and_placed(tmp_path: Path) -> None:
    b = np.arange(24, dtype=np.float32).reshape(4, 6)
    a = b.copy()
    b[0, 1], a[0, 1] = np.inf, np.inf
    b[3, 5], a[3, 5] = np.nan, np.nan
    both = compared(tmp_path / "both", a, b)
    assert both.verdict == "same"
    assert both.special_a == both.special_b
    assert both.special_a is not None
    assert (both.special_a.nan, both.special_a.posinf, both.special_a.first) == (1, 1, ((0, 1), (3, 5)))
    a[2, 2] = -np.inf
    one = compared(tmp_path / "one", a, b)
    assert (one.verdict, one.special_mismatch) == ("different", 1)
    assert one.metrics is not None
    assert (one.metrics.compared, one.metrics.elements, one.metrics.max_abs) == (21, 24, 0.0)
    assert "1 -inf" in one.reasons[0]
    assert "[2, 2]" in one.reasons[0]
    assert one.severity == math.inf


def test_opposite_infinities_differ() -> None:
    found = measured(np.array([np.inf, 1.0]), np.array([-np.inf, 1.0]))
    assert (found.mismatch, found.special_a.posinf, found.special_b.neginf) == (1, 1, 1)


def test_values_whose_squares_fit_no_float() -> None:
    for scale in (1e200, 1e-200, 1e308):
        b = np.array([1.0, -0.5, 0.25]) * scale
        a = b * (1 + 1e-3)
        found = measured(a, b).metrics
        assert found is not None
        assert found.rel_l2 == pytest.approx(1e-3, rel=1e-6)
        assert found.cosine == pytest.approx(1.0)
        assert found.max_abs == pytest.approx(1e-3 * scale, rel=1e-6)
        assert found.max_b == scale


def test_bits_that_differ_and_values_that_do_not(tmp_path: Path) -> None:
    found = compared(tmp_path, np.array([-0.0, 1.0]), np.array([0.0, 1.0]))
    assert found.verdict == "close"
    assert "other bits" in found.reasons[0]
    assert compared(tmp_path / "exact", np.array([-0.0]), np.array([0.0]), exact=True).verdict == "different"


def test_shape_comes_first(tmp_path: Path) -> None:
    """R134: 0-d against (1,), (2, 3) against (3, 2); both empty are equal."""
    for at, (left, right) in enumerate([((), (1,)), ((2, 3), (3, 2)), ((0,), (0, 3))]):
        found = compared(tmp_path / str(at), np.ones(left, np.float32), np.ones(right, np.float32))
        assert found.verdict == "different"
        assert found.reasons == (f"shape {list(left)} against {list(right)}",)
    for shape in ((), (0,), (0, 3), (2, 0)):
        found = compared(tmp_path / f"same{shape}", np.ones(shape, np.float32), np.ones(shape, np.float32))
        assert found.verdict == "same"
    scalar = compared(tmp_path / "scalar", np.array(1.0, np.float32), np.array(1.5, np.float32))
    assert scalar.verdict == "different"
    assert scalar.metrics is not None
    assert scalar.metrics.worst == ()


def test_bits_that_mean_no_number() -> None:
    a, b = np.array([1, 2, 3], np.uint8), np.array([1, 2, 4], np.uint8)
    found = measured(a, b, "quint8", "quint8")
    assert (found.metrics, found.differing, found.same) == (None, 1, False)
    assert measured(a, a.copy(), "quint8", "quint8").same
    halves = np.array([1.0, 2.0, 3.0, 4.0], np.float16).view(np.uint32)
    others = np.array([1.0, 2.0, 3.0, 4.5], np.float16).view(np.uint32)
    pair = measured(halves, others, "complex32", "complex32").metrics
    assert pair is not None
    assert pair.max_abs == 0.5
    assert pair.rel_l2 == pytest.approx(0.5 / np.sqrt(1 + 4 + 9 + 4.5**2))


def test_one_wild_element_among_many(tmp_path: Path) -> None:
    """It hardly shows in a norm."""
    b = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    a = b.copy()
    a[123_456] += 0.05
    found = compared(tmp_path, a, b)
    assert found.metrics is not None
    assert found.metrics.rel_l2 < 1e-4
    assert found.verdict == "different"
    assert "[123456]" in found.reasons[0]


@pytest.mark.parametrize(
    ("threshold", "value"),
    [("cosine", 0.99999999), ("max_abs", 1e-6), ("max_rel", 1e-6), ("within_01", 1.0), ("within_05", 1.0)],
)
def test_thresholds_of_a_user(tmp_path: Path, threshold: str, value: float) -> None:
    a, b = noisy((50, 50), scale=1e-2)
    assert compared(tmp_path / "loose", a, b, rtol=1.0, extremes=10).verdict == "close"
    found = compared(tmp_path / "tight", a, b, rtol=1.0, **{threshold: value})
    assert found.verdict == "different"


def test_rules_of_msprobe(tmp_path: Path) -> None:
    """Cosine below 0.99 and an error above 0.001; or below 0.9; or an error above 1."""
    base = np.array([1.0, 0.0], np.float32)
    cases = [
        (np.array([1.0, 0.3]), "different"),
        (np.array([1.0, 0.1]), "close"),
        (np.array([3.0, 0.0]), "different"),
    ]
    for at, (a, verdict) in enumerate(cases):
        found = compared(tmp_path / str(at), a.astype(np.float32), base, rules="msprobe")
        assert found.verdict == verdict


def test_thresholds_that_make_no_sense() -> None:
    for bad in ({"rtol": -1.0}, {"atol": math.nan}, {"rules": "mine"}):
        with pytest.raises(msformat.FormatError):
            msformat.Thresholds(**bad)  # type: ignore[arg-type]


# --- without values ---------------------------------------------------------------------------------------------------


def described(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **thresholds: Any) -> TensorResult:
    """A tensor of which documents tell."""
    for name, changes in (("a", a), ("b", b)):
        unit = tmp_path / name / "step0" / "rank"
        unit.mkdir(parents=True)
        node = {**record(np.ones((4, 4), np.float32), ""), "Max": 2.0, "Min": -1.0, "Mean": 0.5, "Norm": 4.0, **changes}
        node = {key: value for key, value in node.items() if key != "data_name" and value != "absent"}
        document = {**HEADER, "data": {KEY: {"input_args": [], "input_kwargs": {}, "output": [node]}}}
        write_document(unit / "dump.json", document)
    options = msformat.DiffOptions(thresholds=msformat.Thresholds(**thresholds))
    (tensor,) = msformat.diff(tmp_path / "a", tmp_path / "b", options).units[0].tensors
    return tensor


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "same"),
        ({"Norm": 4.0001}, "close"),
        ({"Norm": 4.01}, "different"),
        ({"Mean": 0.50005}, "close"),
        ({"Mean": 0.51}, "different"),
        ({"Max": 2.001}, "close"),
        ({"Max": 2.01}, "different"),
        ({"Min": -1.01}, "different"),
        ({"Max": math.nan, "Min": math.nan, "Mean": math.nan, "Norm": math.nan}, "different"),
        ({"Max": math.inf, "Norm": math.inf}, "different"),
        ({"Norm": math.inf}, "close"),  # of finite values: a sum that overflowed in msprobe
        ({"Max": None, "Min": None, "Mean": None, "Norm": None}, "unknown"),
        ({"Max": "NaN"}, "different"),
        ({"shape": [2, 8]}, "different"),
    ],
)
def test_statistics_are_compared(tmp_path: Path, change: dict[str, Any], verdict: str) -> None:
    found = described(tmp_path, change, {})
    assert found.verdict == verdict
    assert found.metrics is None
    if verdict in ("close", "same") and change:
        assert found.basis == "statistics"


def test_how_statistics_differ(tmp_path: Path) -> None:
    found = described(tmp_path, {"Max": 3.0, "Mean": None, "Min": 0.0}, {"Min": 0.0, "Norm": 0.0})
    assert (found.changes["max"].absolute, found.changes["max"].relative) == (1.0, 0.5)
    assert (found.changes["min"].absolute, found.changes["min"].relative) == (0.0, 0.0)
    assert (found.changes["mean"].absolute, found.changes["mean"].relative) == (None, None)
    assert (found.changes["norm"].absolute, found.changes["norm"].relative) == (4.0, None)


@pytest.mark.parametrize(
    ("a", "b", "severity"),
    [
        ({"Norm": 4.4}, {}, 0.1),
        ({"Max": 2.1}, {"Max": 2.0}, 0.05),
        # A mean near zero is all rounding: it counts beside the root mean square, here 4 / sqrt(16) = 1.
        ({"Norm": 4.01, "Mean": 5e-9}, {"Mean": 1e-9}, 0.0025),
        ({"Norm": 4.01, "Min": 1e-9}, {"Min": 2e-9}, 0.0025),
        ({"Norm": math.inf, "Max": 2.1}, {}, 0.05),
        ({"Max": math.nan}, {}, math.inf),
        ({"Norm": 1.0}, {"Max": 0.0, "Min": 0.0, "Mean": 0.0, "Norm": 0.0}, math.inf),
    ],
)
def test_severity_of_statistics_is_what_the_verdict_is_about(
    tmp_path: Path, a: dict[str, Any], b: dict[str, Any], severity: float
) -> None:
    assert described(tmp_path, a, b).severity == pytest.approx(severity, rel=1e-6)


def test_digests_decide_where_they_are(tmp_path: Path) -> None:
    same = described(tmp_path / "same", {"md5": "0000ABCD", "Max": 2.0001}, {"md5": "0000abcd"})
    assert (same.verdict, same.basis) == ("same", "digest")
    other = described(tmp_path / "other", {"md5": "0000abce"}, {"md5": "0000abcd"})
    assert (other.verdict, other.reasons) == ("close", ("digests differ",))
    exact = described(tmp_path / "exact", {"md5": "0000abce"}, {"md5": "0000abcd"}, exact=True)
    assert exact.verdict == "different"
    # R141: different algorithms are never compared.
    mixed = described(tmp_path / "mixed", {"md5": "0x00000000000abcde"}, {"md5": "0000abcd"})
    assert (mixed.verdict, mixed.basis) == ("same", "statistics")
    alone = {"Max": "absent", "Min": "absent", "Mean": "absent", "Norm": "absent"}
    bare = described(tmp_path / "bare", {"md5": "0000abce", **alone}, {"md5": "0000abcd", **alone})
    assert (bare.verdict, bare.basis) == ("different", "digest")


def test_a_damaged_tensor_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_unit(
            tmp_path / name / "step0" / "rank", {KEY: np.ones(64, np.float32), "Functional.abs.0.forward": np.ones(2)}
        )
    file = tmp_path / "a" / "step0" / "rank" / "dump_tensor_data" / f"{KEY}.output.0.npy"
    file.write_bytes(file.read_bytes()[:-9])
    found = msformat.diff(tmp_path / "a", tmp_path / "b")
    assert found.exit_code == 1
    broken, fine = found.units[0].tensors
    assert (broken.verdict, fine.verdict) == ("unreadable", "same")
    assert KEY in broken.reasons[0]


def test_equal_digests_of_stores_need_no_reading(tmp_path: Path) -> None:
    """HDF5 and Zarr keep a digest of each content; a chunk that is gone is not missed where they agree."""
    from tests.small_dumps import convert_whole

    write_unit(tmp_path / "a" / "step0" / "rank", {KEY: np.arange(2000, dtype=np.float32)})
    convert_whole(tmp_path / "a", tmp_path / "a.h5")
    convert_whole(tmp_path / "a", tmp_path / "a.zarr")
    (tensor,) = msformat.diff(tmp_path / "a.h5", tmp_path / "a.zarr").units[0].tensors
    assert (tensor.verdict, tensor.basis) == ("same", "digest")
    (tensor,) = msformat.diff(tmp_path / "a.h5", tmp_path / "a").units[0].tensors
    assert (tensor.verdict, tensor.basis) == ("same", "values")
