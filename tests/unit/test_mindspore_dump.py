"""Directories that MindSpore's TensorDump (save, save_grad) wrote, read as dumps without MindSpore. np.load judges."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.cli import main
from msformat.errors import FormatError, StoreError, TensorNotFoundError
from msformat.foreign import find_foreign
from msformat.foreign.mindspore_dump.names import parse_file_name, parse_file_names
from msformat.foreign.mindspore_dump.store import SaveDirectoryStore
from msformat.stores.strided import FileTensor


def save(directory: Path, **arrays: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    return directory


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """What a run of two steps leaves."""
    root = tmp_path / "saved"
    for step in (0, 1):
        save(
            root / f"step{step}" / "rank0",
            **{
                f"x_float32_{4 * step}": np.arange(6, dtype=np.float32).reshape(2, 3) + step,
                f"n.a.0_int64_{4 * step + 1}": np.array([1, -2]),
                f"b_bfloat16_{4 * step + 2}": np.array([1.5, -0.0, np.nan], np.float32),
                f"x_float32_{4 * step + 3}": np.float32(7),
            },
        )
    return root


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name", "number", "dtype", "mode", "node", "rank"),
    [
        ("x_float32_0.npy", "x", 0, "float32", None, None, None),
        ("add_in_float32_12.npy", "add", 12, "float32", "in", None, None),
        ("x_out_int8_3.npy", "x", 3, "int8", "out", None, None),
        ("x_1_2_float16_0.npy", "x_1_2", 0, "float16", None, None, None),
        ("float32_float32_1_float32_7.npy", "float32_float32_1", 7, "float32", None, None, None),
        ("n.b.1.0_bool_10.npy", "n.b.1.0", 10, "bool", None, None, None),
        ("z_grad_bfloat16_5.npy", "z_grad", 5, "bfloat16", None, None, None),
        ("w_float8_e4m3fn_1.npy", "w", 1, "float8_e4m3fn", None, None, None),
        ("in_float32_1.npy", "in", 1, "float32", None, None, None),
        ("_in_in_complex64_1.npy", "_in", 1, "complex64", "in", None, None),
        ("0_x.npy", "x", 0, None, None, None, None),
        ("17_x_1_2.npy", "x_1_2", 17, None, None, None, None),
        ("3_x_64_in_0.npy", "x", 3, None, "in", "64", 0),
        ("3_x_y_CNode64_all_7.npy", "x_y", 3, None, "all", "CNode64", 7),
        ("3_x_CNode_64_in_1.npy", "x", 3, None, "in", "CNode_64", 1),
        ("1_x_float32_2.npy", "1_x", 2, "float32", None, None, None),
    ],
)
def test_the_four_shapes(
    file: str, name: str, number: int, dtype: str | None, mode: str | None, node: str | None, rank: int | None
) -> None:
    found = parse_file_name(file)
    assert found is not None
    assert found == (file, name, number, dtype, mode, node, rank)


@pytest.mark.parametrize("file", ["x.npy", "x_float32.npy", "x_float33_1.npy", "_float32_1.npy", "x_float32_1.npz", ""])
def test_names_that_are_none(file: str) -> None:
    assert parse_file_name(file) is None


def test_the_directory_tells_old_from_new() -> None:
    """One release writes a directory: ``1_x_float32_2`` is what its neighbours are."""
    old, strangers = parse_file_names(["1_x_float32_2.npy", "0_y.npy", "notes.npy"])
    assert [(file.number, file.name) for file in old] == [(0, "y"), (1, "x_float32_2")]
    assert strangers == ["notes.npy"]
    new, _ = parse_file_names(["1_x_float32_2.npy", "y_float32_0.npy"])
    assert [(file.number, file.name) for file in new] == [(0, "y"), (2, "1_x")]


def test_an_input_slice_is_another_variable() -> None:
    found = parse_file_name("x_in_float32_1.npy")
    assert found is not None
    assert found.variable == "x_in"


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_save_directory_is_a_dump(saved: Path) -> None:
    with msformat.open(saved) as dump:
        assert [unit.path for unit in dump.units] == ["step0/rank0", "step1/rank0"]
        assert not dump.problems
        unit = dump[1, 0]
        assert (unit.header.framework, unit.header.task, unit.header.level) == ("mindspore", "tensor", "debug")
        assert (unit.backend, unit.complete) == ("mindspore_dump", True)
        assert list(unit) == ["x.0.debug", "n.a.0.0.debug", "b.0.debug", "x.1.debug"]
        (tensor,) = unit["x.0.debug"].tensors
        assert (tensor.dtype_name, tensor.shape, tensor.data_name) == ("Float32", (2, 3), "x_float32_4.npy")
        expected = np.load(saved / "step1/rank0/x_float32_4.npy")
        np.testing.assert_array_equal(tensor.numpy(), expected)
        np.testing.assert_array_equal(tensor[1, :2], expected[1, :2])
        assert unit["x.1.debug"].tensors[0].numpy() == np.float32(7)


def test_bfloat16_was_widened(saved: Path) -> None:
    (tensor,) = msformat.open(saved)[0]["b.0.debug"].tensors
    assert tensor.dtype_name == "BFloat16"
    # The high halves of float32: 1.5, -0.0 and numpy's NaN.
    assert tensor.bits().tolist() == [0x3FC0, 0x8000, 0x7FC0]


def test_nothing_is_read_for_a_list(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("values were read")

    monkeypatch.setattr(FileTensor, "_read", refuse)
    unit = msformat.open(saved)[0]
    assert [tensor.shape for tensor in unit.tensors()] == [(2, 3), (2,), (3,), ()]


def test_statistics_come_from_the_values(saved: Path) -> None:
    table = msformat.open(saved).table(filter="x.0")
    rows = list(table)
    assert [(row.Max, row.Min, row.Mean) for row in rows] == [(5.0, 0.0, 2.5), (6.0, 1.0, 3.5)]
    assert rows[0].Norm == pytest.approx(np.sqrt(55))


def test_old_names_tell_their_type_by_the_file(tmp_path: Path) -> None:
    save(tmp_path / "step0/rank3", **{"0_x": np.zeros(2, np.int16), "1_x_7_in_3": np.zeros(1, np.float16)})
    unit = msformat.open(tmp_path)[0, 3]
    assert [(t.entry.key, t.dtype_name) for t in unit.tensors()] == [
        ("x.0.debug", "Int16"),
        ("x_in.0.debug", "Float16"),
    ]


def test_a_plain_directory_of_tensordump(tmp_path: Path) -> None:
    """TensorDump writes where it is told to: there need be no step and no rank."""
    save(tmp_path / "out", x_float32_0=np.ones(2, np.float32))
    dump = msformat.open(tmp_path / "out")
    assert [unit.path for unit in dump.units] == ["rank"]
    assert len(dump[None]) == 1
    save(tmp_path / "out", scores=np.ones(2, np.float32))
    with pytest.raises(FormatError, match="no dump found"):
        msformat.open(tmp_path / "out")


def test_a_dump_is_preferred_to_arrays_beside_it(tmp_path: Path, saved: Path) -> None:
    unit = tmp_path / "saved/step0/rank1"
    save(unit / "dump_tensor_data")
    (unit / "dump.json").write_text('{"task": "tensor", "level": "L0", "framework": "mindspore", "data": {}}')
    save(unit, y_float32_9=np.ones(1, np.float32))
    dump = msformat.open(saved)
    assert dump[0, 1].backend == "files"
    assert dump[0, 0].backend == "mindspore_dump"


def test_searching_finds_dumps_of_ours_first(tmp_path: Path) -> None:
    save(tmp_path / "arrays", x_float32_0=np.ones(1))
    deep = tmp_path / "a/b/step0/rank"
    deep.mkdir(parents=True)
    (deep / "dump.json").write_text('{"task": "tensor", "level": "L0", "framework": "pytorch", "data": {}}')
    assert msformat.open(tmp_path)[0].backend == "files"
    (deep / "dump.json").unlink()
    assert msformat.open(tmp_path)[None].backend == "mindspore_dump"


def test_it_can_be_pickled_and_read_over_a_protocol(saved: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    unit = pickle.loads(pickle.dumps(msformat.open(saved)[0]))
    assert len(unit) == 4
    memory = fsspec.filesystem("memory")
    memory.put(str(saved), "/remote_saves", recursive=True)
    try:
        dump = msformat.open("memory://remote_saves")
        assert dump[1]["n.a.0.0.debug"].tensors[0].numpy().tolist() == [1, -2]
    finally:
        memory.rm("/remote_saves", recursive=True)


# --- converting and verifying ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["saved.h5", "saved.zarr", "as_files"])
def test_conversion_keeps_every_bit(saved: Path, tmp_path: Path, target: str) -> None:
    assert main(["convert", str(saved), str(tmp_path / target)]) == 0
    assert main(["verify", str(tmp_path / target)]) == 0
    before, after = msformat.open(saved), msformat.open(tmp_path / target)
    assert before.units == after.units
    for one, other in zip(before, after, strict=True):
        assert list(one) == list(other)
        for tensor in one.tensors():
            again = other.tensor(str(tensor.data_name))
            assert (again.dtype_name, again.shape) == (tensor.dtype_name, tensor.shape)
            assert again.bits().tobytes() == tensor.bits().tobytes()


def test_the_commands_take_it(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(saved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(unit["store"], unit["entries"], unit["tensors"]) for unit in found["units"]] == [
        ("mindspore_dump", 4, 4),
        ("mindspore_dump", 4, 4),
    ]
    assert main(["ls", str(saved), "--steps", "1"]) == 0
    assert "x.1.debug" in capsys.readouterr().out
    assert main(["show", str(saved), "x_float32_0.npy", "--steps", "0"]) == 0
    assert "7.416" in capsys.readouterr().out
    assert main(["verify", str(saved)]) == 0


def test_a_gradient_that_never_came(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = saved / "step1/rank0"
    save(unit, y_grad_float32_9=np.ones(1, np.float32))
    lines = ['{"name": "z"}', '{"name": "y"}', '{"name": "z"}', "torn", "[1]", '{"name": 3}', '{"name": "']
    (unit / "save_grad.jsonl").write_text("\n".join(lines))
    assert main(["verify", str(saved)]) == 1
    said = capsys.readouterr().err
    assert "entry 'z_grad.0.debug': save_grad was called (times: 2) and no gradient came" in said
    assert "write z = save_grad(" in said
    assert "y_grad" not in said
    # The converted dump says it, too.
    assert main(["convert", str(saved), str(tmp_path / "a.h5")]) == 0
    assert main(["verify", str(tmp_path / "a.h5")]) == 1
    assert "z_grad.0.debug" in capsys.readouterr().err


def test_a_file_cut_short_is_reported_and_the_rest_converted(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ended while TensorDump's thread was writing."""
    (saved / "step1/rank0/late_float32_8.npy").touch()
    whole = saved / "step1/rank0/x_float32_4.npy"
    whole.write_bytes(whole.read_bytes()[:-4])
    assert main(["verify", str(saved)]) == 1
    said = capsys.readouterr().err
    assert "late_float32_8.npy" in said
    assert "x_float32_4.npy" in said
    assert main(["convert", str(saved), str(tmp_path / "a.zarr")]) == 1
    assert "late_float32_8.npy' was skipped" in capsys.readouterr().err
    assert len(list(msformat.open(tmp_path / "a.zarr")[1].store.keys())) == 3


def test_a_type_that_the_name_does_not_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "step0/rank0", x_int32_0=np.ones(2, np.float32), b_bfloat16_1=np.array([0.1], np.float32))
    assert main(["verify", str(tmp_path)]) == 1
    assert "is float32, the document says Int32" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="left float32"):
        assert msformat.open(tmp_path)[0]["b.0.debug"].tensors[0].numpy().dtype == np.float32


# --- strangers -------------------------------------------------------------------------------------------------------


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    unit = tmp_path / "step0/rank0"
    save(unit, y_float32_1=np.ones(1, np.float32))
    np.save(unit / "x_float32_0.npy", np.array([print], object), allow_pickle=True)
    opened = msformat.open(tmp_path)[0]
    assert list(opened) == ["y.0.debug"]
    assert opened.orphans() == ("x_float32_0.npy",)
    with pytest.raises(FormatError, match="pickle"):
        opened.store.get("x_float32_0.npy")


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside = save(tmp_path / "outside", secret_float32_0=np.ones(1, np.float32))
    unit = save(tmp_path / "saved/step0/rank0", y_float32_1=np.ones(1, np.float32))
    (unit / "x_float32_0.npy").symlink_to(outside / "secret_float32_0.npy")
    dump = msformat.open(tmp_path / "saved")
    assert list(dump[0]) == ["y.0.debug"]
    assert any("leads outside" in problem for problem in dump.problems)
    for key in ("x_float32_0.npy", "../../../outside/secret_float32_0.npy", "/etc/passwd"):
        with pytest.raises(TensorNotFoundError):
            dump[0].store.get(key)


def test_it_is_never_written(saved: Path) -> None:
    unit = saved / "step0/rank0"
    with pytest.raises(StoreError, match="never written"):
        SaveDirectoryStore(str(unit), mode="a")
    with SaveDirectoryStore(str(unit)) as store, pytest.raises(StoreError, match="opened for reading"):
        store.put_document("dump.json", b"{}")
    before = sorted(path.name for path in unit.iterdir())
    main(["convert", str(saved), str(saved)])
    assert sorted(path.name for path in unit.iterdir()) == before


def test_other_places_are_none_of_it(tmp_path: Path) -> None:
    from msformat.filesystem import open_filesystem

    (tmp_path / "notes.txt").touch()
    fs = open_filesystem(str(tmp_path))
    assert list(find_foreign(fs, "", fs.list(""), msformat.UnitKey(0, "rank0"))) == []


def test_a_list_of_empty_lines_costs_seconds(tmp_path: Path) -> None:
    """64 MiB of them took minutes."""
    np.save(tmp_path / "x_float32_0.npy", np.zeros(3, np.float32))
    (tmp_path / "save_grad.jsonl").write_bytes(b'{"name": "y"}\n' + b"\n" * (63 << 20))
    began = time.process_time()
    (unit,) = msformat.open(tmp_path)
    assert list(unit) == ["x.0.debug", "y_grad.0.debug"]
    assert time.process_time() - began < 40
