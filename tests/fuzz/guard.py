"""What every target promises, whatever its input: bounded memory, and nothing touched outside of its own directory."""

from __future__ import annotations

import os
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.fuzz.target import Target

__all__ = ["MOST_MEMORY", "TouchedOutsideError", "run", "run_measured"]

#: Bytes that reading an input of some KiB may take at once. Deflate packs a thousandfold, so a few MiB are too few.
MOST_MEMORY = 128 << 20
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of files and how many paths each names first.
_CHANGES = {
    "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1,
    "os.symlink": 2, "os.truncate": 1, "os.utime": 1, "shutil.rmtree": 1,
}  # fmt: skip
# What no reader ever does.
_NEVER = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pickle.find_class",
    "pty.spawn", "socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "urllib.Request",
}  # fmt: skip
# Python itself, and what the system says of memory.
_READABLE = ("/dev", "/etc/localtime", "/proc", "/sys", "/usr/lib", "/usr/share")


class TouchedOutsideError(AssertionError):
    """A target opened, made or ran something outside of its directory."""


class _Watch:
    """An audit hook, which can never be taken out of a process again: it is switched on for a target only."""

    def __init__(self) -> None:
        self.place: str | None = None
        self.found: list[str] = []
        roots = (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[2]))
        self._readable = (*map(os.path.realpath, roots), *_READABLE)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.place is None:
            return
        if event == "open":
            self._look_at_open(*arguments)
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                self._require(path, event, (self.place,))
        elif event in _NEVER:
            self.found.append(f"{event} {arguments!r:.200}")

    def _look_at_open(self, path: Any, _mode: Any, flags: Any) -> None:
        assert self.place is not None
        writes = isinstance(flags, int) and flags & _WRITES
        self._require(path, "open", (self.place, "/dev/null") if writes else (self.place, *self._readable))

    def _require(self, path: Any, event: str, allowed: tuple[str, ...]) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        # A name with NUL reaches no file.
        text = os.fsdecode(path)
        real = "" if "\0" in text else os.path.realpath(text)
        if real and not any(real == root or real.startswith(f"{root}/") for root in allowed):
            self.found.append(f"{event} {real}")


@lru_cache(maxsize=1)
def _watch() -> _Watch:
    made = _Watch()
    sys.addaudithook(made)
    return made


@contextmanager
def _watched(place: Path) -> Iterator[None]:
    watch = _watch()
    watch.found.clear()
    watch.place = os.path.realpath(place)
    try:
        yield
    finally:
        watch.place = None
    if watch.found:
        raise TouchedOutsideError("; ".join(watch.found[:5]))


@lru_cache(maxsize=64)
def _warm_up(target: Target, place: Path) -> None:
    """Libraries that are imported on first use look around in the system, as no input makes them do."""
    for data in target.seeds():
        _empty(place)
        target.check(data, place)


def _empty(place: Path) -> None:
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()


def run(target: Target, data: bytes, place: Path) -> None:
    """Give an input to a target.

    Parameters
    ----------
    place
        A directory for what the target needs; emptied first, and made.

    Raises
    ------
    Exception
        A find: the input breaks a promise.
    """
    _warm_up(target, place)
    _empty(place)
    with _watched(place):
        target.check(data, place)


def run_measured(target: Target, data: bytes, place: Path) -> None:
    """:func:`run`, with memory measured, which takes twice the time."""
    _warm_up(target, place)
    tracemalloc.start()
    try:
        run(target, data, place)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MOST_MEMORY, f"{len(data)} bytes took {peak} bytes of memory"
