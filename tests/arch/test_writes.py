"""No file of ours is ever half under its final name: what writes one goes through ``atomic``, or is named here."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTED = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
TRACKED = subprocess.run(LISTED, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
SOURCES = [name for name in TRACKED if name.endswith(".py") and name.startswith(("msformat/", "capture/", "tools/"))]
PRODUCT = [name for name in SOURCES if not name.startswith("tools/")]

# File and function: why it may write under a name itself.
ALLOWED = {
    ("msformat/atomic.py", "atomic_file"): "the one place: a temporary, then a rename",
    ("msformat/atomic.py", "usual_mode"): "an empty temporary, to see what mode it gets",
    ("msformat/atomic.py", "output_file"): "devices and pipes, which are written into and never replaced",
    ("msformat/filelock.py", "claim"): "what a dead process left of the next line; nothing is made",
    ("msformat/filelock.py", "create"): "locks and journals, which grow line by line; a torn last line is dropped",
    ("msformat/stores/sidecar.py", "flush"): "grows line by line; a torn last line is dropped",
    ("msformat/stores/hdf5_paged.py", "_prepare"): "a prepared sync, which counts only with the digest at its end",
    ("msformat/stores/hdf5_paged.py", "open_regular"): "the file below HDF5: always in the state of its last sync",
    ("msformat/stores/hdf5_layout.py", "open_for_writing"): "over a PagedFile",
    ("msformat/stores/hdf5_layout.py", "_make_file"): "over a PagedFile, under a temporary name",
    ("msformat/stores/zarr_shards.py", "_put"): "a temporary, which gets its name when it is whole",
    ("msformat/stores/zarr_shards.py", "_make"): "a temporary, which gets its name when it is whole",
    ("msformat/convert.py", "_write_whole"): "a temporary, empty: the store that is then written into it",
    ("msformat/cli/output.py", "fix_encoding"): "the null device in place of closed streams",
    ("capture/whole.py", "write_aside"): "capture's own: a temporary, then a rename",
    ("capture/mindspore/graph_files.py", "expect"): "grows line by line; a torn last line is dropped",
    ("capture/mindspore/graph_files.py", "_name_without_replacing"): "takes a name where there are no hard links",
}
# What tools write into folders that end with them, or beside what they installed; names, or what they begin with.
SCRATCH = {
    "tools/bench": "temporary folders, and figures of a run that is printed anyway",
    "tools/demo.py": "the demo's folder, made anew each time",
    "tools/fuzz/": "work of a run, and a corpus named by its content",
    "tools/mutation.py": "a copy of the tree in a temporary folder",
    "tools/packing.py": "a temporary folder",
    "tools/long_run.py": "a temporary folder",
    "tools/scale.py": "a temporary folder",
    "tools/observe_peer_apis.py": "a temporary folder, and data of tests in an environment without msformat",
    "tools/observe_peer_names.py": "a temporary folder, and data of tests in an environment without msformat",
    "tools/read_mindspore_apis.py": "data of tests, in an environment without msformat",
    "tools/matrix.py": "logs, and a mark beside an environment that says it is whole",
}
_SHUTIL = {"copy", "copy2", "copyfile", "copytree", "move"}
_NUMPY = {"save", "savez", "savez_compressed", "savetxt"}


def _mode_of(call: ast.Call, position: int) -> str:
    """The mode given to something like ``open``; ``?`` where it is no literal."""
    given = call.args[position] if len(call.args) > position else None
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "mode"), given)
    if given is None:
        return "r"
    return str(given.value) if isinstance(given, ast.Constant) else "?"


def _writes(call: ast.Call) -> bool:
    """Whether a call makes or opens a file for writing by its name."""
    name = ast.unparse(call.func)
    owner, _, last = name.rpartition(".")
    if name == "os.open":
        return "O_CREAT" in ast.unparse(call) or (len(call.args) > 1 and isinstance(call.args[1], ast.Name))
    if last in ("write_text", "write_bytes", "touch"):
        return True
    if name in ("open", "io.open", "io.FileIO", "h5py.File", "zipfile.ZipFile", "tarfile.open"):
        return bool(set(_mode_of(call, 1)) & set("wax+?")) and not _is_stream(call)
    if last == "open" and not owner.startswith(("msformat", "h5py", "webbrowser", "self", "files", "fs")):
        return bool(set(_mode_of(call, 0)) & set("wax+"))
    return (owner == "shutil" and last in _SHUTIL) or (owner in ("np", "numpy") and last in _NUMPY)


def _is_stream(call: ast.Call) -> bool:
    """``zipfile.ZipFile(stream, "w")``: whoever opened the stream is looked at."""
    return bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id in ("stream", "far")


def _places(node: ast.AST, function: str = "") -> Iterator[tuple[str, int]]:
    """Functions that write, and where."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _writes(child):
            yield function, child.lineno
        yield from _places(child, child.name if isinstance(child, ast.FunctionDef) else function)


@pytest.mark.parametrize("name", SOURCES)
def test_files_are_written_through_atomic(name: str) -> None:
    found = [
        (function, line)
        for function, line in _places(ast.parse((ROOT / name).read_text("utf-8")))
        if (name, function) not in ALLOWED and not name.startswith(tuple(SCRATCH))
    ]
    assert not found, f"{name} writes under a final name: use msformat.atomic, or say here why not"


def test_every_exception_is_still_there() -> None:
    found = {
        (name, function) for name in SOURCES for function, _ in _places(ast.parse((ROOT / name).read_text("utf-8")))
    }
    assert not ALLOWED.keys() - found
    written = {name for name, _ in found}
    assert not [scratch for scratch in SCRATCH if not any(name.startswith(scratch) for name in written)]


@pytest.mark.parametrize("name", PRODUCT)
def test_nothing_depends_on_the_clock_on_the_wall(name: str) -> None:
    """It may go backwards: durations are measured by ``perf_counter`` and ``monotonic``, order by names."""
    calls = {
        ast.unparse(node) for node in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(node, ast.Attribute)
    }
    assert not calls & {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "time.localtime"}
