"""Runs a script or a module as ``python`` does: its own ``__main__``, ``sys.argv``, ``sys.path`` and traceback."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import Any

__all__ = ["Program", "ProgramError", "module_program", "run_program", "script_program", "set_paths"]

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class ProgramError(Exception):
    """There is nothing to run; the message says so as Python would.

    Attributes
    ----------
    exit_code
        Python's own in this case.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Program:
    """Code and the module it is to run in.

    Attributes
    ----------
    code
        Makes the code: a syntax error is the program's own, and has its traceback.
    main
        A ``__main__`` with what Python sets in one.
    directory
        First of ``sys.path``, unless Python was told to leave that out.
    """

    def __init__(self, code: Callable[[], CodeType], main: ModuleType, directory: str) -> None:
        self.code, self.main, self.directory = code, main, directory


def script_program(path: str) -> Program:
    """The program in a file.

    Raises
    ------
    ProgramError
        The file cannot be read.
    """
    # As Python has it since 3.9; in a directory that is gone the path stays as it was given.
    where = os.path.abspath(path)
    try:
        with open(where, "rb") as file:
            source = file.read()
    except OSError as error:
        raise ProgramError(f"can't open file {where!r}: [Errno {error.errno}] {error.strerror}", 2) from error
    main = ModuleType("__main__")
    main.__file__ = where
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", where)
    main.__dict__.update(__builtins__=sys.modules["builtins"], __cached__=None, __annotations__={})
    return Program(
        lambda: compile(source, where, "exec", dont_inherit=True), main, os.path.dirname(os.path.realpath(where))
    )


def module_program(name: str) -> Program:
    """The program that ``python -m name`` would run.

    Raises
    ------
    ProgramError
        There is no such module, or it is a package without ``__main__``.
    """
    spec = _spec_of(name)
    main = ModuleType("__main__")
    main.__spec__, main.__loader__ = spec, spec.loader
    main.__package__ = spec.parent
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    main.__dict__.update(__file__=spec.origin, __cached__=spec.cached)
    loader: Any = spec.loader
    return Program(lambda: loader.get_code(spec.name), main, os.getcwd())


def run_program(program: Program, arguments: list[str]) -> None:
    """Run it to its end, with ``arguments`` as ``sys.argv[1:]``.

    Whatever it raises is raised, and what Python prints of that shows no frame of this package.
    """
    # It stays there: exit handlers, threads and pickles of the program need it after this has returned.
    sys.modules["__main__"] = program.main
    sys.argv = [*sys.argv[:1], *arguments]
    try:
        exec(program.code(), program.main.__dict__)  # noqa: S102 (what the user asked to run)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = _without_own_frames(sys.excepthook)
        raise


def set_paths(program: Program, name: str) -> None:
    """Set ``sys.argv[0]``, and ``sys.path[0]``, where Python put what was right for ``python -m capture``."""
    sys.argv = [name]
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = program.directory


def _spec_of(name: str) -> importlib.machinery.ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            package, name = name, f"{name}.__main__"
            spec = importlib.util.find_spec(name)
            if spec is None:
                message = f"No module named {name}; {package!r} is a package and cannot be directly executed"
                raise ProgramError(message)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ProgramError(f"Error while finding module specification for {name!r} ({_said(error)})") from error
    if spec is None:
        raise ProgramError(f"No module named {name}")
    if spec.loader is None or not hasattr(spec.loader, "get_code"):
        raise ProgramError(f"No code object available for {name}")
    return spec


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _without_own_frames(hook: Callable[..., Any]) -> Callable[..., Any]:
    """An ``excepthook`` that shows the user's frames only."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        sys.excepthook = hook
        cleaned = _cleaned(trace)
        return hook(kind, error.with_traceback(cleaned), cleaned)

    return show


def _cleaned(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    is_program = False
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        # Before the program come the frames of runpy, which no name of a file tells from the program's own use of it.
        is_own = name.startswith(_OWN)
        if is_program and not is_own:
            frames.append(trace)
        is_program = is_program or (is_own and trace.tb_frame.f_code is run_program.__code__)
        trace = trace.tb_next
    cleaned: TracebackType | None = None
    for frame in reversed(frames):
        cleaned = types.TracebackType(cleaned, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return cleaned
