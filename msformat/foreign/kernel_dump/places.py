"""Where kernel dumps lie: the directory families of CANN, MindSpore and msprobe, told by names alone.

====================================================================  ==============================================
``step{n}/{time}/{device}/``                                          PyTorch and MindSpore PyNative, level L2
``[{step}/]{time}/{device}/[{model}/]{model_id}/{iteration}/``        MindSpore O2, binary (2.3 to 2.5)
``rank_{id}/{net}/{graph}/{iteration}/`` or ``constants/``            MindSpore O0 and O1, one ``.npy`` a tensor
``rank_{id}/debug_files[/{iteration}]/``                              overflow files of the same
``rank_{id}/{time}/step_{n}/``                                        MindSpore O2 through msprobe
``{device}_{pid}/{round}/{id}_{Layer}/…/{before|after}/``             ATB
any other directory with files of such names                          no step, no rank
====================================================================  ==============================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msformat.errors import UnsafeInputError
from msformat.filesystem import FileSystem, Item, is_url, join
from msformat.foreign import ForeignUnit
from msformat.foreign.kernel_dump.filenames import is_hash_name, parse_kernel_name
from msformat.foreign.kernel_dump.record import Doubt, DoubtName
from msformat.names import natural_key
from msformat.units import UnitKey

__all__ = ["Place", "find", "is_atb_file", "is_kernel_file", "place_of_file", "scan"]

_TIME = r"20[0-9]{12}"
_NUMBER = r"[0-9]{1,18}"
# Matched at the end of a directory's path; the first that fits has it.
_FAMILIES = {
    "adump": re.compile(rf"(?:^|/)rank_(?P<rank>{_NUMBER})/{_TIME}/step_(?P<step>{_NUMBER})$"),
    "debug_files": re.compile(rf"(?:^|/)rank_(?P<rank>{_NUMBER})/debug_files(?:/(?P<step>{_NUMBER}))?$"),
    "acl": re.compile(
        rf"(?:^|/)(?:step(?P<step>{_NUMBER})/(?:rank(?P<label>{_NUMBER})/)?|(?P<step_id>{_NUMBER})/)?"
        rf"{_TIME}/(?P<rank>{_NUMBER})"
        rf"(?:/(?:(?P<net>[^/]+)/)?(?P<graph>{_NUMBER})/(?P<iteration>{_NUMBER}))?$"
    ),
    "kbyk": re.compile(
        rf"(?:^|/)rank_(?P<rank>{_NUMBER})/(?P<net>[^/]+)/(?P<graph>{_NUMBER})/(?:(?P<step>{_NUMBER})|constants)$"
    ),
    "atb": re.compile(
        rf"(?:^|/)(?P<rank>{_NUMBER})_(?P<pid>{_NUMBER})/(?P<step>{_NUMBER})(?P<layer>(?:/{_NUMBER}_[^/]+)*/(?:before|after))$"
    ),
}
_MINDSPORE = frozenset({"adump", "kbyk", "debug_files"})
# Directories worth entering below a kernel dump, by their own name, or by the one above.
_ENTERED = re.compile(
    rf"step_?{_NUMBER}|rank_?{_NUMBER}|{_NUMBER}|debug_files|constants|before|after|{_NUMBER}_\w[\w.-]*|atb_dump_data"
)
_HAS_NAMED_CHILDREN = re.compile(rf"rank_{_NUMBER}|{_TIME}/{_NUMBER}")
_NEVER_ENTERED = frozenset({"graphs", "execution_order", "dump_tensor_data"})
_ATB_FILE = re.compile(r"(?:intensor|outtensor)[0-9]{1,6}\.bin")
_MAPPING = "mapping.csv"
_TABLES = ("statistic.csv", _MAPPING)
_MOST_DEPTH = 8
_MOST_DIRECTORIES = 100_000


@dataclass(frozen=True, slots=True)
class Place:
    """A directory with kernel files.

    Attributes
    ----------
    path
        Relative to the root of the scan, ``""`` for the root itself.
    key
        Step and rank, as the names of directories say.
    family
        ``acl``, ``kbyk``, ``adump``, ``debug_files``, ``atb``, or ``plain`` for a directory of no family.
    base
        The path in front of the family's directories, of which one dump has one.
    names
        ``net``, ``graph``, ``iteration``, ``pid``, ``layer``, as far as the path has them.
    files
        Names and sizes of its regular files.
    """

    path: str
    key: UnitKey
    family: str = "plain"
    base: str = ""
    names: dict[str, str] = field(default_factory=dict)
    files: tuple[Item, ...] = ()

    @property
    def framework(self) -> str:
        """Which framework writes such directories."""
        return "mindspore" if self.family in _MINDSPORE or "net" in self.names else "pytorch"


def is_kernel_file(name: str) -> bool:
    """Whether a name is that of a kernel dump file, or of the table of one."""
    return parse_kernel_name(name.removesuffix(".csv")) is not None or is_atb_file(name)


def is_atb_file(name: str) -> bool:
    """Whether a name is that of an ATB tensor."""
    return _ATB_FILE.fullmatch(name) is not None


def place_of_file(fs: FileSystem, path: str, key: UnitKey) -> Place:
    """A place with one file only, and the table that knows names which were too long."""
    above, _, name = path.rpartition("/")
    names = [name] + [_MAPPING] * (fs.kind(join(above, _MAPPING)) == "file" and name != _MAPPING)
    return _placed(fs, above, key, tuple(Item(file, "file", fs.size(join(above, file))) for file in names))


def find(fs: FileSystem, path: str, items: Sequence[Item], key: UnitKey) -> list[ForeignUnit]:
    """Units of kernel dumps at a directory or file: see :mod:`msformat.foreign`.

    A directory above several dumps is none: naming one of them is left to the user.
    """
    if fs.kind(path) == "file":
        named = path.rpartition("/")[2]
        is_ours = is_kernel_file(named) or is_hash_name(named)
        return [ForeignUnit(_file_key(fs, path, key), path)] if is_ours else []
    places = list(scan(fs, path, key, items=items))
    structured = {place.base for place in places if place.family != "plain"}
    if len(structured) > 1 or any(place.family == "plain" and place.path != path for place in places):
        places = [place for place in places if place.path == path]
    return [_unit(places, found) for found in sorted({place.key for place in places})]


def _file_key(fs: FileSystem, path: str, key: UnitKey) -> UnitKey:
    return _placed(fs, path.rpartition("/")[0], key, ()).key


def _unit(places: Sequence[Place], key: UnitKey) -> ForeignUnit:
    """One unit at the deepest directory that has all its files; with a group where others lie below it, too."""
    # Parameters of ATB operations lie above their tensors.
    own = [place.path.removesuffix(place.names.get("layer", "")) for place in places if place.key == key]
    common = _common(own)
    others = any(place.key != key and _is_below(place.path, common) for place in places)
    return ForeignUnit(key, common, key.path if others else "")


def _common(paths: Iterable[str]) -> str:
    parts = [path.split("/") if path else [] for path in paths]
    shared = 0
    while all(len(part) > shared for part in parts) and len({part[shared] for part in parts}) == 1:
        shared += 1
    return "/".join(parts[0][:shared])


def _is_below(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}/")


def scan(
    fs: FileSystem,
    path: str,
    key: UnitKey,
    *,
    items: Sequence[Item] | None = None,
    only: UnitKey | None = None,
    doubts: list[Doubt] | None = None,
) -> Iterator[Place]:
    """Directories with kernel files at and below a directory, in natural order; nothing is opened.

    Parameters
    ----------
    key
        Step and rank of a directory whose path says none.
    items
        Content of the first directory, where known.
    only
        Leave out directories whose path belongs to another unit, without listing them.
    doubts
        Takes what may not be read.
    """
    said = doubts if doubts is not None else []
    # Path, depth, and whether it lies in a kernel dump, where everything that is not read is named.
    pending: list[tuple[str, int, bool]] = [(path, 0, False)]
    entered: set[tuple[int, int]] = set()
    seen = 0
    while pending:
        here, depth, is_inside = pending.pop()
        place = _placed(fs, here, key, ())
        if only is not None and place.family != "plain" and place.key != only:
            continue
        if seen >= _MOST_DIRECTORIES:
            said.append(
                Doubt(DoubtName.no_regular_file, f"{fs.describe(path)}: not all below {seen} directories is read")
            )
            return
        seen += 1
        identity = fs.identity(here)
        if identity is not None and identity in entered:
            text = f"{fs.describe(here)}: is another name of a directory that was read already"
            said.append(Doubt(DoubtName.left_alone, text))
            continue  # links that lead back up would make the tree endless
        entered |= {identity} if identity is not None else set()
        listed = list(items) if items is not None and depth == 0 else _listed(fs, here, said)
        files = tuple(item for item in listed if item.kind == "file")
        said += _doubt_special(fs, here, listed)
        is_ours = _holds_kernels(files)
        is_inside = is_inside or is_ours or place.family != "plain"
        if is_ours:
            yield _placed(fs, here, key, files)
        folders = [item.name for item in listed if item.kind == "directory"]
        inside = [name for name in folders if depth < _MOST_DEPTH and _is_entered(fs, here, name)]
        pending.extend(
            (join(here, name), depth + 1, is_inside) for name in sorted(inside, key=natural_key, reverse=True)
        )
        if is_inside:
            said += _doubt_strangers(fs, here, "directories", set(folders).difference(inside))
            said += _doubt_strangers(fs, here, "files", set() if is_ours else {item.name for item in files})


def _listed(fs: FileSystem, path: str, doubts: list[Doubt]) -> list[Item]:
    try:
        return fs.list(path)
    except (OSError, UnsafeInputError) as error:
        doubts.append(Doubt(DoubtName.no_regular_file, f"{fs.describe(path)}: cannot be listed: {error}"))
        return []


def _doubt_strangers(fs: FileSystem, path: str, what: str, names: set[str]) -> Iterator[Doubt]:
    if names:
        some = ", ".join(sorted(names, key=natural_key)[:3]) + (", …" if len(names) > 3 else "")
        text = f"{fs.describe(path)}: {len(names)} {what} are none of a kernel dump: {some}"
        yield Doubt(DoubtName.left_alone, text)


def _doubt_special(fs: FileSystem, path: str, items: Sequence[Item]) -> Iterator[Doubt]:
    for item in items:
        if item.kind == "special" and (is_kernel_file(item.name) or _ENTERED.fullmatch(item.name)):
            text = f"{fs.describe(join(path, item.name))}: is no regular file, or a link that leads outside: left alone"
            yield Doubt(DoubtName.no_regular_file, text)


def _holds_kernels(files: Sequence[Item]) -> bool:
    if any(is_kernel_file(item.name) for item in files):
        return True
    names = {item.name for item in files}
    return any(table in names for table in _TABLES) and (
        "statistic.csv" in names or any(is_hash_name(name) for name in names)
    )


def _is_entered(fs: FileSystem, above: str, name: str) -> bool:
    if name in _NEVER_ENTERED or name.startswith("."):
        return False
    tail = "/".join(_absolute(fs, above).split("/")[-2:])
    return (
        bool(_ENTERED.fullmatch(name) or _HAS_NAMED_CHILDREN.fullmatch(tail.rpartition("/")[2]))
        or bool(_HAS_NAMED_CHILDREN.fullmatch(tail))
        or (name == "data" and tail.endswith("atb_dump_data"))
    )


def _absolute(fs: FileSystem, path: str) -> str:
    """The directory's path with what stands above the root: a unit is the same however it is named."""
    where = fs.describe(path)
    return where.rstrip("/") if is_url(where) else os.path.abspath(where)


def _placed(fs: FileSystem, path: str, key: UnitKey, files: tuple[Item, ...]) -> Place:
    where = _absolute(fs, path)
    for family, form in _FAMILIES.items():
        found = form.search(where)
        if found is not None:
            names = {name: text for name, text in found.groupdict().items() if text is not None}
            return Place(path, _key_of(names, key), family, where[: found.start()], names, files)
    return Place(path, key, files=files)


def _key_of(names: dict[str, str], key: UnitKey) -> UnitKey:
    step = names.get("step") or names.get("step_id") or names.get("iteration")
    rank = names.get("label") or names["rank"]
    return UnitKey(int(step) if step is not None else key.step, f"rank{int(rank)}", key.branch)
