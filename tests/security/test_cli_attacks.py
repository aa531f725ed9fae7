"""The command line on dumps of strangers: one clear line for what is bad, the rest goes on, no terminal is driven."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.cli import main
from tests.small_dumps import HEADER, record, tree_bytes, write_document, write_tree

KEY = "Functional.relu.0.forward"
NAME = f"{KEY}.output.0.npy"
UNIT = "step0/rank"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    both = captured.out + captured.err
    assert "Traceback" not in both
    assert "Warning:" not in both
    assert "\x1b" not in both
    return code, captured.out, captured.err


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "dump", ("step0/rank", "step1/rank", "step2/rank"))


def rewrite(dump: Path, change: Any, unit: str = UNIT) -> None:
    path = dump / unit / "dump.json"
    document = json.loads(path.read_text())
    change(document["data"])
    write_document(path, document)


@pytest.mark.parametrize("command", ["info", "ls", "ls --tensors", "ls --json", "table", "table --json", "show"])
def test_one_garbage_unit_is_named_and_the_others_are_shown(
    dump: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (dump / "step1/rank/dump.json").write_bytes(b"\x00garbage")
    name, *options = command.split()
    code, out, err = run(capsys, name, dump, *([KEY] if name == "show" else []), *options)
    assert code == 1
    assert "step1/rank" in err or "step1/rank: " in out
    assert "step0/rank" in out
    assert "step2/rank" in out


@pytest.mark.parametrize("command", ["ls", "table", "show"])
def test_nothing_usable_is_exit_code_2(dump: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    for document in dump.rglob("dump.json"):
        document.write_bytes(b"[")
    code, _, err = run(capsys, command, dump, *([KEY] if command == "show" else []))
    assert code == 2
    assert err.count("dump.json") >= 3


@pytest.mark.parametrize("command", ["ls", "table", "show", "info"])
def test_units_that_are_not_there_are_exit_code_2(dump: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, _, err = run(capsys, command, dump, *([KEY] if command == "show" else []), "--steps", "9")
    assert code == 2
    assert "step2/rank" in err


def test_one_entry_that_cannot_be_decoded_is_named_and_the_others_are_shown(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dump / UNIT / "dump.json"
    deep = "[" * 300 + "]" * 300
    path.write_text(path.read_text().replace('"data": {', f'"data": {{\n  "Bad.entry.0.forward": {deep},', 1))
    for arguments in (("ls", dump, "--tensors"), ("table", dump, "--csv", tmp_path / "t.csv"), ("show", dump, NAME)):
        code, out, err = run(capsys, *arguments)
        assert code == (0 if arguments[0] == "show" else 1)
        assert arguments[0] == "show" or "Bad.entry.0.forward" in err
        shown = (tmp_path / "t.csv").read_text() if arguments[0] == "table" else out
        assert f"{UNIT}" in shown
        assert KEY in shown


@pytest.mark.parametrize("document", ["stack.json", "construct.json"])
def test_what_the_reader_warns_about_is_one_line_and_exit_code_1(
    dump: Path, capsys: pytest.CaptureFixture[str], document: str
) -> None:
    (dump / UNIT / document).write_text('{"\\u001b[31m": 7}')
    code, out, err = run(capsys, "show", dump, KEY, "--json", "--steps", "0")
    assert code == 1
    assert json.loads(out)["entry"] == KEY
    assert len(err.splitlines()) == 1
    assert document in err


@pytest.mark.parametrize(
    "array",
    [
        np.array([1 + 2j, 3]), np.array([b"a", b"\x1b[31m"]), np.array(["a", "\x1b[31m\u202e"]), np.array("\x1b[31m"),
        np.array([1, 2], np.longdouble), np.array(["2020-01-01"], "M8[s]"), np.zeros(2, "V4"),
        np.zeros(2, [("a", "f4"), ("b", "U2")]), np.array([np.nan, np.inf]),
    ],
    ids=lambda array: array.dtype.str,
)  # fmt: skip
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_values_of_any_type_are_shown(
    dump: Path, capsys: pytest.CaptureFixture[str], array: Any, options: tuple[str, ...]
) -> None:
    np.save(dump / UNIT / "dump_tensor_data" / NAME, array)
    code, out, err = run(capsys, "show", dump, NAME, "--steps", "0", *options)
    assert code in (0, 1, 2)
    assert out or err
    assert "\u202e" not in out
    if options and out:
        assert json.loads(out)["values"] is not None


def test_a_document_may_lie_about_the_number_of_axes(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(dump / UNIT / "dump_tensor_data" / NAME, np.float32(7))
    code, out, _ = run(capsys, "show", dump, NAME, "--steps", "0", "--json")
    assert code == 0
    assert json.loads(out)["values"] == [7.0]


def test_a_preview_stays_small_however_many_axes(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = (3, 1, 40, 5, 2, 7, 50)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(dump / UNIT / "dump_tensor_data" / NAME, array)
    code, out, _ = run(capsys, "show", dump, NAME, "--steps", "0", "--json")
    assert code == 0
    assert json.loads(out)["values"] == array.reshape(-1)[:64].tolist()


def test_a_shape_beyond_64_bits_does_not_end_a_parquet_file(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet

    rewrite(dump, lambda data: data[KEY]["output"][0].update(shape=[2**70, 2]))
    assert run(capsys, "table", dump, "--parquet", tmp_path / "t.parquet")[0] == 0
    rows = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["shape"] for row in rows[:2]] == [None, [3, 4]]
    assert [row["missing"] for row in rows[:2]] == [["shape"], []]


def test_an_empty_tensor_with_an_endless_axis_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "dump"
    data = dump / UNIT / "dump_tensor_data"
    data.mkdir(parents=True)
    np.save(data / NAME, np.empty((0, 2**60), np.float32))
    entry = {"output": [record(np.empty((0, 2**60), np.float32), NAME)]}
    write_document(dump / UNIT / "dump.json", {**HEADER, "data": {KEY: entry}})
    for target in ("out.h5", "out.zarr", "out"):
        assert run(capsys, "convert", dump, tmp_path / target)[0] == 0
        assert run(capsys, "verify", tmp_path / target)[0] == 0


def test_a_message_stays_short_whatever_the_document_says(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(dump, lambda data: data[KEY]["output"][0].update(shape=[7] * 500_000))
    code, _, err = run(capsys, "verify", dump)
    assert code == 1
    assert NAME in err
    assert max(map(len, err.splitlines())) < 5000


def test_a_pipe_that_a_user_names_is_written_into(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    assert run(capsys, "table", dump, "--csv", pipe)[0] == 0
    reader.join(timeout=10)
    assert KEY in found[0]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_no_destination_is_not_the_root_directory(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "convert", dump, "")
    assert code == 2
    assert "the destination has no name" in err
    code, _, err = run(capsys, "convert", "", dump.parent / "out")
    assert code == 2
    assert "no such file" in err


def test_what_a_remote_library_raises_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(memory.MemoryFileSystem, "info", fail)
    code, _, err = run(capsys, "info", "memory://dump")
    assert code == 2
    assert "memory://dump: RuntimeError: no credentials" in err


def test_a_url_whose_library_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "fsspec.implementations.http", None)
    code, _, err = run(capsys, "info", "https://localhost/dump")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "https://localhost/dump" in err


def in_a_process(tmp_path: Path, command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("PYTHONUNBUFFERED", None)  # what is buffered fails once more at exit
    more.setdefault("stdout", subprocess.PIPE)
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, check=False, **more
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("arguments", "streams", "code"),
    [
        ("info dump", ">&-", 0), ("ls dump", ">&-", 0), ("info nowhere", "2>&-", 2), ("info dump", "<&- >&- 2>&-", 0),
        ("convert dump out.h5", "<&- >&- 2>&-", 0), ("info nowhere", "2>/dev/full", 2), ("ls dump", ">/dev/full", 2),
        ("nonsense", "2>/dev/full", 2),
    ],
)  # fmt: skip
def test_closed_and_full_streams(dump: Path, tmp_path: Path, arguments: str, streams: str, code: int) -> None:
    done = in_a_process(tmp_path, f"{sys.executable} -m msformat {arguments} {streams}")
    assert done.returncode == code, done.stderr
    if "out.h5" in arguments:
        # No stream's descriptor became that of the file.
        assert main(["verify", str(tmp_path / "out.h5")]) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("arguments", ["", "--help", "--version", f"show dump {KEY}", "table dump --csv /dev/full"])
def test_a_full_output_is_one_line_that_names_it(dump: Path, tmp_path: Path, arguments: str) -> None:
    streams = "" if "/dev/full" in arguments else ">/dev/full"
    done = in_a_process(tmp_path, f"{sys.executable} -m msformat {arguments} {streams}")
    assert done.returncode == 2
    name = "standard output" if streams else "/dev/full"
    assert done.stderr == f"msformat: {name}: no space left on device\n"


@pytest.mark.parametrize("arguments", ["", "convert --help", "--version"])
def test_help_for_a_reader_who_has_left(tmp_path: Path, arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = in_a_process(tmp_path, f"{sys.executable} -m msformat {arguments}", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_current_directory_that_is_gone(dump: Path, tmp_path: Path) -> None:
    command = f"mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m msformat convert {dump} out"
    done = in_a_process(tmp_path, command)
    assert done.returncode == 2
    assert done.stderr == "msformat: the current directory: no such file or directory\n"


@pytest.mark.parametrize(
    "arguments", [("info", "d", "\x1b[31m\u202e"), ("\x1b[31m\u202e",), ("ls", "d", "--steps=\x1b[31m")]
)
def test_arguments_that_are_wrong_drive_no_terminal(capsys: pytest.CaptureFixture[str], arguments: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "\\x1b[31m" in err
    assert "\x1b" not in err
    assert "\u202e" not in err


def test_a_chain_of_parents_costs_neither_memory_nor_time(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain: dict[str, str | None] = {f"m{n}": f"m{n + 1}" for n in range(50_000)}
    chain.update(dict.fromkeys((f"Functional.x.{n}.forward" for n in range(20_000)), "m0"))
    write_document(dump / UNIT / "construct.json", chain)
    with msformat.open(dump) as opened:
        assert len(str(opened[0].tree())) < 30_000_000
    started = time.monotonic()
    assert run(capsys, "convert", dump, dump.parent / "out", "--filter", "Functional.*", "--steps", "0")[0] == 0
    assert time.monotonic() - started < 20
    kept = json.loads((dump.parent / "out" / UNIT / "construct.json").read_text())
    assert len(kept) == 20_000
    assert set(kept.values()) == {None}


@pytest.mark.parametrize("command", ["table {} --csv", "table {} --parquet", "diff {} {} --csv", "report {} -o"])
@pytest.mark.parametrize("source", ["dump", "dump.h5", "dump.zarr", f"dump/{UNIT}/dump.json"])
def test_no_result_replaces_what_is_read(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, source: str
) -> None:
    if source in ("dump.h5", "dump.zarr"):
        assert run(capsys, "convert", dump, tmp_path / source, "--steps", "0")[0] == 0
    (tmp_path / "link.csv").symlink_to(tmp_path / "dump.h5")
    targets = {
        "dump": [f"dump/{UNIT}/dump.json", f"dump/{UNIT}/dump_tensor_data/{NAME}"],
        "dump.h5": ["dump.h5", "link.csv"],
        "dump.zarr": ["dump.zarr/zarr.json"],
    }.get(source, [f"dump/{UNIT}/dump.json", f"dump/{UNIT}/stack.json"])
    before = tree_bytes(tmp_path)
    for target in targets:
        words = command.replace("{}", str(tmp_path / source)).split()
        code, _, err = run(capsys, *words, tmp_path / target)
        assert code == 2
        assert "which is only read: name another file" in err
    assert tree_bytes(tmp_path) == before


@pytest.mark.parametrize(
    "option",
    ["ls d --filter", "table d --csv", "report d --output", "diff d d --output", "ls d --steps", "schema dump --check"],
)
def test_two_dashes_are_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    # Pythons that take them for a text find no dump, no such step, or no such file.
    monkeypatch.chdir(tmp_path)
    try:
        code: Any = main(f"{option}=--".split())
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
