"""What devices are told at level L2, judged by a file that msprobe 26.2.0 wrote, and what no kernel dump can follow."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from capture.config import load_config
from capture.errors import CaptureError
from capture.kernel.settings import acl_settings, graph_settings, kbyk_settings, write_settings
from capture.kernel.target import Target, parse_target

PEER = Path(__file__).parents[1] / "golden" / "data" / "mindspore_26.2.0_L2_graph.zip"
ALL_DEVICES = [0, 1, 2, 3, 4, 5, 6, 7]


def config(framework: str = "mindspore", /, **keys: Any) -> Any:
    return load_config(**{"dump_path": "/dump", "level": "L2", "framework": framework, **keys})


def common(**keys: Any) -> Any:
    return kbyk_settings(config(**keys))["common_dump_settings"]


# --- targets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Functional.linear.0.forward", Target("Functional.linear", 0, is_backward=False)),
        ("Mint.add.12.backward", Target("Mint.add", 12, is_backward=True)),
        ("Tensor.__add__.3.forward", Target("Tensor.__add__", 3, is_backward=False)),
        ("Primitive.fc.matmul.MatMul.0.backward", Target("Primitive.fc.matmul.MatMul", 0, is_backward=True)),
        ("Module.fc.Linear.forward.0", None),
        ("Cell.fc.Dense.backward.0", None),
        ("Functional.linear", None),
        ("linear.0.forward", None),
        ("Functional.linear.0.output", None),
        ("Functional.linear.x.forward", None),
        ("", None),
    ],
)
def test_a_target_is_an_entry_name_of_an_api(name: str, expected: Target | None) -> None:
    assert parse_target(name) == expected
    if expected is not None:
        assert expected.name == name


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_of_the_peer_comes_out_again() -> None:
    with zipfile.ZipFile(PEER) as archive:
        name = next(name for name in archive.namelist() if name.endswith("kernel_kbyk_dump.json"))
        theirs = json.loads(archive.read(name))
    path = theirs["common_dump_settings"]["path"]
    ours = kbyk_settings(config(dump_path=path, task="tensor", list=["name-regex(.+ReLU.+)"], async_dump=True))
    assert ours == theirs
    assert json.dumps(ours) == json.dumps(theirs)


def test_statistics_say_where_and_how_they_are_computed() -> None:
    settings = kbyk_settings(config(device="device", precision="low"))
    assert settings["e2e_dump_settings"] == {
        "enable": True, "trans_flag": True, "stat_calc_mode": "device", "device_stat_precision_mode": "low",
    }  # fmt: skip
    assert settings["common_dump_settings"] == {
        "dump_mode": 0, "path": "/dump", "net_name": "Net", "iteration": "all", "saved_data": "statistic",
        "input_output": 0, "kernels": [], "support_device": ALL_DEVICES,
        "statistic_category": ["max", "min", "avg", "l2norm"],
    }  # fmt: skip


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_nothing_is_null(task: str) -> None:
    """MindSpore 2.7.1 refuses the peer's: "stat_calc_mode should be string type"."""
    assert "null" not in json.dumps([kbyk_settings(config(task=task)), graph_settings(config(task=task))])
    assert "stat_calc_mode" not in kbyk_settings(config(task="tensor"))["e2e_dump_settings"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("md5", ["hash:md5"]),
        (["max", "mean"], ["max", "avg"]),
        (["md5", "hash", "l2norm"], ["hash:md5", "l2norm"]),
        (["nan count", "zero count"], ["nan count", "zero count"]),
        ([], ["max", "min", "avg", "l2norm"]),
    ],
)
def test_statistics_are_chosen(chosen: Any, expected: list[str]) -> None:
    assert common(summary_mode=chosen)["statistic_category"] == expected


def test_md5_has_the_name_that_this_mindspore_knows() -> None:
    settings = kbyk_settings(config(summary_mode="md5"), md5="md5")
    assert settings["common_dump_settings"]["statistic_category"] == ["md5"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([0, 2], "0|2"), (["4-6"], "4|5|6"), ([], "all"), ([1, "10-99", 200], "1|10-99|200"), ([3], "3")],
)
def test_steps_are_iterations(steps: Any, expected: str) -> None:
    assert common(step=steps)["iteration"] == expected


def test_every_step_may_be_spelled_as_a_range() -> None:
    assert kbyk_settings(config(), every="0-9")["common_dump_settings"]["iteration"] == "0-9"
    assert kbyk_settings(config(step=[1]), every="0-9")["common_dump_settings"]["iteration"] == "1"


@pytest.mark.parametrize(
    ("ranks", "expected"), [([], ALL_DEVICES), ([0, 2], [0, 2]), ([1, 9], [1, 9]), ([8], [0, 8]), ([17, 3], [1, 3, 17])]
)
def test_ranks_are_devices_of_their_machine(ranks: Any, expected: list[int]) -> None:
    assert common(rank=ranks)["support_device"] == expected


@pytest.mark.parametrize(("mode", "expected"), [("all", 0), ("input", 1), ("output", 2)])
def test_sides_are_chosen(mode: str, expected: int) -> None:
    assert common(data_mode=[mode])["input_output"] == expected
    words = {0: "all", 1: "input", 2: "output"}
    chosen = config("pytorch", task="tensor", list=["Torch.add.0.forward"], data_mode=[mode])
    assert acl_settings("/dump/step0", chosen.data_mode) == {
        "dump": {"dump_list": [], "dump_path": "/dump/step0", "dump_mode": words[expected], "dump_op_switch": "on"}
    }


def test_named_kernels_are_dumped_alone() -> None:
    found = common(list=["ReLU", "Default/fc-Dense/MatMul-op0"])
    assert found["dump_mode"] == 1
    assert found["kernels"] == ["ReLU", "Default/fc-Dense/MatMul-op0"]


@pytest.mark.parametrize(
    ("keys", "file_format"),
    [({"task": "tensor"}, "npy"), ({"task": "tensor", "file_format": "bin"}, "bin"), ({"file_format": "bin"}, "npy")],
)
def test_whole_graphs_have_a_file_of_their_own(keys: Any, file_format: str) -> None:
    settings = graph_settings(config(**keys))
    assert list(settings) == ["common_dump_settings"]
    found = settings["common_dump_settings"]
    assert found["op_debug_mode"] == 0
    assert found["file_format"] == file_format
    assert "statistic_category" not in found


def test_settings_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "step0" / "kernel_config.json"
    write_settings(path, {"dump": {"dump_path": "ö"}})
    assert path.read_text("utf-8") == json.dumps({"dump": {"dump_path": "ö"}}, indent=4)
    assert [item.name for item in path.parent.iterdir()] == ["kernel_config.json"]
    with pytest.raises(TypeError):
        write_settings(path, {"dump": object()})
    assert [item.name for item in path.parent.iterdir()] == ["kernel_config.json"]


# --- what must fit together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "keys", "message"),
    [
        ("pytorch", {"list": ["Torch.add.0.forward"]}, "task: level L2 dumps the data of kernels; use task tensor"),
        ("pytorch", {"task": "tensor"}, "list: []: level L2 needs exactly one entry name"),
        ("mindtorch", {"task": "tensor", "list": ["a.b.0.forward"] * 2 + ["c"]}, "exactly one entry name of an API"),
        ("pytorch", {"task": "tensor", "list": ["relu"]}, "'relu' is no entry name of an API"),
        ("pytorch", {"task": "tensor", "list": ["Module.fc.Linear.forward.0"]}, "is no entry name of an API"),
        ("pytorch", {"task": "structure", "list": ["Torch.add.0.forward"]}, "level: L2 dumps kernels with"),
        ("mindspore", {"task": "structure"}, "level: L2 dumps kernels with"),
        ("mindspore", {"scope": ["Mint.add.0.forward", "Mint.add.1.forward"]}, "scope: level L2 has no scope"),
        ("mindspore", {"list": ["Mint.add.0.forward"]}, "task: level L2 dumps the data of kernels"),
        ("mindspore", {"task": "tensor", "list": ["Mint.add.0.forward", "MatMul"]}, "exactly one entry name"),
        ("mindspore", {"task": "tensor", "list": ["Mint.add"]}, "'Mint.add' is no entry name of an API"),
        ("mindspore", {"list": ["name-regex(Default/[)"]}, "is no regular expression: unterminated character set"),
        ("mindspore", {"list": ["name-regex(Default/.+"]}, "has no closing parenthesis"),
        ("mindspore", {"data_mode": ["forward"]}, "data_mode: level L2 takes one of all, input and output"),
        ("mindspore", {"dump_path": "/dump/run 1"}, "dump_path: '/dump/run 1': MindSpore dumps kernels only"),
        ("mindspore", {"dump_path": "/dump/v1.2"}, "dump_path: '/dump/v1.2'"),
        ("mindspore", {"file_format": "pt"}, "file_format: 'pt' is none of npy, bin"),
        ("mindspore", {"device": "npu"}, "device: 'npu' is none of host, device"),
        ("mindspore", {"summary_mode": ["maximum"]}, "summary_mode: 'maximum' is none of max, min"),
        ("mindspore", {"storage": {"kernels": "delete"}}, "kernels: 'delete' is none of keep, convert, move"),
    ],
)  # fmt: skip
def test_refused(framework: str, keys: Any, message: str) -> None:
    with pytest.raises(CaptureError) as caught:
        config(framework, **keys)
    assert message in str(caught.value)


def test_a_file_is_named_with_the_key(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dump_path": "x", "level": "L2", "task": "tensor", "tensor": {"list": ["relu"]}}))
    with pytest.raises(CaptureError, match=r"config\.json: tensor: list: 'relu' is no entry name"):
        load_config(path)


def test_what_has_no_effect_is_noted() -> None:
    found = config(
        "pytorch",
        task="tensor",
        list=["Torch.add.0.forward"],
        data_mode=["forward"],
        device="device",
        risk_level="CORE",
    )
    assert [note.split(": ")[1] for note in found.notes] == ["data_mode", "device", "risk_level"]
    other = config("pytorch", level="L1", file_format="bin", device="device", storage={"kernels": "move"})
    assert [note.split(": ")[1] for note in other.notes] == ["file_format", "device", "storage"]


def test_a_list_of_statistics_is_refused_elsewhere() -> None:
    with pytest.raises(CaptureError, match="a list is for kernel dumps"):
        config("mindspore", level="L1", summary_mode=["max"])


def test_a_dotted_path_is_fine_for_an_api() -> None:
    assert config("pytorch", dump_path="/a.b", task="tensor", list=["Torch.add.0.forward"]).dump_path == "/a.b"


def test_the_peers_configuration_works_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"task": "tensor", "dump_path": "/home/data_dump", "level": "L2", "rank": [], "step": [],'
        ' "tensor": {"scope": [], "list": ["Functional.linear.0.backward"]}}'
    )
    found = load_config(path)
    assert found.list == ("Functional.linear.0.backward",)
    assert found.notes == ()
    assert found.storage.kernels == "keep"
