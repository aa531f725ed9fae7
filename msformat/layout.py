"""Where the units of a dump lie: ``step{N}/rank{R}`` in a tree, or groups of one file.

A unit is one rank of one step. Its directory holds the canonical files, or ``dump.h5``, or ``dump.zarr``; a tree may
mix them. All forms that msprobe writes are known: ``rank{R}``, ``rank`` (one process), ``proc{pid}`` (one process of
26.2.0), ``rank`` without a step (saved variables of 1.2.2), ``graph`` or ``pynative`` above ``step{N}`` (MindSpore).

Only directories are listed here; no file is opened but a container, by its own store, for the names of its groups.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from msformat.arguments import path_text
from msformat.atomic import is_temporary
from msformat.errors import FormatError, MsformatError, StoreError, UnsafeInputError
from msformat.filesystem import FileSystem, Item, is_url, join, open_filesystem
from msformat.foreign import FORMS, find_foreign
from msformat.lookalikes import describe_directory, describe_file, describe_no_unit
from msformat.names import natural_key
from msformat.stores.registry import store_class
from msformat.unitfiles import (
    CONTAINERS,
    DOCUMENTS,
    JOURNAL_NAME,
    TENSORS,
    UNIT_FILES,
    backend_of,
    has_container,
    has_item,
    is_marked,
    telling_name,
    without_special,
)
from msformat.units import BRANCHES, UnitKey, is_rank_label, parse_step_label, parse_unit_path, separate_runs

__all__ = ["JOURNAL_NAME", "UnitKey", "UnitLocation", "find_units", "parse_unit_path", "unit_backend"]

_HDF5_SUFFIXES = (".h5", ".hdf5")
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_NEARLY = re.compile(r"(step|rank|proc)[ _-]?[0-9]+", re.IGNORECASE)
_ODD_NAME = "no name of a step or rank: left alone"

_SEARCH_DEPTH = 3
_SEARCH_DIRECTORIES = 1000
_LOOKED_FOR = (
    f"looked for step{{N}}/rank{{R}} (also rank, proc{{pid}}, and graph or pynative above) with "
    f"{', '.join((*DOCUMENTS, *CONTAINERS))} or {JOURNAL_NAME}, down to {_SEARCH_DEPTH} levels below"
)


@dataclass(frozen=True, slots=True)
class UnitLocation:
    """Where a unit is kept.

    Attributes
    ----------
    key
        Which unit.
    backend, location, group
        What :func:`msformat.stores.registry.open_store` wants.
    directory
        The unit's own directory; None for a group of a file that holds many units.
    journal
        Path of the journal; not None means the unit was never finished.
    """

    key: UnitKey
    backend: str
    location: str
    group: str = ""
    directory: str | None = None
    journal: str | None = None


def unit_backend(directory: str) -> str | None:
    """The store a unit directory uses (``files``, ``hdf5``, ``zarr``); None if it holds no unit."""
    fs = open_filesystem(directory)
    return backend_of(without_special(fs.list(""))) if fs.kind("") == "directory" else None


def find_units(path: str | os.PathLike[str]) -> tuple[list[UnitLocation], list[str]]:
    """Find every unit of a dump.

    Parameters
    ----------
    path
        A tree, a step or unit directory, a document in a unit directory, an ``.h5`` file or ``.zarr`` directory that
        holds units as groups, or a URL of one of these. A directory above one tree is fine, too; above several not.

    Returns
    -------
    units
        In order of their keys, at least one.
    problems
        What a user should know: links that lead outside and other things left alone, separate runs, data kept twice.

    Raises
    ------
    StoreError
        Nothing is there, or it cannot be read.
    FormatError
        No dump is there, or several; says what was looked for and what the place looks like instead.
    BackendMissingError
        A URL or container whose library is not installed.
    """
    location = _trimmed(path_text(path).removeprefix("file://"))
    try:
        found = _find(location)
    except OSError as error:
        if isinstance(error, MsformatError):
            raise
        raise StoreError(f"{location}: {error.strerror or error}") from error
    units = sorted(found.units.values(), key=lambda unit: unit.key.sort_key())
    return units, [*found.problems, *separate_runs(unit.key for unit in units)]


def _trimmed(location: str) -> str:
    """Without trailing slashes, unless nothing else would be left."""
    kept = location.rstrip("/")
    return location if not kept or kept.endswith(":") else kept


def _find(location: str) -> _Finder:
    fs = _filesystem(location)
    kind = fs.kind("")
    if kind is None:
        raise StoreError(f"{location}: no such file or directory")
    if kind == "special":
        raise UnsafeInputError(f"{location}: neither a file nor a directory, or a link that leads nowhere")
    return _find_at_file(fs, location) if kind == "file" else _find_in_directory(fs, location)


def _filesystem(location: str) -> FileSystem:
    try:
        return open_filesystem(location)
    except ValueError as error:
        # fsspec says so when it does not know the protocol.
        raise StoreError(f"{location}: {error}") from error


# --- from a file or directory to its units ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Context:
    """What the names of the directories above say."""

    step: int | None = None
    rank: str = ""
    branch: str = ""

    @classmethod
    def of(cls, location: str) -> _Context:
        """From the end of a path: a unit has the same key whether its tree is named or the unit itself."""
        parts = (location if is_url(location) else os.path.abspath(location)).rstrip("/").split("/")
        rank = parts.pop() if parts and is_rank_label(parts[-1]) else ""
        step = parse_step_label(parts[-1]) if parts else None
        if step is not None:
            parts.pop()
        return cls(step, rank, parts[-1] if parts and parts[-1] in BRANCHES else "")

    @property
    def key(self) -> UnitKey:
        return UnitKey(self.step, self.rank or "rank", self.branch)

    @property
    def path(self) -> str:
        return join(self.branch, "" if self.step is None else f"step{self.step}", self.rank)


def _find_at_file(fs: FileSystem, location: str) -> _Finder:
    above, name = _parent(location)
    if name in UNIT_FILES:
        finder = _Finder(_filesystem(above))
        if finder.unit("", finder.list(""), _Context.of(above)):
            return finder
        raise FormatError(_nothing(above, None, finder.problems))
    if name.lower().endswith(_HDF5_SUFFIXES) or fs.read("", 0, len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE:
        return _find_in_container(fs, "hdf5", location)
    finder = _Finder(_filesystem(above))
    if finder.foreign(name, [Item(name, "file", fs.size(""))], _Context.of(above)):
        return finder
    raise FormatError(_nothing(location, describe_file(name), []))


def _parent(location: str) -> tuple[str, str]:
    """Directory and name of a path or URL."""
    if not is_url(location):
        above, name = os.path.split(location)
        return above or ".", name
    scheme, _, rest = location.partition("://")
    above, _, name = rest.rpartition("/")
    return f"{scheme}://{above}", name


def _find_in_directory(fs: FileSystem, location: str) -> _Finder:
    finder = _Finder(fs)
    items = finder.list("")
    names = {item.name for item in items}
    if "zarr.json" in names:
        return _find_in_container(fs, "zarr", location)
    context = _Context.of(location)
    finder.tree("", items, context)
    if finder.units and backend_of(items):
        finder.note(
            "", f"a dump beside the directories of other units: only those are read; name {telling_name(items)} itself"
        )
    if not finder.units and not finder.whole("", items, context):
        return _search(finder, items)
    return finder


def _find_in_container(fs: FileSystem, backend: str, location: str) -> _Finder:
    finder = _Finder(fs)
    above, name = _parent(location)
    # Somebody who names dump.h5 inside a unit directory gets that unit, with the journal beside it.
    directory = above if name in CONTAINERS else None
    unfinished = directory is not None and _filesystem(above).kind(JOURNAL_NAME) == "file"
    journal = f"{above.rstrip('/')}/{JOURNAL_NAME}" if unfinished else None
    # A Zarr group inside a store is a directory and may be named, too: step0 of all.zarr.
    inside = _Context.of(location) if _is_layout(name) else None
    key = (inside or _Context.of(above)).key
    whole = UnitLocation(key, backend, location, directory=directory, journal=journal)
    finder.container(whole, inside.path if inside else "")
    if not finder.units:
        raise FormatError(_nothing(location, "its groups are no units (step{N}/rank{R})", finder.problems))
    return finder


def _search(finder: _Finder, items: Sequence[Item]) -> _Finder:
    """Look for one tree below a directory that is none, nearest level first; for one of another tool's after that."""
    fs = finder.fs
    for asks_others in (False, True):
        problems: list[str] = []
        found = _search_levels(fs, items, problems, asks_others=asks_others)
        if found is not None:
            return found
    hint = describe_directory(_parent(os.path.abspath(fs.describe("")))[1], items)
    raise FormatError(_nothing(fs.describe(""), hint, finder.problems + problems))


def _search_levels(fs: FileSystem, items: Sequence[Item], problems: list[str], *, asks_others: bool) -> _Finder | None:
    level = [("", items)]
    budget = _SEARCH_DIRECTORIES
    for _ in range(_SEARCH_DEPTH):
        names = [join(path, item.name) for path, found in level for item in found if _worth_a_look(item)]
        if len(names) > budget:
            problems.append(
                f"{fs.describe('')}: holds more than {_SEARCH_DIRECTORIES} directories: not all were searched"
            )
        tried = [_tree_at(fs, name, asks_others=asks_others) for name in sorted(names, key=natural_key)[:budget]]
        trees = [tree for tree, _ in tried if tree.units]
        if len(trees) == 1:
            return trees[0]
        if trees:
            raise FormatError(_several(fs, trees))
        problems += [problem for tree, _ in tried for problem in tree.problems]
        level = [(tree.root, found) for tree, found in tried]
        budget -= len(tried)
    return None


def _tree_at(fs: FileSystem, path: str, *, asks_others: bool) -> tuple[_Finder, list[Item]]:
    finder = _Finder(fs, path, asks_others=asks_others)
    items = finder.list(path)
    finder.tree(path, items, _Context())
    if not finder.units:
        finder.whole(path, items, _Context())
    return finder, items


def _worth_a_look(item: Item) -> bool:
    hidden = item.name.startswith(".") or item.name == TENSORS or item.name.endswith(".zarr")
    return item.kind == "directory" and not hidden and not _is_layout(item.name)


def _is_layout(name: str) -> bool:
    return name in BRANCHES or parse_step_label(name) is not None or is_rank_label(name)


# --- walking ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Finder:
    """Units and problems found so far. Depth is that of the format, so links in circles end by themselves.

    Attributes
    ----------
    asks_others
        Whether a directory that holds no dump of ours may be one of another tool.
    """

    fs: FileSystem
    root: str = ""
    units: dict[UnitKey, UnitLocation] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)
    asks_others: bool = True

    def note(self, path: str, text: str) -> None:
        self.problems.append(f"{self.fs.describe(path)}: {text}")

    def note_no_unit(self, path: str, items: Sequence[Item]) -> None:
        """Say that nothing is in a directory, unless that it cannot be listed was said already."""
        if path not in self.unlisted:
            self.note(path, describe_no_unit(os.path.basename(path), items))

    def list(self, path: str) -> list[Item]:
        """What may be read in a directory; the rest is noted."""
        try:
            found = self.fs.list(path)
        except (OSError, UnsafeInputError) as error:
            if not path:
                raise
            self.note(path, f"cannot be listed: {error}")
            self.unlisted.add(path)
            return []
        if is_marked(found):
            self.note(path, "a conversion is writing here, or died here: left alone")
            self.unlisted.add(path)
            return []
        for item in found:
            if item.kind == "special" and not is_temporary(item.name):
                self.note(join(path, item.name), "is no regular file, or a link that leads outside: left alone")
        return without_special(found)

    def tree(self, path: str, items: Iterable[Item], context: _Context) -> None:
        """Units in branches, steps and ranks below a directory."""
        rest: list[Item] = []
        for item in items:
            if item.kind != "directory":
                continue
            below = join(path, item.name)
            step = parse_step_label(item.name)
            if is_rank_label(item.name):
                self.unit(below, self.list(below), replace(context, rank=item.name), expected=True)
            elif step is not None:
                self.step(below, replace(context, step=step))
            elif item.name in BRANCHES and context == _Context():
                self.tree(below, self.list(below), _Context(branch=item.name))
            else:
                rest.append(item)
        self.note_nearly(path, rest)

    def note_nearly(self, path: str, items: Iterable[Item]) -> None:
        """Name directories that a person may take for a step or rank."""
        for item in items:
            below = join(path, item.name)
            if item.kind == "directory" and _NEARLY.fullmatch(item.name) and not self.is_taken_over(below):
                self.note(below, _ODD_NAME)

    def is_taken_over(self, path: str) -> bool:
        """Whether this is MindSpore's kernel dump (``rank_0``), all of whose steps are here as units, too."""
        items, steps = self.list(path), {key.step for key in self.units}
        found = find_foreign(self.fs, path, items, _Context().key)
        return has_item(items, "execution_order", "directory") and all(unit.key.step in steps for _, unit in found)

    def step(self, path: str, context: _Context) -> None:
        items = self.list(path)
        before = len(self.units)
        ranks = [item for item in items if item.kind == "directory" and is_rank_label(item.name)]
        self.tree(path, ranks, context)
        if len(self.units) > before:
            self.note_nearly(path, (item for item in items if not is_rank_label(item.name)))
        elif not self.unit(path, items, context) and not ranks:
            self.note_no_unit(path, items)

    def unit(self, path: str, items: Sequence[Item], context: _Context, *, expected: bool = False) -> bool:
        """Take a directory as a unit, if it is one."""
        backend = backend_of(items)
        if backend is None:
            if self.foreign(path, items, context):
                return True
            if expected:
                self.note_no_unit(path, items)
            return False
        self._note_double(path, items, backend)
        where = self.fs.describe(path)
        name = "" if backend == "files" else telling_name(items)
        location = self.fs.describe(join(path, name)) if name else where
        journal = self.fs.describe(join(path, JOURNAL_NAME)) if has_item(items, JOURNAL_NAME, "file") else None
        unit = UnitLocation(context.key, backend, location, directory=where, journal=journal)
        if name and not context.rank:
            # A directory that is not named for a rank may be the home of a file with many units.
            return self.container(unit)
        self._add(unit)
        return True

    def whole(self, path: str, items: Sequence[Item], context: _Context) -> bool:
        """Take a directory, below which no unit of ours was found, as a unit or as the dump of another tool."""
        said, self.problems = self.problems, []
        found = self.unit(path, items, context)
        # What is no name of ours may be one of the other tool's (rank_0).
        is_other = any(unit.backend in FORMS for unit in self.units.values())
        self.problems[:0] = [text for text in said if not (is_other and text.endswith(_ODD_NAME))]
        return found

    def foreign(self, path: str, items: Sequence[Item], context: _Context) -> bool:
        """Take a directory as units that another tool wrote, if it is one or holds some."""
        before = len(self.units)
        for backend, unit in find_foreign(self.fs, path, items, context.key) if self.asks_others else ():
            where = self.fs.describe(unit.path)
            self._add(UnitLocation(unit.key, backend, where, unit.group, directory=where))
        return len(self.units) > before

    def _note_double(self, path: str, items: Sequence[Item], backend: str) -> None:
        unread = [name for name, kind in CONTAINERS.items() if kind != backend and has_container(items, name)]
        if unread:
            self.note(path, f"{' and '.join(unread)} beside {telling_name(items)}: only the latter is read")

    def container(self, whole: UnitLocation, prefix: str = "") -> bool:
        """Units that are groups of one file below ``prefix``; ``whole`` is the unit if the root is one."""
        before = len(self.units)
        for group in store_class(whole.backend).groups(whole.location):
            key = parse_unit_path(join(prefix, group))
            if not group:
                self._add(whole)
            elif key is not None:
                self._add(UnitLocation(key, whole.backend, whole.location, group))
            else:
                self.problems.append(f"{whole.location}: group {group!r} is no unit (step{{N}}/rank{{R}}): left alone")
        return len(self.units) > before

    def _add(self, unit: UnitLocation) -> None:
        first = self.units.setdefault(unit.key, unit)
        if first is not unit:
            self.problems.append(f"{unit.location}: {unit.key} was already found in {first.location}: left alone")


# --- messages --------------------------------------------------------------------------------------------------------


def _nothing(location: str, hint: str | None, problems: Sequence[str]) -> str:
    text = f"{location}: no dump found"
    if hint:
        text += f": {hint}"
    if problems:
        text += f"; {'; '.join(problems[:3])}" + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
    return f"{text} ({_LOOKED_FOR})"


def _several(fs: FileSystem, trees: Sequence[_Finder]) -> str:
    names = ", ".join(tree.root for tree in trees[:5]) + (", …" if len(trees) > 5 else "")
    return f"{fs.describe('')}: holds {len(trees)} dumps, name one of them: {names}"
