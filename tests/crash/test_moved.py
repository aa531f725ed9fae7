"""Directories that are removed, moved or renamed under a writer or a reader: said by name, and nothing is made up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import msformat
from msformat import DumpWriter, MsformatError, StoreError, dtype_named
from msformat.convert import ConvertOptions, convert
from msformat.convert_unit import UnitReport
from tests.crash.workload import BACKENDS, HEADER
from tests.small_dumps import temporaries, tree_bytes, write_tree, write_unit

FLOAT32 = dtype_named("float32")


def values(number: int) -> NDArray[np.float32]:
    """Large enough that no store puts it together with others."""
    return np.random.default_rng(number).standard_normal(1 << 16, dtype=np.float32)


def put(writer: DumpWriter, number: int, *, tensor: bool = True) -> None:
    key = f"x.{number}.debug"
    record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1 << 16]}
    if tensor:
        writer.put_tensor(f"{key}.npy", values(number), FLOAT32)
        record["data_name"] = f"{key}.npy"
    writer.put_entry(key, record)


def promise(writer: DumpWriter, number: int, *, tensor: bool) -> None:
    put(writer, number, tensor=tensor)
    writer.commit()


# --- while writing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["commit", "finish", "statistics"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_unit_that_is_removed_while_it_is_written(tmp_path: Path, backend: str, how: str) -> None:
    unit, tensor = tmp_path / "d/step0/rank", how != "statistics"
    writer = DumpWriter(unit, HEADER, backend=backend, document="debug.json")
    promise(writer, 0, tensor=tensor)
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(StoreError, match=r"d/step0/rank"):
        writer.finish() if how == "finish" else promise(writer, 1, tensor=tensor)
    with pytest.raises(StoreError, match="cannot be written any more"):
        writer.finish()
    writer.close()
    # Nothing that would look like a dump was made again.
    assert not tree_bytes(tmp_path)


@pytest.mark.parametrize("how", ["commit", "finish"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_unit_that_is_moved_while_it_is_written(tmp_path: Path, backend: str, how: str) -> None:
    unit = tmp_path / "d/step0/rank"
    writer = DumpWriter(unit, HEADER, backend=backend, document="debug.json")
    promise(writer, 0, tensor=True)
    os.rename(tmp_path / "d", tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"d/step0/rank"):
        writer.finish() if how == "finish" else promise(writer, 1, tensor=True)
    writer.close()
    assert not (tmp_path / "d").exists()
    with msformat.open(tmp_path / "elsewhere") as dump:
        assert not dump[0].complete
        np.testing.assert_array_equal(dump[0]["x.0.debug"].value.numpy(), values(0))
    (report,) = msformat.recover_dump(tmp_path / "elsewhere").units
    assert report.is_whole


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dump_that_is_removed_between_steps(tmp_path: Path, backend: str) -> None:
    """The next step makes its directories anew."""
    for step in range(2):
        with DumpWriter(tmp_path / f"d/step{step}/rank", HEADER, backend=backend, document="debug.json") as writer:
            put(writer, step)
        if step == 0:
            shutil.rmtree(tmp_path / "d")
    with msformat.open(tmp_path / "d") as dump:
        (unit,) = dump
        assert (unit.key.path, unit.complete) == ("step1/rank", True)
        np.testing.assert_array_equal(unit["x.1.debug"].value.numpy(), values(1))


@pytest.mark.parametrize("target", ["files", "hdf5", "zarr", "out.h5", "out.zarr"])
def test_a_destination_that_is_removed_while_converting(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msformat.convert_unit as module

    source = write_tree(tmp_path / "src")
    place = tmp_path / "place"
    place.mkdir()
    work, removed = module.write_store, []

    def removing(*arguments: object) -> UnitReport:
        report: UnitReport = work(*arguments)  # type: ignore[arg-type]
        if not removed:
            removed.append(shutil.rmtree(place))
        return report

    monkeypatch.setattr(module, "write_store", removing)
    single = "." in target
    destination = place / (target if single else "out")
    options = ConvertOptions(to=None if single else target)
    if single:
        with pytest.raises((MsformatError, OSError), match="place"):
            convert(source, destination, options)
        assert not tree_bytes(place)
    else:
        report = convert(source, destination, options)
        assert [unit.failed for unit in report.units] == [True, False]
        assert "place" in report.units[0].problems[0]
        assert msformat.verify_dump(destination).exit_code == 0
    assert not temporaries(tmp_path)
    assert convert(source, destination, ConvertOptions(to=options.to, resume=True)).exit_code == 0
    assert msformat.verify_dump(destination).exit_code == 0


@pytest.mark.parametrize("target", ["out", "out.h5", "out.zarr"])
def test_a_source_that_is_removed_while_it_is_converted(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before is converted; the rest is named."""
    import msformat.convert_unit as module

    source = write_tree(tmp_path / "src")
    work = module.plan_job

    def removing(*arguments: object) -> object:
        plan = work(*arguments)  # type: ignore[arg-type]
        shutil.rmtree(source / "step1", ignore_errors=True)
        return plan

    monkeypatch.setattr(module, "plan_job", removing)
    report = convert(source, tmp_path / target)
    assert report.exit_code == 1
    first, second = report.units
    assert (first.failed, first.problems) == (False, [])
    assert "step1" in second.problems[0] or "no tensor" in second.problems[0]
    with msformat.open(tmp_path / target) as dump:
        assert len(dump[0]) == 3
    assert not temporaries(tmp_path)


# --- while reading ---------------------------------------------------------------------------------------------------


def rename(root: Path) -> None:
    os.rename(root, root.with_name("renamed"))


@pytest.fixture(params=["files", "hdf5", "zarr"])
def dump(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    arrays = {f"x.{number}.forward": values(number) for number in range(3)}
    source = write_unit(tmp_path / "src/step0/rank", arrays).parents[1]
    backend: str = request.param
    assert convert(source, tmp_path / "d", ConvertOptions(to=backend)).exit_code == 0
    return tmp_path / "d"


@pytest.mark.parametrize("away", [rename, shutil.rmtree])
def test_a_dump_that_goes_away_while_it_is_read(dump: Path, away: Callable[[Path], None]) -> None:
    """What is open is read on; what is opened then says what is missing, and never gives other values."""
    with msformat.open(dump) as opened:
        unit = opened[0]
        held = unit["x.0.forward"].outputs[0]
        np.testing.assert_array_equal(held.numpy(), values(0))
        away(dump)
        assert list(unit) == [f"x.{number}.forward" for number in range(3)]
        for number in range(3):
            tensor = unit[f"x.{number}.forward"].outputs[0]
            assert tensor.shape == (1 << 16,)
            try:
                found = tensor.numpy()
            except MsformatError as error:
                assert f"x.{number}.forward" in str(error)  # noqa: PT017 (either it is read, or it is named)
            else:
                np.testing.assert_array_equal(found, values(number))
    with pytest.raises(StoreError, match=dump.name):
        msformat.open(dump)


def test_hdf5_is_read_on_where_it_was_opened(tmp_path: Path) -> None:
    """One file, one handle: all of it stays readable."""
    source = write_unit(tmp_path / "src/step0/rank", {"x.0.forward": values(0), "x.1.forward": values(1)}).parents[1]
    convert(source, tmp_path / "d.h5")
    with msformat.open(tmp_path / "d.h5") as opened:
        np.testing.assert_array_equal(opened[0]["x.0.forward"].outputs[0].numpy(), values(0))
        (tmp_path / "d.h5").unlink()
        np.testing.assert_array_equal(opened[0]["x.1.forward"].outputs[0].numpy(), values(1))


def test_a_large_file_is_read_on_where_it_was_mapped(tmp_path: Path) -> None:
    large = np.arange(1 << 21, dtype=np.float32)
    source = write_unit(tmp_path / "src/step0/rank", {"x.0.forward": large}).parents[1]
    with msformat.open(source) as opened:
        view = opened[0]["x.0.forward"].outputs[0].numpy()
        shutil.rmtree(source)
        np.testing.assert_array_equal(view, large)
