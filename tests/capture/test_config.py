"""Configurations: those of the peer work as they are, and a mistake is named with the file and the key."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.config import CaptureConfig, DataMode, StorageConfig, load_config, reread_enable
from capture.errors import CaptureError
from msformat import MsformatError

# The files that msprobe 8.1.0 and 26.2.0 bring along, as they are.
PEER_8 = """{
    "task": "statistics",
    "dump_path": "./dump_path", 
    "rank": [],  
    "step": [],  
    "level": "L1", 
    "enable_dataloader": false,
    "async_dump": false,
    "tensor": {"scope": [], "list":[], "data_mode": ["all"], "file_format": "npy"},
    "statistics": {"scope": [], "list":[], "data_mode": ["all"], "summary_mode": "statistics"},
    "overflow_check": {"overflow_nums": 1, "check_mode":"all"},
    "run_ut": {"white_list": [], "black_list": [], "error_data_path": "./"},
    "grad_probe": {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]},
    "free_benchmark": {
        "scope": [], "list": [], "fuzz_device": "npu", "pert_mode": "improve_precision", "handler_type": "check",
        "fuzz_level": "L1", "fuzz_stage": "forward", "if_preheat": false, "preheat_step": 15, "max_sample": 20
    }
}"""  # noqa: W291
PEER_26 = """{
    "task": "statistics", "dump_path": "./dump_path", "rank": [], "step": [], "level": "L1", "extra_info": true,
    "async_dump": false,
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"}
}"""


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Load what is given as text, as an object, or as keys of one; ``statistics`` is the section in use."""

    def load(document: Any = None, /, arguments: dict[str, Any] | None = None, **keys: Any) -> CaptureConfig:
        path = tmp_path / "config.json"
        text = document if isinstance(document, str) else json.dumps(document or {"dump_path": "out", **keys})
        path.write_text(text, "utf-8")
        return load_config(path, **(arguments or {}))

    return load


# --- what works ------------------------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    found = load_config(dump_path=tmp_path)
    assert (found.task, found.level, found.dump_path) == ("statistics", "L1", str(tmp_path))
    assert (found.steps, found.ranks, found.scope, found.list, found.tensor_list) == (None, None, (), (), ())
    assert found.data_mode == DataMode(forward=True, backward=True, input=True, output=True)
    assert (found.summary_mode, found.md5, found.precision, found.risk_level) == ("statistics", False, "high", "ALL")
    assert (found.extra_info, found.dump_enable, found.on_error) == (True, None, "continue")
    assert found.storage == StorageConfig("files", "auto", links=True, durability="fsync", overwrite=False)
    assert 1 << 23 <= found.max_queue_bytes <= 1 << 30
    assert (found.framework, found.config_path, found.notes) == ("pytorch", None, ())


@pytest.mark.parametrize("text", [PEER_8, PEER_26])
@pytest.mark.parametrize("task", [None, "tensor", "statistics"])
def test_the_peers_own_file_works_as_it_is(config: Any, text: str, task: str | None) -> None:
    found = config(text, {"task": task})
    plain = load_config(dump_path="dump_path", task=task)
    assert found == dataclasses.replace(plain, config_path=found.config_path)
    assert (found.task, found.level, found.dump_path) == (task or "statistics", "L1", os.path.abspath("dump_path"))


def test_arguments_win_over_the_file(config: Any, tmp_path: Path) -> None:
    section = {"list": ["relu"], "summary_mode": "md5"}
    found = config(
        {"task": "statistics", "dump_path": "a", "level": "L0", "step": [1], "statistics": section, "tensor": {}},
        {"dump_path": tmp_path / "b", "level": "mix", "step": [2, "4-5"], "list": ["gelu"]},
    )
    assert (found.dump_path, found.level, found.list) == (str(tmp_path / "b"), "mix", ("gelu",))
    assert found.steps == {2, 4, 5}
    assert found.md5
    assert config({"dump_path": "a", "step": [1]}, {"step": []}).steps is None
    assert config({"dump_path": "a", "step": [1]}, {"step": None}).steps == {1}


@pytest.mark.parametrize("steps", [range(2, 4), {2, 3}, frozenset({2, 3}), (np.int64(2), np.int8(3)), [2, "3"]])
def test_steps_of_python_s_own_kinds(tmp_path: Path, steps: Any) -> None:
    assert load_config(dump_path=tmp_path, step=steps).steps == {2, 3}


@pytest.mark.parametrize("steps", [np.arange(3), np.array([]), np.float64(1), np.bool_(True), iter([1]), b"1"])
def test_what_is_no_step_is_named(tmp_path: Path, steps: Any) -> None:
    with pytest.raises(CaptureError, match="step: "):
        load_config(dump_path=tmp_path, step=steps)


@pytest.mark.parametrize("place", ["a\0b", "\ud800", " ", b"x", 5])
def test_what_is_no_path_is_named(tmp_path: Path, place: Any) -> None:
    with pytest.raises(CaptureError, match=r"dump_path: .* is no path"):
        load_config(dump_path=place)


def test_the_task_of_the_argument_chooses_the_section(config: Any) -> None:
    document = {"dump_path": "a", "statistics": {"list": ["a"], "nonsense": 1}, "tensor": {"list": ["b"]}}
    assert config(document, {"task": "tensor"}).list == ("b",)


def test_the_dump_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = load_config(dump_path="here/dump")
    monkeypatch.chdir("/")
    assert found.dump_path == str(tmp_path / "here" / "dump")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], None), ([0], {0}), (0, {0}), ("0", {0}), ("1-3", {1, 2, 3}), ([1, "4-6", "9"], {1, 4, 5, 6, 9}),
        ([" 2 - 3 "], {2, 3}), (["7-7", 7], {7}), ("1000000", {1_000_000}),
    ],
)  # fmt: skip
def test_steps_and_ranks(config: Any, value: Any, expected: set[int] | None) -> None:
    found = config(step=value, rank=value)
    assert found.steps == expected
    assert found.ranks == expected


@pytest.mark.parametrize(
    ("mode", "forward", "backward", "inputs", "outputs"),
    [
        (["all"], True, True, True, True),
        ([], True, True, True, True),
        (["forward"], True, False, True, True),
        (["output"], True, True, False, True),
        (["forward", "input"], True, False, True, False),
        (["backward", "input", "output"], False, True, True, True),
        (["forward", "backward", "input", "output"], True, True, True, True),
    ],
)
def test_data_mode(config: Any, mode: list[str], forward: bool, backward: bool, inputs: bool, outputs: bool) -> None:
    found = config(statistics={"data_mode": mode}).data_mode
    assert (found.forward, found.backward, found.input, found.output) == (forward, backward, inputs, outputs)


def test_async_tensor_without_a_list_is_allowed(config: Any) -> None:
    assert config(task="tensor", async_dump=True).async_dump
    assert config(async_dump=True, statistics={"summary_mode": "md5"}).async_dump


def test_keys_of_26(config: Any) -> None:
    found = config(extra_info=False, dump_enable=False, precision="low", risk_level="FOCUS")
    assert (found.extra_info, found.dump_enable, found.precision, found.risk_level) == (False, False, "low", "FOCUS")


def test_precision_may_stand_in_either_place(config: Any) -> None:
    assert config(statistics={"precision": "low"}).precision == "low"
    assert config(precision="low", statistics={"precision": "low"}).precision == "low"
    with pytest.raises(CaptureError, match=r"precision: 'high', but 'low' beside the task"):
        config(precision="low", statistics={"precision": "high"})


@pytest.mark.parametrize(("value", "expected"), [(1, 1), ("512 MB", 512_000_000), ("2GiB", 2 << 30), ("1.5k", 1500)])
def test_queue_size(config: Any, value: Any, expected: int) -> None:
    assert config(max_queue_bytes=value).max_queue_bytes == expected


@pytest.mark.parametrize("format_", ["hdf5", "zarr"])
def test_storage(config: Any, format_: str) -> None:
    chosen = {"format": format_, "compression": "gzip:4", "links": False, "durability": "process", "overwrite": True}
    assert config(storage=chosen).storage == StorageConfig(format_, "gzip:4", False, "process", True)
    assert load_config(dump_path="x", storage={"format": format_}).storage.format == format_


def test_structure_needs_the_tree(config: Any) -> None:
    assert config(task="structure").level == "mix"
    assert config(task="structure", level="L0").level == "L0"
    found = config(task="structure", level="L1")
    assert found.level == "mix"
    assert len(found.notes) == 1


def test_filters_have_no_effect_at_level_debug(config: Any) -> None:
    section = {"scope": ["a", "b"], "list": ["c"], "tensor_list": ["d"], "data_mode": ["forward"]}
    found = config(level="debug", statistics=section)
    assert (found.scope, found.list, found.tensor_list, found.data_mode) == ((), (), (), DataMode())
    for key, note in zip(section, found.notes, strict=True):
        assert f"config.json: statistics: {key}: has no effect at level debug" in note


def test_what_has_no_effect_is_noted(config: Any) -> None:
    found = config(custom_op_namespaces=["x"], risk_level="CORE", statistics={"device": "device", "list": ["relu"]})
    for key, note in zip(("custom_op_namespaces", "device", "risk_level"), found.notes, strict=True):
        assert f"config.json: {'statistics: ' if key == 'device' else ''}{key}: " in note
    assert config(task="tensor", tensor={"online_run_ut": False, "nfs_path": "", "host": "", "port": -1}).notes == ()


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"dump_path": "x"}', "utf-8-sig")
    assert load_config(path).config_path == str(path)


# --- what is refused, and how ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["step", "rank"])
@pytest.mark.parametrize(
    "value", [True, [True], [1.0], -1, ["-1"], "a", "3-", "6-4", "1-2-3", {}, [[1]], ["٣"], "0-9999999999", 1_000_001]
)
def test_numbers_refused(config: Any, key: str, value: Any) -> None:
    with pytest.raises(CaptureError, match=rf"config\.json: {key}: "):
        config({"dump_path": "x", key: value})


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ("run_ut", "accuracy checker"), ("overflow_check", "statistics"), ("free_benchmark", "msprobe"),
        ("grad_probe", "parameters"), ("acc_check", "accuracy checker"), ("nan_check", "statistics"),
        ("diff_check", "compare"), ("exception_dump", "tensor"),
    ],
)  # fmt: skip
def test_other_tools_are_refused_by_name(config: Any, task: str, hint: str) -> None:
    with pytest.raises(CaptureError, match=rf"config\.json: task: '{task}' is another tool.*{hint}"):
        config(task=task)
    with pytest.raises(CaptureError, match=f"arguments: task: '{task}' is another tool.*{hint}"):
        config({"dump_path": "x"}, {"task": task})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"dump_pth": "x"}, "config.json: dump_pth: no such key; did you mean 'dump_path'?"),
        ({"dump_path": "x", "Level": "L1"}, "Level: no such key; did you mean 'level'?"),
        ({"dump_path": "x", "statistic": {}}, "statistic: no such key; did you mean 'statistics'?"),
        ({"dump_path": "x", "zzz": 1}, "config.json: zzz: no such key"),
        ({"dump_path": "x", "listt": []}, "listt: no such key; did you mean 'list'?"),
        ({"dump_path": "x", "statistics": {"lst": []}}, "config.json: statistics: lst: no such key; did you mean"),
        ({"dump_path": "x", "list": ["relu"]}, "config.json: list: belongs in the object of the task"),
        ({"dump_path": "x", "statistics": {"step": [1]}}, "statistics: step: belongs beside the task"),
        ({"dump_path": "x", "statistics": []}, "config.json: statistics: [] is no object"),
        ({"dump_path": "x", "storage": "hdf5"}, "config.json: storage: 'hdf5' is no object"),
        ({"dump_path": "x", "storage": {"fmt": "zarr"}}, "config.json: storage: fmt: no such key; did you mean"),
        ({"dump_path": "x", "storage": {"format": "h5"}}, "storage: format: 'h5' is none of files, hdf5, zarr"),
        ({"dump_path": "x", "storage": {"compression": "gzip"}}, "storage: compression: 'gzip': files are never"),
        ({"dump_path": "x", "storage": {"format": "hdf5", "compression": "zip"}}, "compression 'zip': unknown"),
        ({"dump_path": "x", "task": "statistic"}, "task: 'statistic' is none of"),
        ({"dump_path": "x", "level": "l1"}, "level: 'l1' is none of L0, L1, L2, mix, debug; did you mean 'L1'?"),
        ({"dump_path": "x", "level": 1}, "level: 1 is none of"),
        ({"dump_path": 3}, "dump_path: 3 is no path"),
        ({"dump_path": ""}, "config.json: dump_path: is missing"),
        ({"task": "statistics"}, "config.json: dump_path: is missing"),
        ({"dump_path": "x", "async_dump": 1}, "async_dump: 1 is neither true nor false"),
        ({"dump_path": "x", "extra_info": "false"}, "extra_info: 'false' is neither"),
        ({"dump_path": "x", "dump_enable": 0}, "dump_enable: 0 is neither"),
        ({"dump_path": "x", "risk_level": "focus"}, "risk_level: 'focus' is none of"),
        ({"dump_path": "x", "precision": "medium"}, "precision: 'medium' is none of"),
        ({"dump_path": "x", "on_error": "ignore"}, "on_error: 'ignore' is none of"),
        ({"dump_path": "x", "max_queue_bytes": 0}, "max_queue_bytes: 0: at least one byte"),
        ({"dump_path": "x", "max_queue_bytes": "lots"}, "max_queue_bytes: 'lots' is no size"),
        ({"dump_path": "x", "max_queue_bytes": True}, "max_queue_bytes: True is no size"),
        ({"dump_path": "x", "enable_dataloader": True}, "enable_dataloader: is deprecated: call start()"),
        ({"dump_path": "x", "load": {"path": "y"}}, "load: replaces inputs"),
        ({"dump_path": "x", "statistics": {"summary_mode": "xor"}}, "summary_mode: 'xor' is not available; use md5"),
        ({"dump_path": "x", "statistics": {"summary_mode": ["max"]}}, "summary_mode: ['max'] is none of"),
        ({"dump_path": "x", "statistics": {"slice": [{"dim": 0}]}}, "statistics: slice: is not available"),
        ({"dump_path": "x", "statistics": {"online_run_ut": 0}}, "online_run_ut: is the online accuracy checker"),
        ({"dump_path": "x", "statistics": {"list": "relu"}}, "list: 'relu' is one text, a list of names is needed"),
        ({"dump_path": "x", "statistics": {"list": [1]}}, "list: 1 in the list is no name"),
        ({"dump_path": "x", "statistics": {"list": [""]}}, "list: '' in the list is no name"),
        ({"dump_path": "x", "statistics": {"list": {"a": 1}}}, "list: {'a': 1} is no list"),
        ({"dump_path": "x", "statistics": {"list": ["name-regex(a)"]}}, "list: 'name-regex(a)' is for graph mode"),
        ({"dump_path": "x", "statistics": {"data_mode": "forward"}}, "data_mode: 'forward' is one text"),
        ({"dump_path": "x", "statistics": {"data_mode": ["fwd"]}}, "data_mode: 'fwd' is none of"),
        ({"dump_path": "x", "statistics": {"data_mode": ["all", "input"]}}, "'all' stands alone"),
        ({"dump_path": "x", "task": "tensor", "tensor": {"tensor_list": ["a"]}}, "tensor_list: task tensor saves"),
        ({"dump_path": "x", "task": "structure", "level": "debug"}, "level: debug saves variables"),
        ({"dump_path": "x", "task": "structure", "structure": {"summary_mode": "md5"}}, "records no values"),
        ([1], "config.json: holds list, an object is needed"),
        ('{"dump_path": "x", "dump_path": "y"}', "config.json: dump_path: is written twice"),
        ('{"dump_path": "x", "statistics": {"list": [], "list": ["a"]}}', "list: is written twice"),
        ('{"dump_path": "x",}', "config.json: is no JSON"),
        ("[" * 100_000, "config.json: is no JSON"),
        ("", "config.json: is no JSON"),
    ],
)  # fmt: skip
def test_refused(config: Any, document: Any, message: str) -> None:
    with pytest.raises(CaptureError) as caught:
        config(document)
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)
    assert isinstance(caught.value, (MsformatError, ValueError))


@pytest.mark.parametrize(
    ("level", "scope", "message"),
    [
        ("L1", "Tensor.add.0.forward", "is one text"),
        ("L1", ["Tensor.add.0.forward"], "two different names"),
        ("L1", ["Tensor.add.0.forward"] * 2, "two different names"),
        ("L1", ["add", "relu"], "'add' is no full entry name"),
        ("L1", ["Tensor.add.0.forward", "Module.fc.Linear.forward.0"], "names no entry of level L1"),
        ("L1", ["Tensor.add.0.forward", "Module.fc.0.forward"], "is no full entry name"),
        ("L0", ["Tensor.add.0.forward", "Module.fc.Linear.forward.0"], "names no entry of level L0"),
        ("mix", ["Tensor.add.0.forward", "Module.fc.Linear"], "is no full entry name"),
        ("mix", ["Tensor.add.0.forward", "Module.fc.Linear.parameters_grad"], "is no full entry name"),
        ("mix", ["Tensor.add.0.forward", "x.0.debug"], "is no full entry name"),
    ],
)
def test_scope_refused(config: Any, level: str, scope: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=r"config\.json: statistics: scope: .*") as caught:
        config(level=level, statistics={"scope": scope})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("level", "scope"),
    [
        ("L1", ["Tensor.__mul__.0.forward", "Torch.linalg.norm.3.backward"]),
        ("L0", ["Module.0.fc.Linear.forward.0", "Cell.fc.Dense.backward.2"]),
        ("mix", ["Module.fc.Linear.forward.0", "Functional.relu.0.forward"]),
    ],
)
def test_scope(config: Any, level: str, scope: list[str]) -> None:
    assert config(level=level, statistics={"scope": scope}).scope == tuple(scope)


def test_arguments_are_checked_as_the_file_is(tmp_path: Path) -> None:
    for wrong, message in [
        ({}, "dump_path is missing"),
        ({"dump_path": tmp_path, "setp": 1}, "arguments: setp: no such key; did you mean 'step'?"),
        ({"dump_path": tmp_path, "step": True}, "arguments: step: True is no number"),
        ({"dump_path": tmp_path, "framework": "jax"}, "framework 'jax' is none of"),
        ({"dump_path": b"x"}, "arguments: dump_path: b'x' is no path"),
        ({"dump_path": tmp_path, "config_path": 3}, "config_path: 3 is no path"),
        ({"dump_path": tmp_path, "config_path": tmp_path / "no.json"}, "no.json: cannot be read: No such file"),
        ({"dump_path": tmp_path, "config_path": tmp_path}, "cannot be read"),
    ]:
        with pytest.raises(CaptureError) as caught:
            load_config(**wrong)  # type: ignore[arg-type]
        assert message in str(caught.value)


def test_a_missing_library_shows_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['h5py'] = None\nfrom capture.config import load_config\n"
        "load_config(dump_path='x', storage={'format': 'hdf5'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "CaptureError: the constructor's arguments: storage: " in done.stderr
    assert "pip install 'msformat[hdf5]'" in done.stderr


# --- the switch that is read again -----------------------------------------------------------------------------------


def test_the_switch_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def write(text: str) -> None:
        path.write_text(text)

    write('{"dump_enable": false}')
    assert reread_enable(path, True) is False
    write('{"dump_enable": true, "step": "nonsense is not looked at"}')
    assert reread_enable(path, True) is True
    write('{"dump_enable": fal')  # an editor is still writing
    assert reread_enable(path, True) is True
    write('{"dump_enable":  false}')
    assert reread_enable(str(path), True) is False
    write("{}")
    assert reread_enable(path, True) is False
    path.unlink()
    assert reread_enable(path, True) is False


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"dump_enable": true}')
    assert reread_enable(path, False) is True
    monkeypatch.setattr(Path, "read_text", lambda *_: pytest.fail("read again"))
    assert reread_enable(path, False) is True


def test_a_config_is_a_value(tmp_path: Path) -> None:
    first, second = load_config(dump_path=tmp_path, list=["a"]), load_config(dump_path=tmp_path, list=["a", "a"])
    assert first == second
    with pytest.raises(AttributeError):
        first.level = "L0"  # type: ignore[misc]


def test_a_number_of_thousands_of_digits_is_named_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"dump_path": "d", "dump_enable": true, "step": {"9" * 5000}}}', encoding="utf-8")
    with pytest.raises(CaptureError, match=r"config\.json: is no JSON"):
        load_config(path)
    assert reread_enable(path, True) is True


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    os.mkfifo(path)
    assert reread_enable(path, True) is True


def test_a_size_beyond_every_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"dump_path": "d", "max_queue_bytes": "{"9" * 400}"}}', encoding="utf-8")
    with pytest.raises(CaptureError, match=r"max_queue_bytes: .* is no size"):
        load_config(path)
