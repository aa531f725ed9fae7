"""Tensor families as xarray. Judges: numpy for the values, torch for what it wrote, xarray for its own."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from numpy.typing import NDArray

import msformat
from msformat import room, xarrays
from tests.judges import judge, torch_type
from tests.unit.reader_dumps import RELU, VALUES, X, entries, record, write_tensor, write_unit

torch = judge("torch")
KEYS = ("Module.a.Linear.forward.0", "Module.b.Linear.forward.0", "Module.b.Linear.forward.1")


def _values(step: int, rank: int, key: str, shape: tuple[int, ...] = (2, 3)) -> NDArray[Any]:
    seed = 1000 * step + 10 * rank + KEYS.index(key)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _unit(
    root: Path, step: int, rank: int, keys: tuple[str, ...] = KEYS, make: Callable[..., Any] = _values, **header: Any
) -> None:
    arrays = {f"{key}.output.0.npy": make(step, rank, key) for key in keys}
    data = {
        key: {"input_args": [], "output": [record(array, name), {"type": "int", "value": 1}]}
        for key, (name, array) in zip(keys, arrays.items(), strict=True)
    }
    unit = write_unit(root / f"step{step}" / f"rank{rank}", data, **header)
    for name, array in arrays.items():
        write_tensor(unit, name, array)


@pytest.fixture
def grid(tmp_path: Path) -> msformat.Dump:
    """Steps 0 and 3, ranks 2 and 10."""
    for step in (0, 3):
        for rank in (2, 10):
            _unit(tmp_path / "d", step, rank)
    return msformat.open(tmp_path / "d")


LAZY = pytest.mark.parametrize("lazy", [True, False])


@LAZY
def test_steps_and_ranks(grid: msformat.Dump, lazy: bool) -> None:
    found = grid.to_xarray(KEYS[1], lazy=lazy)
    assert isinstance(found, xr.DataArray)
    assert found.dims == ("step", "rank", "dim_0", "dim_1")
    assert found.step.values.tolist() == [0, 3]
    assert found["rank"].values.tolist() == [2, 10]
    assert (found.chunks is not None) is lazy
    for step in (0, 3):
        for rank in (2, 10):
            assert np.array_equal(found.sel(step=step, rank=rank), _values(step, rank, KEYS[1]))
    assert found.dtype == np.float32
    assert found.name == "output.0"
    assert found.attrs == {
        "entry": KEYS[1], "tensor": "output.0", "dtype": "torch.float32", "framework": "pytorch", "path": grid.path,
    }  # fmt: skip


@LAZY
def test_arithmetic_by_xarray(grid: msformat.Dump, lazy: bool) -> None:
    found = grid.to_xarray(KEYS[0], dims=("row", "column"), lazy=lazy)
    expected = np.stack([np.stack([_values(step, rank, KEYS[0]) for rank in (2, 10)]) for step in (0, 3)])
    assert np.array_equal(found.max(("row", "column")), expected.max(axis=(2, 3)))
    assert np.array_equal(found[:, ::-1, 1:, 0], expected[:, ::-1, 1:, 0])
    assert np.array_equal(found.isel(column=[2, 0]), expected[..., [2, 0]])
    assert np.array_equal(found.transpose("column", "step", "row", "rank"), expected.transpose(3, 0, 2, 1))
    assert np.array_equal(found.expand_dims("new").isel(row=-1), expected[None, :, :, -1])


@LAZY
def test_entries_as_an_axis(grid: msformat.Dump, lazy: bool) -> None:
    found = grid.to_xarray("Module.b.*", "output.0", lazy=lazy)
    assert found.dims == ("step", "rank", "entry", "dim_0", "dim_1")
    assert found.entry.values.tolist() == list(KEYS[1:])
    assert np.array_equal(found.sel(step=3, rank=2, entry=KEYS[2]), _values(3, 2, KEYS[2]))


@LAZY
def test_one_unit(grid: msformat.Dump, lazy: bool) -> None:
    one = grid[3, 10].to_xarray(KEYS[0], lazy=lazy)
    assert one.dims == ("dim_0", "dim_1")
    assert (int(one.step), int(one["rank"])) == (3, 10)
    assert np.array_equal(one, _values(3, 10, KEYS[0]))
    many = grid[3, 10].to_xarray("Module.*.forward.0", lazy=lazy)
    assert many.dims == ("entry", "dim_0", "dim_1")
    assert many.entry.values.tolist() == list(KEYS[:2])
    assert np.array_equal(many[1], _values(3, 10, KEYS[1]))


def test_only_some_units(grid: msformat.Dump) -> None:
    found = grid.to_xarray(KEYS[0], steps=[3], ranks=["rank10"])
    assert dict(found.sizes) == {"step": 1, "rank": 1, "dim_0": 2, "dim_1": 3}
    assert grid.to_xarray(KEYS[0], ranks=[2])["rank"].values.tolist() == [2]
    for wrong, message in ({"steps": [1]}, "step 1"), ({"ranks": [3]}, "rank 3"), ({"branch": "graph"}, "branch graph"):
        with pytest.raises(msformat.UnitNotFoundError, match=message):
            grid.to_xarray(KEYS[0], **wrong)  # type: ignore[arg-type]


def test_nothing_is_read_before_it_is_asked_for(grid: msformat.Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, Any]] = []
    numpy = msformat.Tensor.numpy

    def noted(tensor: msformat.Tensor, selection: Any = ...) -> NDArray[Any]:
        read.append((tensor.entry.unit.label, selection))
        return numpy(tensor, selection)

    monkeypatch.setattr(msformat.Tensor, "numpy", noted)
    found = grid.to_xarray(KEYS[0])
    assert read == []
    found.sel(step=3, rank=2).isel(dim_0=1).compute()
    assert [unit for unit, _ in read] == ["step3/rank2"]


def test_large_tensors_are_read_in_parts(grid: msformat.Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xarrays, "_CHUNK", 8)
    found = grid.to_xarray(KEYS[0])
    assert max(found.chunksizes["dim_0"]) * max(found.chunksizes["dim_1"]) <= 2
    assert np.array_equal(found.sel(step=3, rank=10), _values(3, 10, KEYS[0]))


def test_a_lazy_array_goes_to_other_processes(grid: msformat.Dump) -> None:
    found = pickle.loads(pickle.dumps(grid.to_xarray(KEYS[0])))
    assert np.array_equal(found.sel(step=0, rank=2), _values(0, 2, KEYS[0]))


@LAZY
def test_every_store(stored: Path, lazy: bool) -> None:
    unit = msformat.open(stored)[0]
    found = unit.to_xarray(RELU, "input_args.0", lazy=lazy)
    assert np.array_equal(found, VALUES)
    assert np.array_equal(found[1, ::2], VALUES[1, ::2])


# --- what does not fit together --------------------------------------------------------------------------------------


def test_another_shape_is_named_with_its_unit(grid: msformat.Dump, tmp_path: Path) -> None:
    _unit(tmp_path / "d", 3, 2, make=lambda *where: _values(*where, shape=(2, 4)))
    with pytest.raises(msformat.FormatError) as caught:
        msformat.open(tmp_path / "d").to_xarray(KEYS[0])
    assert "shapes differ: step3/rank2 has [2, 4]; 3 others have [2, 3]" in str(caught.value)


def test_another_element_type_is_named_with_its_unit(grid: msformat.Dump, tmp_path: Path) -> None:
    _unit(tmp_path / "d", 0, 10, make=lambda *where: _values(*where).astype(np.float16))
    with pytest.raises(msformat.FormatError, match="element types differ: step0/rank10 has float16; 3 others have"):
        msformat.open(tmp_path / "d").to_xarray(KEYS[0])


@LAZY
def test_a_hole_is_an_error_or_filled(grid: msformat.Dump, tmp_path: Path, lazy: bool) -> None:
    _unit(tmp_path / "d", 3, 10, keys=KEYS[1:])
    dump = msformat.open(tmp_path / "d")
    with pytest.raises(msformat.FormatError, match=r"step 3, rank 10: .*no entry 'Module.a.Linear.forward.0'"):
        dump.to_xarray(KEYS[0])
    found = dump.to_xarray(KEYS[0], fill_value=np.nan, lazy=lazy)
    assert np.isnan(found.sel(step=3, rank=10)).all()
    assert np.array_equal(found.sel(step=0, rank=10), _values(0, 10, KEYS[0]))
    with pytest.raises(msformat.FormatError, match=f"step 3, rank 10, entry {KEYS[0]}"):
        dump.to_xarray("Module.*")


def test_a_unit_that_is_not_there_is_a_hole(tmp_path: Path) -> None:
    for step, rank in ((0, 0), (0, 1), (1, 0)):
        _unit(tmp_path, step, rank)
    with pytest.raises(msformat.FormatError, match="step 1, rank 1: no such unit"):
        msformat.open(tmp_path).to_xarray(KEYS[0])


def test_a_fill_value_must_be_one(tmp_path: Path) -> None:
    for step, rank in ((0, 0), (0, 1), (1, 0)):
        _unit(tmp_path, step, rank, make=lambda *where: np.full(3, 7, np.int32))
    dump = msformat.open(tmp_path)
    with pytest.raises(msformat.FormatError, match="fill_value nan is no value of int32"):
        dump.to_xarray(KEYS[0], fill_value=np.nan)
    assert dump.to_xarray(KEYS[0], fill_value=-1).values[1, 1].tolist() == [-1, -1, -1]


def test_ranks_of_a_pipeline(tmp_path: Path) -> None:
    """Each rank has layers of its own: the others are no holes, but they are named."""
    for step in (0, 1):
        _unit(tmp_path, step, 0, keys=KEYS[:1])
        _unit(tmp_path, step, 1, keys=KEYS[1:])
    dump = msformat.open(tmp_path)
    with pytest.warns(UserWarning, match="left out: .*step0/rank0: no entry .*step1/rank0: no entry"):
        found = dump.to_xarray(KEYS[1])
    assert found["rank"].values.tolist() == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dump.to_xarray(KEYS[1], ranks=[1])


def test_a_broken_unit_is_left_out_by_name(grid: msformat.Dump, tmp_path: Path) -> None:
    for rank in (2, 10):
        (tmp_path / "d" / "step3" / f"rank{rank}" / "dump.json").write_text("oops")
    with pytest.warns(UserWarning, match="left out: .*step3/rank2.*step3/rank10"):
        found = msformat.open(tmp_path / "d").to_xarray(KEYS[0])
    assert found.step.values.tolist() == [0]


def test_what_is_not_there(grid: msformat.Dump) -> None:
    with pytest.raises(msformat.EntryNotFoundError, match=r"near matches: 'Module.a.Linear.forward.0'"):
        grid.to_xarray("Module.a.Linear.forward.7")
    with pytest.raises(msformat.EntryNotFoundError, match="no key matches"):
        grid.to_xarray("Functional.*")
    with pytest.raises(msformat.EntryNotFoundError, match="no entry that matches has such a tensor"):
        grid.to_xarray("Module.*", "input_args.0")
    with pytest.raises(msformat.TensorNotFoundError, match=r"no tensor 'output.1': .* has 'output.0'"):
        grid.to_xarray(KEYS[0], "output.1")
    with pytest.raises(msformat.FormatError, match="1 names in dims for shape"):
        grid.to_xarray(KEYS[0], dims=["row"])
    with pytest.raises(msformat.FormatError, match="not all different"):
        grid.to_xarray(KEYS[0], dims=["row", "step"])


def test_several_outputs_want_a_choice(tmp_path: Path) -> None:
    data = entries()
    data[RELU]["output"] *= 2
    unit = write_unit(tmp_path / "step0" / "rank0", data)
    write_tensor(unit, X, VALUES)
    dump = msformat.open(tmp_path)
    with pytest.raises(msformat.TensorNotFoundError, match=r"'input_args.0'; 'output.0'; 'output.1'"):
        dump.to_xarray(RELU)


def test_without_values_the_reason_is_given(golden: Callable[[str], Path]) -> None:
    dump = msformat.open(golden("torch_8.1.0_mix_md5"))
    key = next(key for key in dump[0] if key.startswith("Functional.layer_norm"))
    with pytest.raises(msformat.TensorNotFoundError, match="saved no data of it"):
        dump.to_xarray(key)


def test_what_cannot_fit_is_refused(grid: msformat.Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "memory", lambda: 4 * 2 * 3 * 4 - 1)
    with pytest.raises(msformat.StoreError, match=r"96 bytes do not fit.*95 bytes"):
        grid.to_xarray(KEYS[0], lazy=False)
    assert grid.to_xarray(KEYS[0], lazy=True).nbytes == 96


# --- units of other names --------------------------------------------------------------------------------------------


def test_single_processes_and_branches(tmp_path: Path) -> None:
    for branch in ("graph", "pynative"):
        unit = write_unit(tmp_path / branch / "step0" / "rank", entries())
        write_tensor(unit, X, VALUES)
    dump = msformat.open(tmp_path)
    with pytest.raises(msformat.FormatError, match="branches graph, pynative: say branch="):
        dump.to_xarray(RELU, "input_args.0")
    found = dump.to_xarray(RELU, "input_args.0", branch="graph")
    assert found["rank"].values.tolist() == ["rank"]


def test_saved_variables_of_1_2_2_have_no_step(golden: Callable[[str], Path]) -> None:
    root = golden("torch_1.2.2_debug_tensor")
    dump = msformat.open(root)
    tensor = next(tensor for tensor in dump[None].tensors() if tensor.has_data)
    place = ".".join(filter(None, (tensor.slot, *tensor.keys)))
    found = dump.to_xarray(tensor.entry.key, place)
    assert found.dims[0] == "rank"
    expected = torch.load(next(root.rglob(str(tensor.data_name))), weights_only=True).detach()
    assert np.array_equal(found[0], expected.float().numpy() if expected.dtype == torch.bfloat16 else expected.numpy())


# --- element types ---------------------------------------------------------------------------------------------------


def _torch_unit(root: Path, tensor: Any, step: int = 0) -> None:
    name = f"{RELU}.output.0.pt"
    meta = {"type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape), "data_name": name}
    unit = write_unit(root / f"step{step}" / "rank0", {RELU: {"input_args": [], "output": [meta]}})
    (unit / "dump_tensor_data").mkdir()
    torch.save(tensor, unit / "dump_tensor_data" / name)


@LAZY
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_numpy_lacks_is_kept_or_widened(tmp_path: Path, name: str, lazy: bool) -> None:
    """Every code of the type, its NaNs and -0.0 included."""
    dtype = torch_type(name, in_files=True)
    width = torch.int16 if dtype.itemsize == 2 else torch.uint8
    codes = torch.arange(0, 256).to(width) if dtype.itemsize == 1 else torch.arange(-(2**15), 2**15).to(width)
    tensor = codes.view(dtype)
    _torch_unit(tmp_path, tensor)
    dump = msformat.open(tmp_path)
    kept = dump.to_xarray(RELU, lazy=lazy).values[0, 0]
    assert kept.dtype == getattr(ml_dtypes, name)
    assert kept.tobytes() == codes.numpy().tobytes()
    wide = dump.to_xarray(RELU, widen=True, lazy=lazy).values[0, 0]
    assert wide.dtype == np.float32
    assert np.array_equal(wide, tensor.float().numpy(), equal_nan=True)
    assert np.array_equal(np.signbit(wide), torch.signbit(tensor.float()).numpy())


def test_widening_makes_one_type_of_two(tmp_path: Path) -> None:
    _torch_unit(tmp_path, torch.tensor([1.5, -2.0], dtype=torch.bfloat16), step=0)
    _torch_unit(tmp_path, torch.tensor([1.1, -2.1]), step=1)
    dump = msformat.open(tmp_path)
    with pytest.raises(msformat.FormatError, match=r"element types differ.*widen=True"):
        dump.to_xarray(RELU)
    found = dump.to_xarray(RELU, widen=True)
    assert np.array_equal(found[:, 0], np.array([[1.5, -2.0], [1.1, -2.1]], np.float32))
    assert found.attrs["dtype"] == "torch.bfloat16, torch.float32"


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_type_without_numbers_cannot_be_widened(tmp_path: Path) -> None:
    _torch_unit(tmp_path, torch.zeros(2, dtype=torch_type("complex32", in_files=True)))
    with pytest.raises(msformat.DTypeError, match="complex32"):
        msformat.open(tmp_path).to_xarray(RELU, widen=True)


@LAZY
@pytest.mark.filterwarnings("ignore:.*left float32")
def test_bfloat16_of_mindspore(tmp_path: Path, lazy: bool) -> None:
    """Its dumps keep it as float32: bfloat16 again where that is exact, refused where it is not."""
    exact, more = np.array([1.5, -0.0, np.inf], np.float32), np.array([1.1, 2.0, 3.0], np.float32)
    for step, values in enumerate((exact, more)):
        meta = {**record(values, f"{RELU}.output.0.npy"), "dtype": "BFloat16"}
        unit = write_unit(tmp_path / f"step{step}" / "rank0", {RELU: {"input_args": [], "output": [meta]}})
        write_tensor(unit, f"{RELU}.output.0.npy", values)
    dump = msformat.open(tmp_path)
    good = dump.to_xarray(RELU, steps=[0], lazy=lazy)
    assert good.dtype == ml_dtypes.bfloat16
    assert np.array_equal(good.values[0, 0].view(np.uint16), exact.view(np.uint32) >> 16)
    with pytest.raises(msformat.FormatError, match="widen=True takes them as they are"):
        _ = dump.to_xarray(RELU, lazy=lazy).values
    assert np.array_equal(dump.to_xarray(RELU, widen=True, lazy=lazy).values[1, 0], more)


@LAZY
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_no_axes_and_no_elements(tmp_path: Path, shape: tuple[int, ...], lazy: bool) -> None:
    for step in (0, 1):
        _torch_unit(tmp_path, torch.full(shape, float(step)), step=step)
    found = msformat.open(tmp_path).to_xarray(RELU, lazy=lazy)
    assert found.shape == (2, 1, *shape)
    assert found.values.tolist() == np.stack([np.full((1, *shape), float(step)) for step in (0, 1)]).tolist()


@pytest.mark.parametrize("name", ["torch_8.1.0_mix_tensor", "torch_26.2.0_L0_tensor"])
def test_real_tensors(golden: Callable[[str], Path], name: str) -> None:
    root = golden(name)
    unit = msformat.open(root)[0]
    seen = 0
    for entry in list(unit.values())[::7]:
        for tensor in entry.tensors:
            path = root / unit.key.path / "dump_tensor_data" / str(tensor.data_name)
            place = ".".join(filter(None, (tensor.slot, *tensor.keys)))
            if not path.exists():
                continue
            found = unit.to_xarray(entry.key, place, widen=True)
            expected = torch.load(path, weights_only=True).detach()
            expected = expected.float() if expected.dtype == torch.bfloat16 else expected
            assert np.array_equal(found, expected.numpy())
            seen += 1
    assert seen > 10


# --- libraries that may be missing -----------------------------------------------------------------------------------


def test_missing_libraries_are_named_with_their_extras(grid: msformat.Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with pytest.raises(msformat.BackendMissingError, match=r"to_xarray\(lazy=True\) needs dask.*msformat\[dask\]"):
        grid.to_xarray(KEYS[0], lazy=True)
    assert grid.to_xarray(KEYS[0]).chunks is None
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(msformat.BackendMissingError, match=r"needs xarray.*msformat\[xarray\]"):
        grid.to_xarray(KEYS[0])
