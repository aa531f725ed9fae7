"""``python -m capture run`` runs a program as ``python`` does. No framework here: captures are tested beside each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = [sys.executable, "-m", "capture", "run"]


def run(command: list[str], place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    variables = {**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env=variables)


def plain_errors(text: str) -> str:
    """Without what the launcher says, and without the frames of ``runpy``, which are Python's own for ``-m``."""
    without = re.sub(r'  File "(?:<frozen runpy>|[^"]*runpy\.py)".*\n(?:    .*\n)?', "", text)
    return "\n".join(line for line in without.splitlines() if not line.startswith("capture run:"))


PROGRAMS = {
    "what python sets": """
        import sys
        print(sys.argv, sys.path[0], __name__, __file__, __package__, __doc__, __spec__ and __spec__.name)
        print(type(__loader__).__name__, sorted(globals()), sys.modules["__main__"].__dict__ is globals())
    """,
    "its directory is where it imports from": "import beside; print(beside.word, beside.__file__)",
    "exit code": "import sys; print(1); sys.exit(3)",
    "exit with a text": "import sys; sys.exit('sorry')",
    "exit without a code": "raise SystemExit",
    "exit at once": "import os; print(1, flush=True); os._exit(5)",
    "exception": """
        def fails():
            raise ValueError("planted")
        try:
            fails()
        except ValueError as error:
            raise KeyError("later") from error
    """,
    "interrupted": "raise KeyboardInterrupt",
    "a hook of its own": """
        import sys
        def show(kind, error, trace):
            print("mine", kind.__name__, error, trace.tb_lineno, trace.tb_next, error.__traceback__ is trace)
        sys.excepthook = show
        raise ValueError("planted")
    """,
    "syntax error": "print(1)\nprint(2",
    "not utf-8": "# -*- coding: latin-1 -*-\nprint('caf\\xe9')",
    "exit handlers and threads outlive the main program": """
        import atexit, threading, time, sys, pickle
        class Thing: pass
        def later():
            time.sleep(0.3)
            print(type(pickle.loads(pickle.dumps(Thing()))), sys.modules["__main__"] is main)
        main = sys.modules["__main__"]
        atexit.register(lambda: print("bye", Thing))
        threading.Thread(target=later).start()
    """,
    "processes of its own": """
        import multiprocessing
        def work(number):
            return number + 1, __name__
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1, 2]))
    """,
    "from the future": "from __future__ import annotations\nx: nothing = 1\nprint(__annotations__)",
    "no future of ours": "x: int = 1\nprint(__annotations__)",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("word = 'found'\n")
    return tmp_path


def write(place: Path, program: str) -> Path:
    import textwrap

    path = place / "sub" / "program.py"
    path.write_text(textwrap.dedent(program).lstrip("\n") + "\n", "latin-1")
    return path


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_runs_as_python_runs_it(place: Path, name: str) -> None:
    write(place, PROGRAMS[name])
    arguments = ["sub/program.py", "--level", "L9", "a b", "-m"]
    plain = run([sys.executable, *arguments], place)
    launched = run([*LAUNCHER, *arguments], place)
    assert launched.stdout == plain.stdout
    assert launched.returncode == plain.returncode
    assert plain_errors(launched.stderr) == plain_errors(plain.stderr)
    assert not (place / "captured").exists()


MODULES = ["sub.program", "package"]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        *[(name, module) for name in ("what python sets", "exception") for module in MODULES],
        ("processes of its own", "sub.program"),
    ],
)
def test_a_module_runs_as_python_runs_it(place: Path, name: str, module: str) -> None:
    path = write(place, PROGRAMS[name])
    (place / "package").mkdir()
    (place / "package" / "__init__.py").touch()
    (place / "package" / "__main__.py").write_text(path.read_text())
    plain = run([sys.executable, "-m", module, "--level", "x"], place)
    launched = run([*LAUNCHER, "-m", module, "--level", "x"], place)
    assert (launched.stdout, launched.returncode) == (plain.stdout, plain.returncode)
    assert plain_errors(launched.stderr) == plain_errors(plain.stderr)


def test_what_is_not_there_is_said_as_python_says_it(place: Path) -> None:
    (place / "empty").mkdir()
    (place / "empty" / "__init__.py").touch()
    for arguments in (["nothing.py"], ["-m", "nothing"], ["-m", "empty"], ["-m", "empty.nothing"]):
        plain = run([sys.executable, *arguments], place)
        launched = run([*LAUNCHER, *arguments], place)
        assert launched.returncode == plain.returncode != 0
        said = plain.stderr.strip().partition(": ")[2]
        assert launched.stderr.strip() == f"capture run: {said}"


def test_safe_path_is_respected(place: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("came with 3.11")
    write(place, "import sys; print(sys.path)")
    plain = run([sys.executable, "sub/program.py"], place, PYTHONSAFEPATH="1")
    launched = run([*LAUNCHER, "sub/program.py"], place, PYTHONSAFEPATH="1")
    assert launched.stdout == plain.stdout


def test_a_program_may_still_set_what_libraries_read_when_they_are_imported(place: Path) -> None:
    write(place, "import sys; print(sorted({'numpy', 'torch', 'mindspore', 'msformat', 'msgspec'} & set(sys.modules)))")
    assert run([*LAUNCHER, "sub/program.py"], place).stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--level", "L9"], "level"),
        (["--level", "debug"], "save"),
        (["--capture", "kernels.json"], "PrecisionDebugger"),
        (["--step", "a"], "step"),
        (["--capture", "nothing.json"], r"nothing\.json: cannot be read"),
        (["--capture", "bad.json"], r"bad\.json: lvel: no such key"),
        (["--first-step", "-1"], "--first-step"),
        (["--dump-path", "taken"], "never overwritten"),
    ],
)
def test_a_mistake_is_said_before_the_program_begins(place: Path, arguments: list[str], said: str) -> None:
    write(place, "print('began')")
    (place / "bad.json").write_text('{"lvel": "L1", "dump_path": "x"}')
    kernels = '"level": "L2", "task": "tensor", "tensor": {"list": ["Functional.linear.0.forward"]}'
    (place / "kernels.json").write_text(f'{{"dump_path": "x", {kernels}}}')
    (place / "taken" / "step3" / "rank").mkdir(parents=True)
    (place / "taken" / "step3" / "rank" / "dump.json").write_text("{}")
    done = run([*LAUNCHER, *arguments, "sub/program.py"], place)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"capture run: [^\n]*{said}[^\n]*\n", done.stderr)


def test_an_elastic_restart_is_not_refused(place: Path) -> None:
    write(place, "print('began')")
    (place / "taken" / "step3" / "rank0").mkdir(parents=True)
    (place / "taken" / "step3" / "rank0" / "dump.json").write_text("{}")
    command = [*LAUNCHER, "--dump-path", "taken", "sub/program.py"]
    assert run(command, place, RANK="0").returncode == 2
    assert run(command, place, RANK="0", TORCHELASTIC_RESTART_COUNT="1").stdout == "began\n"
    assert run(command, place, RANK="1").stdout == "began\n"


def test_a_program_without_a_framework_is_told_so(place: Path) -> None:
    write(place, "pass")
    done = run([*LAUNCHER, "sub/program.py"], place)
    assert "nothing was captured: the program imported neither torch nor mindspore" in done.stderr
    assert run([*LAUNCHER], place).returncode == 2
    assert "--step-is" in run([*LAUNCHER, "--help"], place).stdout
