"""Units are found in every form of directory that msprobe and msformat write, in numeric order."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import msformat.layout
from msformat.atomic import temporary_sibling
from msformat.errors import FormatError, StoreError
from msformat.layout import UnitKey, UnitLocation, find_units, parse_unit_path, unit_backend
from msformat.stores.registry import open_store


def make(root: Path, *names: str) -> Path:
    """A directory with empty files in it, and directories where a name ends with a slash."""
    root.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(b"")
    return root


def keys(path: str | os.PathLike[str]) -> list[str]:
    return [unit.key.path for unit in find_units(path)[0]]


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    """Group paths by file name; stands in for the stores, which need real files."""
    groups: dict[str, tuple[str, ...]] = {}

    class Fake:
        @classmethod
        def groups(cls, location: str) -> tuple[str, ...]:
            return groups[os.path.basename(location)]

    monkeypatch.setattr(msformat.layout, "store_class", lambda backend: Fake)
    return groups


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "key", "number"),
    [
        ("step0/rank3", UnitKey(0, "rank3"), 3),
        ("step120/rank0", UnitKey(120, "rank0"), 0),
        ("step0/rank", UnitKey(0, "rank"), None),
        ("step0/proc4711", UnitKey(0, "proc4711"), None),
        ("rank", UnitKey(None, "rank"), None),
        ("graph/step1/rank2", UnitKey(1, "rank2", "graph"), 2),
        ("pynative/step1/proc7", UnitKey(1, "proc7", "pynative"), None),
    ],
)
def test_unit_paths(path: str, key: UnitKey, number: int | None) -> None:
    assert parse_unit_path(path) == key
    assert key.path == path == str(key)
    assert key.rank_number == number


@pytest.mark.parametrize(
    "path",
    [
        *[
            "",
            "step0",
            "graph",
            "step0/rank03",
            "step00/rank",
            "step/rank",
            "step0/proc",
            "step0/rank3/x",
            "other/rank",
        ],
        *[
            "x/step0/rank3",
            "step0/../rank",
            "step0/rank-1",
            "step" + "9" * 5000 + "/rank",
            "step٣/rank",
            "step0/rank\n",
        ],
    ],
)
def test_other_paths_are_no_units(path: str) -> None:
    assert parse_unit_path(path) is None


def test_keys_sort_by_number() -> None:
    expected = [
        UnitKey(None, "rank"),
        UnitKey(0, "rank0"),
        UnitKey(0, "rank2"),
        UnitKey(0, "rank10"),
        UnitKey(2, "rank"),
    ]
    assert sorted(expected[3:] + expected[:3]) == expected
    assert UnitKey(2, "rank") < UnitKey(10, "rank")
    assert UnitKey(0, "rank", "graph") < UnitKey(0, "rank", "pynative")
    with pytest.raises(TypeError):
        _ = UnitKey(0, "rank") < "step0/rank"


# --- forms of trees --------------------------------------------------------------------------------------------------


def test_numeric_order_and_no_rank_lost(tmp_path: Path) -> None:
    make(tmp_path, *(f"step{s}/rank{r}/dump.json" for s in range(0, 121, 10) for r in range(32)))
    assert keys(tmp_path) == [f"step{s}/rank{r}" for s in range(0, 121, 10) for r in range(32)]


def test_single_process_forms(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank/dump.json", "step1/rank/debug.json", "step10/rank/dump.json", "rank/debug.json")
    assert keys(tmp_path) == ["rank", "step0/rank", "step1/rank", "step10/rank"]
    assert find_units(tmp_path)[1] == []


def test_mindspore_branches(tmp_path: Path) -> None:
    make(tmp_path, "graph/step0/rank0/dump.json", "pynative/step0/rank0/dump.json", "pynative/step1/rank0/dump.json")
    assert keys(tmp_path) == ["graph/step0/rank0", "pynative/step0/rank0", "pynative/step1/rank0"]


@pytest.mark.parametrize(
    "named",
    ["", "graph", "graph/step3", "graph/step3/rank12", "graph/step3/rank12/dump.json", "graph/step3/rank12/stack.json"],
)
def test_a_unit_has_one_key_whatever_part_of_the_tree_is_named(tmp_path: Path, named: str) -> None:
    make(tmp_path, "graph/step3/rank12/dump.json", "graph/step3/rank12/stack.json")
    (unit,), problems = find_units(tmp_path / named)
    directory = str(tmp_path / "graph/step3/rank12")
    assert unit == UnitLocation(UnitKey(3, "rank12", "graph"), "files", directory, directory=directory)
    assert problems == []


def test_relative_paths_and_trailing_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "step3/rank1/dump.json")
    monkeypatch.chdir(tmp_path / "step3/rank1")
    for named in (".", "./", "dump.json", "..", "../..", str(tmp_path) + "//", f"file://{tmp_path}"):
        (unit,), _ = find_units(named)
        assert unit.key == UnitKey(3, "rank1")
        assert Path(unit.location, "dump.json").is_file()


def test_a_unit_directory_of_any_name(tmp_path: Path) -> None:
    make(tmp_path, "mine/dump.json", "mine/dump_tensor_data/")
    assert keys(tmp_path / "mine") == ["rank"]
    assert keys(tmp_path / "mine/dump.json") == ["rank"]


def test_documents_right_in_the_step(tmp_path: Path) -> None:
    make(tmp_path, "step2/dump.json")
    assert keys(tmp_path) == ["step2/rank"]


@pytest.mark.parametrize(
    ("names", "backend", "file"),
    [
        (["dump.json"], "files", ""),
        (["debug.json"], "files", ""),
        (["dump.json", "debug.json", "stack.json"], "files", ""),
        (["dump_tensor_data/"], "files", ""),
        (["dump.h5"], "hdf5", "/dump.h5"),
        (["dump.zarr/"], "zarr", "/dump.zarr"),
        (["journal.jsonl"], "files", ""),
        (["journal.jsonl", "dump.h5"], "hdf5", "/dump.h5"),
        (["journal.jsonl", "dump.zarr/"], "zarr", "/dump.zarr"),
        (["journal.jsonl", "dump_tensor_data/"], "files", ""),
    ],
)
def test_backends(tmp_path: Path, names: list[str], backend: str, file: str) -> None:
    directory = make(tmp_path / "step0/rank1", *names)
    for named in (tmp_path, tmp_path / "step0", directory):
        (unit,), problems = find_units(named)
        assert (unit.backend, unit.location, unit.group) == (backend, f"{directory}{file}", "")
        assert unit.directory == str(directory)
        assert unit.journal == (f"{directory}/journal.jsonl" if "journal.jsonl" in names else None)
        assert problems == []
    assert unit_backend(str(directory)) == backend


@pytest.mark.parametrize("names", [[], ["stack.json"], ["dump.json/"], ["dump.h5/"], ["dump.zarr"], ["a.npy"]])
def test_no_backend(tmp_path: Path, names: list[str]) -> None:
    make(tmp_path / "unit", *names)
    assert unit_backend(str(tmp_path / "unit")) is None
    assert unit_backend(str(tmp_path / "missing")) is None


def test_one_tree_may_mix_stores(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank0/dump.json", "step0/rank1/dump.h5", "step0/rank2/dump.zarr/zarr.json")
    assert [unit.backend for unit in find_units(tmp_path)[0]] == ["files", "hdf5", "zarr"]


def test_canonical_files_win_over_containers_beside_them(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank/dump.json", "step0/rank/dump.h5", "step0/rank/dump.zarr/")
    (unit,), (problem,) = find_units(tmp_path)
    assert unit.backend == "files"
    assert "dump.h5 and dump.zarr beside dump.json" in problem


def test_temporaries_are_ignored(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank0/dump.json", "step0/rank1/")
    for path in ("step0/rank1/dump.json", "step0/rank1/dump.h5", "step0/rank2", "step1"):
        make(Path(temporary_sibling(tmp_path / path)), "dump.json")
    units, problems = find_units(tmp_path)
    assert [unit.key.path for unit in units] == ["step0/rank0"]
    (problem,) = problems
    assert problem.startswith(str(tmp_path / "step0/rank1"))


# --- containers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all.h5", "all.hdf5", "no-suffix", "all.zarr"])
def test_groups_of_one_container(tmp_path: Path, name: str, containers: dict[str, tuple[str, ...]]) -> None:
    path = tmp_path / name
    if name.endswith(".zarr"):
        make(path, "zarr.json")
    else:
        path.write_bytes(b"\x89HDF\r\n\x1a\n")
    containers[name] = ("step0/rank10", "step0/rank2", "graph/step1/rank", "notes")
    units, problems = find_units(path)
    assert [unit.group for unit in units] == ["step0/rank2", "step0/rank10", "graph/step1/rank"]
    assert [unit.key.path for unit in units] == [unit.group for unit in units]
    assert {unit.location for unit in units} == {str(path)}
    assert {unit.directory for unit in units} == {None}
    assert len(problems) == 1
    assert "'notes'" in problems[0]


def test_a_container_whose_root_is_the_unit(tmp_path: Path, containers: dict[str, tuple[str, ...]]) -> None:
    containers["dump.h5"] = containers["mine.h5"] = ("",)
    make(tmp_path, "step4/rank2/dump.h5", "step4/rank2/journal.jsonl", "mine.h5")
    (unit,), _ = find_units(tmp_path / "step4/rank2/dump.h5")
    assert unit == find_units(tmp_path / "step4")[0][0]
    (unit,), _ = find_units(tmp_path / "mine.h5")
    assert unit == UnitLocation(UnitKey(None, "rank"), "hdf5", str(tmp_path / "mine.h5"))


def test_a_container_without_units(tmp_path: Path, containers: dict[str, tuple[str, ...]]) -> None:
    containers["all.h5"] = ("weights", "optimizer")
    make(tmp_path, "all.h5")
    with pytest.raises(FormatError, match=r"no dump found.*groups are no units.*'weights'"):
        find_units(tmp_path / "all.h5")


def test_a_directory_around_a_container_with_many_units(tmp_path: Path, containers: dict[str, tuple[str, ...]]) -> None:
    containers["dump.h5"] = ("step0/rank0", "step0/rank1")
    make(tmp_path, "out/dump.h5")
    assert keys(tmp_path / "out") == keys(tmp_path) == ["step0/rank0", "step0/rank1"]


@pytest.mark.parametrize(("backend", "name"), [("hdf5", "all.h5"), ("zarr", "all.zarr")])
def test_real_containers(tmp_path: Path, backend: str, name: str) -> None:
    expected = ["step0/rank2", "step0/rank10", "graph/step1/proc7"]
    for group in reversed(expected):
        with open_store(backend, str(tmp_path / name), mode="a", group=group) as store:
            store.put_document("dump.json", b"{}")
    units, problems = find_units(tmp_path / name)
    assert [unit.key.path for unit in units] == expected == [unit.group for unit in units]
    assert problems == []
    for unit in units:
        with open_store(unit.backend, unit.location, group=unit.group) as store:
            assert store.documents() == ("dump.json",)


def test_a_group_inside_a_zarr_store_may_be_named(tmp_path: Path) -> None:
    for group in ("step3/rank0", "step3/rank1"):
        with open_store("zarr", str(tmp_path / "all.zarr"), mode="a", group=group) as store:
            store.put_document("dump.json", b"{}")
    assert keys(tmp_path / "all.zarr/step3") == ["step3/rank0", "step3/rank1"]
    assert keys(tmp_path / "all.zarr/step3/rank1") == ["step3/rank1"]


@pytest.mark.parametrize(("backend", "name"), [("hdf5", "dump.h5"), ("zarr", "dump.zarr")])
def test_real_unit_containers(tmp_path: Path, backend: str, name: str) -> None:
    (tmp_path / "step0/rank1").mkdir(parents=True)
    location = str(tmp_path / "step0/rank1" / name)
    with open_store(backend, location, mode="w") as store:
        store.put_document("dump.json", b"{}")
    for named in (tmp_path, location):
        (unit,), problems = find_units(named)
        assert unit == UnitLocation(UnitKey(0, "rank1"), backend, location, directory=str(tmp_path / "step0/rank1"))
        assert problems == []


# --- above and beside a tree -----------------------------------------------------------------------------------------


def test_the_directory_above_a_tree(tmp_path: Path) -> None:
    make(tmp_path, "out/run/v810_mix/step0/rank/dump.json", "out/logs/x.log", "out/config.json")
    for named in ("out/run/v810_mix", "out/run", "out", ""):
        (unit,), problems = find_units(tmp_path / named)
        assert unit.location == str(tmp_path / "out/run/v810_mix/step0/rank")
        assert unit.key == UnitKey(0, "rank")
        assert problems == []


def test_the_nearest_tree_wins(tmp_path: Path) -> None:
    make(tmp_path, "a/step0/rank/dump.json", "b/c/step1/rank/dump.json")
    assert keys(tmp_path) == ["step0/rank"]


def test_several_trees_must_be_named(tmp_path: Path) -> None:
    make(tmp_path, "v2/step0/rank/dump.json", "v10/step0/rank/dump.json", "other/x/")
    with pytest.raises(FormatError, match="holds 2 dumps, name one of them: v2, v10"):
        find_units(tmp_path)


def test_the_search_ends(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c/d/step0/rank/dump.json")
    with pytest.raises(FormatError, match="3 levels"):
        find_units(tmp_path)
    assert keys(tmp_path / "a") == ["step0/rank"]


def test_two_processes_are_two_runs(tmp_path: Path) -> None:
    make(tmp_path, *(f"step{s}/proc{p}/dump.json" for s in range(6) for p in (21, 103)))
    units, (problem,) = find_units(tmp_path)
    assert len(units) == 12
    assert {unit.key.rank_number for unit in units} == {None}
    assert problem.startswith("step0, step1, step2, step3 and 2 more: proc21, proc103 are separate runs")


@pytest.mark.parametrize(("labels", "separate"), [(["rank0", "rank1"], False), (["rank", "rank0"], True)])
def test_a_lone_process_beside_ranks(tmp_path: Path, labels: list[str], separate: bool) -> None:
    make(tmp_path, *(f"step0/{label}/dump.json" for label in labels))
    assert bool(find_units(tmp_path)[1]) == separate


def test_broken_units_are_named_and_the_rest_is_found(tmp_path: Path) -> None:
    make(
        tmp_path, "step0/rank0/dump.json", "step0/rank1/", "step0/rank2/stack.json", "step1/", "step007/rank0/dump.json"
    )
    units, problems = find_units(tmp_path)
    assert [unit.key.path for unit in units] == ["step0/rank0"]
    assert sorted(problem.split(": ")[0] for problem in problems) == sorted(
        str(tmp_path / name) for name in ("step0/rank1", "step0/rank2", "step1", "step007")
    )


def test_a_unit_at_the_root_of_a_tree_is_said(tmp_path: Path) -> None:
    make(tmp_path, "dump.json", "step0/rank/dump.json")
    units, (problem,) = find_units(tmp_path)
    assert [unit.key.path for unit in units] == ["step0/rank"]
    assert "name dump.json itself" in problem
    assert find_units(tmp_path / "dump.json")[0][0].location == str(tmp_path)


# --- what is no dump -------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        find_units(tmp_path / "nowhere")


KERNEL = "rank_0/Net/0/0/ReLU.Default_ReLU-op0.0.0.1796014176174393.output.0.DefaultFormat.Float32.npy"


def test_names_that_are_nearly_those_of_steps_and_ranks_are_told(tmp_path: Path) -> None:
    beside = ["step00", "Step1", "step_2", "step1000000000000000000"]
    within = ["rank00", "rank01", "RANK2", "rank-3", "rank 4", "step5"]
    odd = [*beside, *(f"step0/{name}" for name in within)]
    units = ["step0/rank", "step0/rank0", "step0/proc7", "step10/rank0"]
    make(tmp_path, *(f"{name}/dump.json" for name in [*units, *odd]))
    found, problems = find_units(tmp_path)
    assert [unit.key.path for unit in found] == ["step0/proc7", "step0/rank", "step0/rank0", "step10/rank0"]
    told = [text for text in problems if text.endswith("no name of a step or rank: left alone")]
    assert sorted(told) == sorted(f"{tmp_path}/{name}: no name of a step or rank: left alone" for name in odd)


@pytest.mark.parametrize(
    ("names", "named", "looks"),
    [
        ([], "", "it is empty"),
        (["kernel_kbyk_dump.json"], "", "kernel dump"),
        (["step0/kernel_config_12.json", "step0/20250101120000/0/left.txt"], "", "kernel dump"),
        (["step0/rank0/x.npy"], "", "static graph"),
        (["graph/step0/rank0/x_float32.npy"], "graph", "static graph"),
        ([".zgroup", "a/.zarray"], "", "Zarr v2"),
        (["model.pth"], "", "model checkpoint"),
        (["model.pth"], "model.pth", "model checkpoint"),
        (["global_step100/mp_rank_00_model_states.pt", "latest"], "", "model checkpoint"),
        (["iter_0000100/x.distcp"], "", "model checkpoint"),
        (["weights.pt"], "weights.pt", "single tensor"),
        (["dump.zip"], "dump.zip", "archive"),
        (["a.txt"], "a.txt", "no dump found"),
        (["a.txt"], "", "no dump found"),
        (["x/step0/rank/stack.json"], "", "no dump in it"),
        (["stack.json"], "stack.json", "no dump found"),
    ],
)
def test_strangers_are_told_apart(tmp_path: Path, names: list[str], named: str, looks: str) -> None:
    make(tmp_path / "place", *names)
    with pytest.raises(FormatError, match=looks) as caught:
        find_units(tmp_path / "place" / named)
    assert "looked for step{N}/rank{R}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "named", "key"),
    [
        (KERNEL, "", "step0/rank0"),
        (KERNEL, "rank_0/Net", "step0/rank0"),
        (KERNEL, os.path.dirname(KERNEL), "step0/rank0"),
        (KERNEL, KERNEL, "step0/rank0"),
        ("step3/20250101120000/5/Add.x.1.2.1796014176174393", "", "step3/rank5"),
        ("step3/20250101120000/5/Add.x.1.2.1796014176174393", "step3", "step3/rank5"),
        ("deep/in/step3/20250101120000/5/Add.x.1.2.1796014176174393", "", "step3/rank5"),
        ("Add.x.1.2.1796014176174393", "", "rank"),
    ],
)
def test_kernel_dumps_are_units(tmp_path: Path, name: str, named: str, key: str) -> None:
    make(tmp_path / "place", name)
    (unit,), problems = find_units(tmp_path / "place" / named)
    assert (unit.key.path, unit.backend, problems) == (key, "kernel_dump", [])


def test_the_tensor_folder_points_to_its_unit(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank/dump_tensor_data/x.0.debug.pt")
    with pytest.raises(FormatError, match="name the directory above"):
        find_units(tmp_path / "step0/rank/dump_tensor_data")


def test_arrays_beside_a_dump_are_named(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank0/dump.json", "graph/step0/rank0/x.npy")
    units, (problem,) = find_units(tmp_path)
    assert [unit.key.path for unit in units] == ["step0/rank0"]
    assert "static graph" in problem


def test_static_graph_files_beside_a_dump_are_a_unit(tmp_path: Path) -> None:
    make(tmp_path, "step0/rank0/dump.json", "graph/step0/rank0/x_float32_0.npy")
    units, problems = find_units(tmp_path)
    assert [(unit.key.path, unit.backend) for unit in units] == [
        ("step0/rank0", "files"),
        ("graph/step0/rank0", "mindspore_dump"),
    ]
    assert not problems


# --- remote, golden, scale -------------------------------------------------------------------------------------------


def test_urls() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe({"/layout/run/step10/rank1/dump.json": b"{}", "/layout/run/step2/rank1/debug.json": b"{}"})
    try:
        for url in ("memory://layout/run", "memory://layout/run/", "memory://layout"):
            units, problems = find_units(url)
            assert [unit.key.path for unit in units] == ["step2/rank1", "step10/rank1"]
            assert units[0].location == "memory://layout/run/step2/rank1"
            assert problems == []
        assert keys("memory://layout/run/step2/rank1/debug.json") == ["step2/rank1"]
        assert keys("memory://layout/run/step10/rank1") == ["step10/rank1"]
        assert unit_backend("memory://layout/run/step10/rank1") == "files"
        with pytest.raises(StoreError):
            find_units("memory://layout/nowhere")
        with pytest.raises(StoreError, match="nosuchprotocol"):
            find_units("nosuchprotocol://x")
    finally:
        memory.rm("/layout", recursive=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch_8.1.0_mix_tensor", ["step0/rank", "step1/rank"]),
        ("torch_1.2.2_debug_tensor", ["rank"]),
        ("torch_26.2.0_debug_tensor", ["step0/proc", "step1/proc"]),
        ("mindspore_8.1.0_debug_tensor", ["step0/rank", "step1/rank"]),
    ],
)
def test_real_dumps(name: str, expected: list[str], golden: Callable[[str], Path]) -> None:
    units, problems = find_units(golden(name))
    assert [
        unit.key.path.rstrip("0123456789") if "proc" in unit.key.rank else unit.key.path for unit in units
    ] == expected
    assert {unit.backend for unit in units} == {"files"}
    assert problems == []


def test_a_thousand_ranks_take_about_a_second(tmp_path: Path) -> None:
    make(tmp_path, *(f"step{s}/rank{r}/dump.json" for s in range(4) for r in range(1024)))
    make(tmp_path, *(f"step0/rank{r}/dump_tensor_data/x{i}.pt" for r in range(4) for i in range(100)))
    start = time.perf_counter()
    units, _ = find_units(tmp_path)
    taken = time.perf_counter() - start
    assert [unit.key.rank_number for unit in units] == [*range(1024)] * 4
    shutil.rmtree(tmp_path)
    # Ten times what it takes on an idle machine.
    assert taken < 5
