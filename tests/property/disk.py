"""A directory under watch: what a death between any two calls leaves of it, and what the loss of power does.

Everything that changes files goes through a few functions of :mod:`os` and :mod:`io`. They are replaced by ones that
say so *before* they do their work. At such a moment the directory is what a killed process would leave.

After a power cut only that is sure which was synced: the bytes of a file as of its last fsync, the names in a directory
as of that directory's. Of everything later any part may be there: each file and each directory is, by the choice of a
seed, as it was synced or as it is now; a file may also have got a part of what was appended.
"""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

__all__ = ["WatchedDisk"]

# Of :mod:`os`, and where a path stands that loses a name.
_LOSES_A_NAME = {"unlink": 0, "remove": 0, "rmdir": 0, "replace": 1, "rename": 1}
_CALLS = ("write", "fsync", "link", "mkdir", "ftruncate", "truncate", *_LOSES_A_NAME)
_SYNCED, _NOW, _TORN = range(3)


class _Raw(io.FileIO):
    """A file that says what it does to itself."""

    tell_disk: Callable[[], None]

    def write(self, data: Any) -> Any:
        self.tell_disk()
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self.tell_disk()
        return super().truncate(size)


class WatchedDisk:
    """What happens below a directory.

    Parameters
    ----------
    root
        Exists, and is taken to be on disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = count()
        # Inode numbers are used again; a file keeps its own number from its first name to its last.
        self._files: dict[int, int] = {}
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._before: Callable[[], None] | None = None

    # --- watching ----------------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self, before: Callable[[], None]) -> Iterator[None]:
        """Have ``before`` called in front of each call that changes files."""
        with ExitStack() as stack:
            for name in _CALLS:
                stack.enter_context(mock.patch.object(os, name, self._wrapped(name, getattr(os, name))))
            raw = type("Raw", (_Raw,), {"tell_disk": lambda _: self._tell()})
            opened = self._opener(raw, io.open)
            stack.enter_context(mock.patch.object(os, "open", self._creating(os.open)))
            stack.enter_context(mock.patch.object(io, "open", opened))
            stack.enter_context(mock.patch.object(builtins, "open", opened))
            stack.enter_context(mock.patch.object(io, "FileIO", raw))
            self._before = before
            try:
                yield
            finally:
                self._before = None

    def _tell(self) -> None:
        """Whoever looks may use files himself."""
        before, self._before = self._before, None
        if before is None:
            return
        try:
            before()
        finally:
            self._before = before

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if self._before is None:
                return function(*arguments, **more)
            self._tell()
            if name in _LOSES_A_NAME:
                self._forget(arguments[_LOSES_A_NAME[name]], more)
            result = function(*arguments, **more)
            if name == "fsync":
                self._synced(arguments[0])
            return result

        return call

    def _creating(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            if flags & (os.O_CREAT | os.O_TRUNC):
                self._tell()
            return function(path, flags, *arguments, **more)

        return call

    def _opener(self, raw: type[_Raw], function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **more: Any) -> Any:
            writes = "b" in mode and set(mode) & set("wxa+")
            if not writes or self._before is None:
                return function(file, mode, buffering, *arguments, **more)
            self._tell()
            stream = raw(file, mode.replace("b", ""), closefd=more.get("closefd", True), opener=more.get("opener"))
            return stream if buffering == 0 else io.BufferedWriter(stream)

        return call

    # --- what is synced ----------------------------------------------------------------------------------------------

    def _number(self, status: os.stat_result) -> int:
        if status.st_ino not in self._files:
            self._files[status.st_ino] = next(self._numbers)
        return self._files[status.st_ino]

    def _forget(self, path: Any, more: dict[str, Any]) -> None:
        if more.get("dir_fd") is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{more['dir_fd']}"), path)
        try:
            status = os.lstat(path)
        except OSError:
            return
        if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):
            self._files.pop(status.st_ino, None)

    def _synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        number = self._number(status)
        place = Path(f"/proc/self/fd/{descriptor}")
        if stat.S_ISREG(status.st_mode):
            self._bytes[number] = place.read_bytes()
        elif stat.S_ISDIR(status.st_mode):
            self._names[number] = self._listed(place)

    def sync_directory(self, directory: Path) -> None:
        """What an fsync of a directory does."""
        self._names[self._number(os.stat(directory))] = self._listed(directory)

    def _listed(self, directory: Path) -> dict[str, int]:
        return {name: self._number(os.lstat(directory / name)) for name in os.listdir(directory)}

    # --- power cuts --------------------------------------------------------------------------------------------------

    def cut_power(self, target: Path, seed: int) -> None:
        """Put into ``target``, which is made, what a power cut right now may leave.

        Parameters
        ----------
        seed
            0: nothing but what was synced. Any other: some of the rest, too.
        """
        now: dict[int, bytes | dict[str, int]] = {}
        self._collect(self.root, now)
        self._build(target, self._number(os.stat(self.root)), now, Random(seed) if seed else None, is_root=True)

    def _collect(self, directory: Path, now: dict[int, bytes | dict[str, int]]) -> None:
        now[self._number(os.stat(directory))] = self._listed(directory)
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                self._collect(path, now)
            else:
                now[self._number(os.lstat(path))] = path.read_bytes()

    def _build(
        self, target: Path, number: int, now: dict[int, bytes | dict[str, int]], random: Random | None, *, is_root: bool
    ) -> None:
        target.mkdir()
        current = now.get(number)
        is_known = isinstance(current, dict) and (is_root or _choice(random) != _SYNCED)
        names = current if is_known and isinstance(current, dict) else self._names.get(number, {})
        for name, child in names.items():
            if isinstance(now.get(child), dict) or child in self._names:
                self._build(target / name, child, now, random, is_root=False)
            else:
                (target / name).write_bytes(self._content(child, now, random))

    def _content(self, number: int, now: dict[int, bytes | dict[str, int]], random: Random | None) -> bytes:
        synced, current = self._bytes.get(number, b""), now.get(number)
        choice = _choice(random)
        if choice == _SYNCED or not isinstance(current, bytes):
            return synced
        if choice == _TORN and random is not None and len(current) > len(synced):
            return current[: random.randrange(len(synced), len(current))]
        return current


def _choice(random: Random | None) -> int:
    return _SYNCED if random is None else random.choice((_SYNCED, _NOW, _NOW, _TORN))
