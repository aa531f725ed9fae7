"""Where a conversion may write: nothing is overwritten unasked, nothing of a stranger is ever removed.

Whatever is not finished carries the name of :func:`msformat.atomic.temporary_sibling`; a unit that is being replaced
is renamed aside under such a name too, with ``.replaced`` in it, because it may hold files that are not ours. Those
are moved back beside the new unit.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msformat.atomic import (
    fsync_directory,
    is_temporary,
    make_directories,
    make_public,
    temporary_sibling,
    usual_mode,
)
from msformat.errors import StoreError
from msformat.filelock import FileLock
from msformat.filesystem import is_url
from msformat.layout import find_units
from msformat.stores.hdf5_paged import side_path

__all__ = [
    "SKELETON",
    "Destination",
    "check_relation",
    "check_state",
    "exclusive",
    "holds_units",
    "install",
    "leftovers",
    "make_parents",
    "prune_empty",
    "remove_leftovers",
    "remove_temporary",
    "resolve_destination",
    "suffix_backend",
    "sweep",
    "unit_files",
    "zarr_files",
]

_SUFFIXES = {".h5": "hdf5", ".hdf5": "hdf5", ".zarr": "zarr"}
_LOCK = ".msformat-lock"
_REPLACED = ".replaced"
_MODE = ".mode"
# What a unit directory of ours may hold; further documents are named by the caller.
_UNIT_DOCUMENTS = frozenset(
    {"dump.json", "debug.json", "stack.json", "construct.json", "dump_error_info.log", "tensors.jsonl", "journal.jsonl"}
)
_TENSOR_DIRECTORY = "dump_tensor_data"
# Paths in a .zarr directory that stores/zarr.py makes; arrays that other programs put elsewhere in it are strangers.
_UNIT_GROUP = r"(?:(?:graph|pynative)/)?(?:step\d+/)?(?:(?:rank\d*|proc\d+)/)?"
_ZARR_FILE = re.compile(
    _UNIT_GROUP + r"(?:zarr\.json|index\.jsonl|(?:tensors|packs|documents)/(?:[^/]+/)?"
    r"(?:zarr\.json|c(?:[./]\d+)*|\d+(?:[./]\d+)*))"
)
_SIDE_FILE = Path(side_path("dump.h5")).name
# Directories of a tree above units, and of units.
SKELETON = re.compile(r"step\d+|rank\d*|proc\d+|graph|pynative")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where and how the units are written.

    Attributes
    ----------
    path
        Absolute path as the user named it, links in its parent resolved; or a URL.
    backend
        ``files``, ``hdf5`` or ``zarr``.
    single
        One file or group for all units, instead of a tree with one store a unit.
    """

    path: str
    backend: str
    single: bool

    @property
    def remote(self) -> bool:
        """Whether it is a URL."""
        return is_url(self.path)

    def unit_directory(self, unit_path: str) -> str:
        """The directory of a unit in a tree."""
        if self.remote:
            return f"{self.path}/{unit_path}"
        return str(Path(self.path) / unit_path)

    def store_location(self, unit_directory: str) -> str:
        """What ``open_store`` wants for a unit of a tree."""
        name = {"hdf5": "dump.h5", "zarr": "dump.zarr"}.get(self.backend)
        return f"{unit_directory.rstrip('/')}/{name}" if name else unit_directory


def resolve_destination(dst: str, to: str | None) -> Destination:
    """Read backend and form from the name, as ``convert`` documents it.

    Raises
    ------
    StoreError
        Nothing at all, or a suffix that contradicts ``to``.
    """
    if not dst:
        raise StoreError("the destination has no name")
    trimmed = dst.rstrip("/") or "/"
    path = str(Path(os.path.realpath(Path(trimmed).parent)) / Path(trimmed).name)
    if Path(trimmed).name in ("", ".", ".."):
        path = os.path.realpath(trimmed)
    by_suffix = suffix_backend(path, to, dst)
    return Destination(path, by_suffix or to or "files", single=by_suffix is not None)


def suffix_backend(name: str, to: str | None, label: str) -> str | None:
    """The store that a name's suffix asks for, None for none.

    Raises
    ------
    StoreError
        Not the one asked for by ``to``.
    """
    by_suffix = _SUFFIXES.get(Path(name).suffix.lower())
    if to is not None and by_suffix not in (None, to):
        raise StoreError(f"{label}: the suffix says {by_suffix}, but {to} was asked for")
    return by_suffix


def check_relation(src: str, destination: Destination) -> None:
    """Refuse a destination that is the source, holds it, or lies in it.

    Raises
    ------
    StoreError
        Writing there could destroy what is being read.
    """
    if is_url(src) or not src:
        return
    source = os.path.realpath(src)
    if Path(source).name.endswith((".json", ".jsonl")) and not os.path.isdir(source):
        source = str(Path(source).parent)
    target = os.path.realpath(destination.path)
    if source == target or (os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target)):
        raise StoreError(f"{destination.path}: source and destination are the same; convert to another place")
    if _lies_in(target, source):
        raise StoreError(f"{destination.path}: the destination lies inside the source {src}")
    if _lies_in(source, target):
        raise StoreError(f"{destination.path}: the source {src} lies inside the destination")


def _lies_in(inner: str, outer: str) -> bool:
    return inner.startswith(outer.rstrip("/") + "/")


def check_state(destination: Destination, *, overwrite: bool, resume: bool) -> None:
    """Refuse a destination that holds something, unless it was asked for and is a store of ours.

    Raises
    ------
    StoreError
        Something stands there.
    """
    path = destination.path
    if not os.path.lexists(path) or _is_vacant(path):
        return
    if not (overwrite or resume):
        raise StoreError(f"{path}: already exists; --overwrite replaces units, --resume goes on with an unfinished run")
    if destination.single and os.path.islink(path):
        raise StoreError(f"{path}: is a symbolic link; name the file it leads to")
    if destination.single and os.path.isdir(path) != (destination.backend == "zarr"):
        raise StoreError(f"{path}: is no {destination.backend} store; nothing was touched")
    if not holds_units(destination):
        raise StoreError(f"{path}: holds no dump, so nothing there is replaced; choose another destination")


def holds_units(destination: Destination) -> bool:
    """Whether a dump as we would write it stands at the destination."""
    try:
        units, _ = find_units(destination.path)
    except (StoreError, ValueError):
        return False
    if destination.single:
        return any(unit.directory is None for unit in units)
    # A dump somewhere below does not make its parents a dump of ours.
    return any(unit.directory == destination.unit_directory(unit.key.path) for unit in units)


def _is_vacant(path: str) -> bool:
    """An empty directory, or one with nothing but what a killed conversion left behind."""
    if os.path.islink(path) and not os.path.isdir(path):
        return False
    if not os.path.isdir(path):
        return False
    with os.scandir(path) as items:
        return all(_is_leftover(item) for item in items)


def _is_leftover(item: os.DirEntry[str]) -> bool:
    if is_temporary(item.name) or item.name.endswith(_LOCK):
        return True
    is_skeleton = SKELETON.fullmatch(item.name) is not None and item.is_dir(follow_symlinks=False)
    return is_skeleton and _is_vacant(item.path)


# --- one writer at a time --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def exclusive(path: str) -> Iterator[None]:
    """Hold the right to write ``path``. The lock dies with the process, so a stale one cannot exist.

    Raises
    ------
    StoreError
        Another process is writing there.
    """
    name = str(Path(path).parent / f".{Path(path).name[:120]}{_LOCK}")
    # The name of a dead process's lock is still there: claim it, for whoever holds it no longer lives.
    lock = None
    try:
        lock = (FileLock.claim if os.path.lexists(name) else FileLock.create)(name, taken=_taken)
        yield
    except KeyboardInterrupt:
        # It may have come between the making of the lock's file and the line that keeps it.
        if lock is None and os.path.lexists(name):
            with contextlib.suppress(StoreError):
                lock = FileLock.claim(name, taken=_taken)
        raise
    finally:
        if lock is not None:
            lock.remove()


def _taken(path: str, *, live: bool) -> str:
    del live
    return f"{path}: another process is converting into it"


# --- temporaries -----------------------------------------------------------------------------------------------------


def leftovers(path: str) -> list[str]:
    """Temporaries that an earlier, unfinished run left for ``path``, newest first; units renamed aside are not."""
    return _siblings(path, _prefix(path))


def _prefix(path: str) -> str:
    """What the names of all temporaries for a path begin with."""
    return Path(temporary_sibling(path)).name[:-12]


def _siblings(path: str, prefix: str) -> list[str]:
    directory = Path(path).parent
    if not directory.is_dir():
        return []
    found = [item for item in directory.iterdir() if is_temporary(item.name) and item.name[:-12] == prefix]
    return [str(item) for item in sorted(found, key=lambda item: item.lstat().st_mtime_ns, reverse=True)]


def remove_leftovers(path: str, *, keep: str | None = None) -> None:
    """Remove what unfinished runs left for ``path``. The caller holds :func:`exclusive`, so nobody writes them."""
    for name in leftovers(path):
        if name != keep:
            remove_temporary(name)
    for name in _half_made(path):
        remove_temporary(name)
    for probe in _siblings(path, _prefix(path + _MODE)):
        remove_temporary(probe)
    for aside in _siblings(path, _prefix(path + _REPLACED)):
        _clear_aside(aside, path, ())


def _half_made(path: str) -> list[str]:
    """Temporaries of temporaries: the store died while it made its file."""
    directory = Path(path).parent
    names = [item.name for item in directory.iterdir()] if directory.is_dir() else []
    return [str(directory / name) for name in names if name.startswith("." + _prefix(path)) and is_temporary(name)]


def remove_temporary(path: str) -> None:
    """Remove a temporary of ours, file or folder, and temporaries of it; anything else is left alone."""
    if not is_temporary(Path(path).name):
        raise StoreError(f"{path}: is no temporary of msformat")
    # Ctrl-C may hit a store while it makes its file, before it has anything to clean up after.
    for name in leftovers(path):
        Path(name).unlink(missing_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        # An HDF5 file whose writer died in the middle of a sync has a side file.
        Path(side_path(path)).unlink(missing_ok=True)
        Path(path).unlink(missing_ok=True)


def sweep(path: str) -> None:
    """Remove temporaries inside a temporary of ours that is to be continued. Links are not followed."""
    for directory, _, names in os.walk(path):
        for name in filter(is_temporary, names):
            Path(directory, name).unlink(missing_ok=True)


def make_parents(path: str, root: str) -> None:
    """Make the directories between ``root`` and ``path``, through no link.

    Raises
    ------
    StoreError
        A symbolic link or file stands where a directory of the tree should: what it leads to is not ours to write.
    """
    make_directories(root)
    current = Path(root)
    for part in Path(path).relative_to(root).parts[:-1]:
        current /= part
        with contextlib.suppress(FileExistsError):
            current.mkdir()
            fsync_directory(current.parent)
        if current.is_symlink() or not current.is_dir():
            raise StoreError(f"{current}: is no directory of the tree (a link or a file); nothing was written there")
    if os.path.islink(path):
        raise StoreError(f"{path}: is a symbolic link; what it leads to is not replaced")


def prune_empty(path: str, root: str) -> None:
    """Remove ``path`` and its parents as far as they are empty, ``root`` excluded."""
    current = Path(path)
    with contextlib.suppress(OSError):
        while _lies_in(str(current), root):
            current.rmdir()
            current = current.parent


# --- replacing -------------------------------------------------------------------------------------------------------


def install(temporary: str, path: str, documents: Iterable[str] = ()) -> list[str]:
    """Give what is whole its final name and usual mode; what stood there is removed as far as it is ours.

    Parameters
    ----------
    temporary, path
        A file or directory, and its final name beside it.
    documents
        Names of documents of the unit, beyond the usual ones, that may be replaced.

    Returns
    -------
    list of str
        Where the files now are that were not ours; nearly always where they were.
    """
    make_public(temporary, usual_mode(path + _MODE, directory=os.path.isdir(temporary)))
    if not os.path.lexists(path):
        os.rename(temporary, path)
        fsync_directory(Path(path).parent)
        return []
    if not os.path.isdir(path):
        os.replace(temporary, path)
        fsync_directory(Path(path).parent)
        return []
    if os.path.islink(path):
        raise StoreError(f"{path}: is a symbolic link; what it leads to is not replaced")
    aside = temporary_sibling(path + _REPLACED)
    os.rename(path, aside)
    try:
        os.rename(temporary, path)
    except BaseException:
        if not os.path.lexists(path):
            os.rename(aside, path)
        raise
    fsync_directory(Path(path).parent)
    return _clear_aside(aside, path, documents)


def _clear_aside(aside: str, path: str, documents: Iterable[str]) -> list[str]:
    """Remove what is ours from a unit renamed aside; move strangers to where they were."""
    is_ours = zarr_files if path.endswith(".zarr") else unit_files(documents)
    strangers = [_move_back(aside, path, name) for name in list(_discard(aside, is_ours))]
    for directory, _, _ in os.walk(aside, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return strangers


def _move_back(aside: str, path: str, name: str) -> str:
    """Move a stranger to where it was, and say where it is."""
    source, target = os.path.join(aside, name), os.path.join(path, name)
    if os.path.lexists(target):
        # The new unit uses this name: neither of the two may be lost.
        return source
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(source, target)
    return target


def _discard(root: str, is_ours: Callable[[str], bool]) -> Iterator[str]:
    """Unlink files of ours below ``root``, through no link; relative names of all the others."""
    for directory, folders, names in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(directory, name))]
        for name in (*names, *links):
            full = os.path.join(directory, name)
            relative = os.path.relpath(full, root)
            is_file = stat.S_ISREG(os.lstat(full).st_mode)
            if is_file and (is_temporary(name) or is_ours(relative)):
                os.unlink(full)
            else:
                yield relative


def zarr_files(relative: str) -> bool:
    """Whether a file of a Zarr directory is one that we make."""
    return _ZARR_FILE.fullmatch(relative) is not None


def unit_files(documents: Iterable[str] = ()) -> Callable[[str], bool]:
    """Tells which files of a unit directory we make; ``documents`` are some beyond the usual ones."""
    return _UnitFiles(frozenset(documents))


class _UnitFiles:
    """Which files of a unit directory are ours."""

    def __init__(self, documents: frozenset[str]) -> None:
        self._documents = documents | _UNIT_DOCUMENTS

    def __call__(self, relative: str) -> bool:
        first, _, rest = relative.partition("/")
        if not rest:
            return first in self._documents or first in ("dump.h5", _SIDE_FILE)
        if first == "dump.zarr":
            return zarr_files(rest)
        return first == _TENSOR_DIRECTORY and rest.endswith((".pt", ".npy"))
