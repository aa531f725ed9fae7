"""Convert never writes over the source, never deletes what it did not make, and follows no link out of its tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from msformat.atomic import is_temporary, temporary_sibling
from msformat.convert import ConvertOptions, ConvertReport, convert
from msformat.destination import exclusive
from msformat.errors import MsformatError, StoreError, UnsafeInputError
from tests.judges import judge
from tests.small_dumps import tree_bytes, write_tree, write_unit

zarr = judge("zarr")


def _convert(src: Path | str, dst: Path | str, **options: Any) -> ConvertReport:
    return convert(src, dst, ConvertOptions(**options))


def _done(src: Path, dst: Path, **options: Any) -> ConvertReport:
    report = _convert(src, dst, **options)
    assert report.exit_code == 0, report.as_json()
    return report


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "src")


def _refused(src: Path | str, dst: Path | str, untouched: Path, **options: Any) -> str:
    """Refused with every option, and nothing changed below a directory."""
    before = tree_bytes(untouched)
    for more in ({}, {"overwrite": True}, {"resume": True}, {"overwrite": True, "resume": True}, {"dry_run": True}):
        with pytest.raises(StoreError) as caught:
            _convert(src, dst, **options, **more)
        assert tree_bytes(untouched) == before
    return str(caught.value)


# --- source and destination ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["files", "hdf5", "zarr"])
def test_the_source_itself(src: Path, tmp_path: Path, to: str) -> None:
    assert "same" in _refused(src, src, tmp_path, to=to)
    assert "same" in _refused(src, f"{src}/", tmp_path, to=to)
    assert "same" in _refused(src, f"{src}/step0/..", tmp_path, to=to)
    (tmp_path / "link").symlink_to(src)
    assert "same" in _refused(src, tmp_path / "link", tmp_path, to=to)
    assert "same" in _refused(tmp_path / "link", src, tmp_path, to=to)


@pytest.mark.parametrize("inside", ["new", "step0/rank", "step0/rank/dump.h5", "step0/rank/one.zarr", "step9"])
def test_inside_the_source(src: Path, tmp_path: Path, inside: str) -> None:
    assert "inside the source" in _refused(src, src / inside, tmp_path)
    (tmp_path / "link").symlink_to(src)
    assert "inside the source" in _refused(src, tmp_path / "link" / inside, tmp_path)


def test_around_the_source(src: Path, tmp_path: Path) -> None:
    assert "inside the destination" in _refused(src, tmp_path, tmp_path)
    _done(src, tmp_path / "deep" / "one.h5")
    assert "inside the destination" in _refused(tmp_path / "deep" / "one.h5", tmp_path / "deep", tmp_path)
    assert "inside the destination" in _refused(src / "step0" / "rank", src, tmp_path)
    document = src / "step0" / "rank" / "dump.json"
    assert "same" in _refused(document, src / "step0" / "rank", tmp_path)


def test_one_file_into_itself(src: Path, tmp_path: Path) -> None:
    for name in ("one.h5", "one.zarr"):
        _done(src, tmp_path / name)
        assert "same" in _refused(tmp_path / name, tmp_path / name, tmp_path)
    os.link(tmp_path / "one.h5", tmp_path / "hard.h5")
    assert "same" in _refused(tmp_path / "one.h5", tmp_path / "hard.h5", tmp_path)


def test_beside_the_source_is_fine(src: Path, tmp_path: Path) -> None:
    _done(src / "step0" / "rank", tmp_path / "a.h5")
    _done(tmp_path / "a.h5", tmp_path / "a.zarr")
    _done(src, tmp_path / "src2")


@pytest.mark.parametrize(
    "url", ["memory://", "memory://a/../b", "memory://a/./b", "memory://a//b", "memory://a/*", "a::memory://b"]
)
def test_a_url_that_is_no_plain_place_is_not_written(src: Path, url: str) -> None:
    with pytest.raises(UnsafeInputError, match="URL"):
        _convert(src, url)


# --- what stands at the destination ----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["files", "hdf5", "zarr"])
def test_a_directory_of_something_else(src: Path, tmp_path: Path, to: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("ten years")
    _refused(src, home, tmp_path, to=to)
    # A dump further down does not make it one.
    write_tree(home / "old" / "dump")
    _refused(src, home, tmp_path, to=to)


@pytest.mark.parametrize("name", ["one.h5", "one.zarr"])
@pytest.mark.parametrize("kind", ["text", "directory", "link", "dangling", "fifo", "hdf5", "zarr"])
def test_a_name_with_a_suffix_that_is_something_else(src: Path, tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "text":
        path.write_text("notes")
    elif kind == "directory":
        path.mkdir()
        (path / "notes").write_text("notes")
    elif kind == "link":
        _done(src, tmp_path / f"real{path.suffix}")
        path.symlink_to(tmp_path / f"real{path.suffix}")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            file["mine"] = np.arange(3)
    else:
        zarr.open_group(str(path), mode="w").create_array("mine", data=np.arange(3))
    _refused(src, path, tmp_path)


def test_a_dump_is_not_replaced_unasked(src: Path, tmp_path: Path) -> None:
    for name in ("tree", "one.h5", "one.zarr"):
        _done(src, tmp_path / name)
        before = tree_bytes(tmp_path)
        with pytest.raises(StoreError, match="--overwrite"):
            _convert(src, tmp_path / name)
        assert tree_bytes(tmp_path) == before


@pytest.mark.parametrize("old", ["files", "hdf5", "zarr"])
@pytest.mark.parametrize("new", ["files", "hdf5", "zarr"])
def test_overwrite_replaces_units_and_keeps_strangers(src: Path, tmp_path: Path, old: str, new: str) -> None:
    out = tmp_path / "out"
    other = write_tree(tmp_path / "other", ["step0/rank", "step1/rank", "step2/rank"], count=5)
    _done(other, out, to=old)
    strangers = {"README": b"r", "step0/notes": b"n", "step0/rank/mine.txt": b"m", "step0/rank/sub/deep/x.pt": b"x"}
    if old == "files":
        strangers["step0/rank/dump_tensor_data/plot.png"] = b"p"
    if old == "zarr":
        strangers["step0/rank/dump.zarr/tensors/readme.md"] = b"z"
        strangers["step0/rank/dump.zarr/mine/c/0"] = b"array of another program"
    for name, content in strangers.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    (out / "step0" / "rank" / "link").symlink_to(tmp_path / "other")
    other_before = tree_bytes(other)
    step2 = tree_bytes(out / "step2")
    report = _done(src, out, to=new, steps=frozenset({0}), overwrite=True)
    found = tree_bytes(out)
    assert {name: found.get(name) for name in strangers} == strangers
    assert (out / "step0" / "rank" / "link").is_symlink()
    assert tree_bytes(other) == other_before
    assert tree_bytes(out / "step2") == step2
    assert any("mine.txt" in note for note in report.units[0].notes)
    ours = {name for name in found if name.startswith("step0/rank/") and name not in strangers} - {"step0/rank/link"}
    fresh = tmp_path / "fresh"
    _done(src, fresh, to=new, steps=frozenset({0}))
    assert ours == set(tree_bytes(fresh))
    assert not any(is_temporary(path.name) for path in tmp_path.rglob("*"))


def test_overwrite_of_one_file_replaces_it(src: Path, tmp_path: Path) -> None:
    for name in ("one.h5", "one.zarr"):
        _done(write_tree(tmp_path / f"old-{name}", count=7), tmp_path / name)
        if name == "one.zarr":
            (tmp_path / name / "mine.txt").write_text("mine")
        _done(src, tmp_path / name, overwrite=True)
        _done(tmp_path / name, tmp_path / f"{name}-back")
        assert tree_bytes(tmp_path / f"{name}-back") == tree_bytes(src)
    assert (tmp_path / "one.zarr" / "mine.txt").read_text() == "mine"


def test_a_stranger_survives_a_death_in_the_middle_of_overwriting(src: Path, tmp_path: Path) -> None:
    """The old unit was renamed aside, and the process died: the next run brings the stranger back."""
    out = tmp_path / "out"
    _done(src, out)
    (out / "step0" / "rank" / "mine.txt").write_text("mine")
    os.rename(out / "step0" / "rank", temporary_sibling(f"{out / 'step0' / 'rank'}.replaced"))
    _done(src, out, resume=True)
    assert (out / "step0" / "rank" / "mine.txt").read_text() == "mine"
    assert not any(is_temporary(path.name) for path in out.rglob("*"))
    (out / "step0" / "rank" / "mine.txt").unlink()
    assert tree_bytes(out) == tree_bytes(src)


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planted", ["step0", "step0/rank"])
def test_a_link_planted_in_the_tree_is_not_followed(src: Path, tmp_path: Path, planted: str) -> None:
    victim = write_tree(tmp_path / "victim", ["step0/rank"], count=9)
    out = tmp_path / "out"
    _done(src, out, steps=frozenset({1}))
    (out / planted).parent.mkdir(exist_ok=True)
    (out / planted).symlink_to(victim / planted)
    before = tree_bytes(victim)
    report = _convert(src, out, overwrite=True)
    assert report.exit_code == 1
    assert [unit.failed for unit in report.units] == [True, False]
    assert tree_bytes(victim) == before
    assert (out / planted).is_symlink()


def test_a_file_where_a_directory_should_be(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _done(src, out, steps=frozenset({1}))
    (out / "step0").write_text("a file")
    report = _convert(src, out, overwrite=True)
    assert report.units[0].failed
    assert (out / "step0").read_text() == "a file"


def test_a_destination_that_is_a_link_to_a_directory_of_the_users_is_written_through(src: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    _done(src, tmp_path / "out")
    assert tree_bytes(tmp_path / "disk") == tree_bytes(src)


def test_names_in_documents_never_become_paths(tmp_path: Path) -> None:
    for name in ("../../../../escaped", "/escaped", "..", "a/../../b"):
        src = tmp_path / str(abs(hash(name))) / "src"
        unit = write_unit(src / "step0" / "rank", {"a.0.forward": np.zeros(2, np.float32)})
        text = (unit / "dump.json").read_text()
        (unit / "dump.json").write_text(text.replace("a.0.forward.output.0.npy", name))
        for target in ("out", "out.h5", "out.zarr"):
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(src.parent)
                report = _convert(src, src.parent / target)
            assert report.exit_code == 1
        made = {path.name for path in src.parent.iterdir()}
        assert made == {"src", "out", "out.h5", "out.zarr"}
    assert not list(tmp_path.parent.glob("escaped*"))


# --- one writer ------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_a_dead_ones_lock_is_taken(src: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "step0").mkdir(parents=True)
    with exclusive(str(tmp_path / "out" / "step0" / "rank")), exclusive(str(tmp_path / "one.h5")):
        report = _convert(src, tmp_path / "out")
        assert [unit.failed for unit in report.units] == [True, False]
        assert "another process" in report.units[0].problems[0]
        with pytest.raises(StoreError, match="another process"):
            _convert(src, tmp_path / "one.h5")
    (tmp_path / ".one.h5.msformat-lock").touch()
    _done(src, tmp_path / "one.h5")
    _done(src, tmp_path / "out", resume=True)
    assert not list(tmp_path.rglob(".*lock"))


_RACE = """
import sys
from msformat.convert import ConvertOptions, convert
from msformat.errors import MsformatError
try:
    sys.exit(convert(sys.argv[1], sys.argv[2], ConvertOptions(resume=True)).exit_code)
except MsformatError as error:
    sys.exit(f"{error}")
"""


@pytest.mark.parametrize("target", ["out", "out.h5"])
def test_processes_into_one_destination_never_damage_it(src: Path, tmp_path: Path, target: str) -> None:
    command = [sys.executable, "-c", _RACE, str(src), str(tmp_path / target)]
    racers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ends = [(racer.communicate()[1], racer.returncode) for racer in racers]
    assert any(code == 0 for _, code in ends) or target == "out", ends
    assert all("Traceback" not in text for text, _ in ends), ends
    _done(src, tmp_path / target, resume=True)
    back = tmp_path / target
    if target != "out":
        back = tmp_path / "back"
        _done(tmp_path / target, back)
    assert tree_bytes(back) == tree_bytes(src)
    assert not any(is_temporary(path.name) or "lock" in path.name for path in tmp_path.rglob("*"))


def test_a_directory_that_cannot_be_written_is_an_error_with_its_name(src: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises((MsformatError, OSError), match="file"):
        _convert(src, tmp_path / "file" / "out.h5")
    report = None
    with pytest.raises((MsformatError, OSError), match="file"):
        report = _convert(src, tmp_path / "file")
    assert report is None
    assert (tmp_path / "file").read_text() == "in the way"
