"""``msformat info``, ``ls`` and ``show``: look into a dump without writing anything."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msformat.cli.fold import fold_rows
from msformat.cli.output import bytes_text, plain, print_json, problem
from msformat.cli.selectors import FILTER_HELP, add_selectors, parse_name
from msformat.cli.tables import print_table
from msformat.errors import EntryNotFoundError, MsformatError, TensorNotFoundError
from msformat.model import STATISTICS
from msformat.names import SUFFIXES, key_matches
from msformat.units import wanted_units

if TYPE_CHECKING:
    from msformat import Dump, Entry, Stats, Tensor, Unit
    from msformat.units import UnitKey

__all__ = [
    "BAD_UNIT",
    "PATH_HELP",
    "add_command",
    "add_commands",
    "add_unit_options",
    "for_each_unit",
    "nothing_matches",
    "tell_incomplete",
    "wanted_keys",
]

PATH_HELP = "a dump tree, a unit, a .h5 file, a .zarr group, a kernel dump or a URL"

_PREVIEW = 64
_UNREADABLE = "unreadable"
# What is told of a unit; numbers from the fifth on.
_SAME = ("store", "framework", "level", "task", "complete")
# More units than that are told by step and intervals of ranks.
_FOLD_FROM = 100
_FACTS = ("store", "framework", "level", "task", "entries", "tensors", "bytes", "files", "inodes")
# What ends the work on one unit; the others go on.
BAD_UNIT = (MsformatError, OSError, MemoryError)


def add_command(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    """A command whose own help says what the list of commands says."""
    described = f"{purpose[0].upper()}{purpose[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=purpose, description=described)
    return parser


def add_unit_options(parser: argparse.ArgumentParser) -> None:
    """The options every command that walks units has."""
    parser.add_argument("path", metavar="PATH", help=PATH_HELP)
    add_selectors(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_commands(commands: Any) -> None:
    """Add ``info``, ``ls`` and ``show`` to the command line."""
    info = add_command(commands, "info", "what is in a dump: units, stores, entries, bytes, files, inodes")
    add_unit_options(info)
    info.add_argument("--units", action="store_true", help="a line a unit, however many there are")
    info.set_defaults(run=_info)
    listing = add_command(commands, "ls", "list the entries (or tensors) of a dump")
    add_unit_options(listing)
    listing.add_argument("--tensors", action="store_true", help="a line a tensor instead of a line an entry")
    listing.add_argument("--filter", type=parse_name, default="", metavar="PATTERN", help=FILTER_HELP)
    listing.set_defaults(run=_ls)
    show = add_command(commands, "show", "show one entry or one tensor whole")
    add_unit_options(show)
    show.add_argument("name", type=parse_name, metavar="ENTRY|TENSOR", help="an entry key or a data_name")
    show.set_defaults(run=_show)


def for_each_unit(dump: Dump, arguments: argparse.Namespace, action: Callable[[Any, Unit], bool | None]) -> int:
    """Do something with each unit that the options ask for; one that cannot be read is named, and the rest goes on.

    Returns
    -------
    int
        The exit code: 0 all done, 1 done in part, 2 for none. An action that returns False found nothing in its unit,
        which counts neither way.
    """
    done = failed = 0
    for key in wanted_keys(dump, arguments.path, arguments):
        try:
            done += action(key, dump.unit(key)) is not False
        except BrokenPipeError:
            raise
        except BAD_UNIT as error:
            # Raises again where it was the output that could not be written, which is no fault of the unit.
            sys.stdout.flush()
            problem(f"{key}: {error}" if str(error) else f"{key}: {type(error).__name__}")
            failed += 1
    return (1 if failed else 0) if done else 2


def wanted_keys(dump: Dump, path: str, arguments: argparse.Namespace) -> list[UnitKey]:
    """Units that the options ask for; raises FormatError where there is none."""
    return wanted_units(dump.units, arguments.steps, arguments.ranks, path, key=lambda key: key)


def _info(arguments: argparse.Namespace) -> int:
    import msformat  # noqa: PLC0415

    dump = msformat.open(arguments.path, layout=arguments.layout)
    rows: list[dict[str, Any]] = []
    keys: list[Any] = []

    def describe(key: Any, unit: Unit) -> None:
        rows.append(_describe(key, unit))
        keys.append(key)

    code = for_each_unit(dump, arguments, describe)
    if not rows:
        return code
    # A problem of a unit is one of the dump, too; asking the dump for them would look into every unit again.
    problems = list(dict.fromkeys([*dump.tree_problems, *(text for row in rows for text in row.pop("problems"))]))
    places = [row.pop("place") for row in rows]
    if arguments.json:
        print_json({"path": arguments.path, "units": rows, "total": _total(places, rows), "problems": problems})
    else:
        _print_units(keys, rows, places, fold=len(rows) > _FOLD_FROM and not arguments.units)
        for text in problems:
            problem(text)
    if all(row["complete"] == _UNREADABLE for row in rows):
        return 2
    return 1 if problems or not all(row["complete"] == "yes" for row in rows) else code


def _print_units(
    keys: Sequence[Any], rows: Sequence[Mapping[str, Any]], places: Sequence[str | None], *, fold: bool
) -> None:
    """A line a unit, or a line for all units of a step that are alike."""

    def total(numbers: Iterable[int]) -> dict[str, int]:
        chosen = list(numbers)
        return _total([places[number] for number in chosen], [rows[number] for number in chosen])

    facts = ("units", *_FACTS[:4], "each", *_FACTS[4:]) if fold else _FACTS
    columns = ("unit", *facts, "complete")
    shown = fold_rows(keys, [_without_reason(row) for row in rows], _SAME, total) if fold else rows
    *cells, last = [
        [bytes_text(row[name]) if name == "bytes" and row[name] is not None else row.get(name) for name in columns]
        for row in [*shown, {**total(range(len(rows))), "unit": "total"}]
    ]
    title = f"{len(rows)} units by step, entries of each and sums; --units lists all and says why" if fold else ""
    print_table(columns, cells, title=title, right=("units", "each", *_FACTS[4:]), total=last)


def _without_reason(row: Mapping[str, Any]) -> dict[str, Any]:
    """Reasons name files, so that no two are alike."""
    return {**row, "complete": row["complete"].partition(":")[0]}


def _total(places: Sequence[str | None], rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """All units together; a file that holds several counts once."""
    by_place = {place: row for place, row in zip(places, rows, strict=True) if place is not None}
    return {
        "units": len(rows),
        **{name: sum(row[name] or 0 for row in rows) for name in ("entries", "tensors")},
        **{name: sum(row[name] for row in by_place.values()) for name in ("bytes", "files", "inodes")},
    }


def _describe(key: Any, unit: Unit) -> dict[str, Any]:
    blank = dict.fromkeys((*_FACTS, "place"))
    try:
        header, usage = unit.header, unit.usage
        found: dict[str, Any] = {
            "unit": str(key),
            "store": unit.backend,
            "framework": header.framework,
            "level": header.level,
            "task": header.task,
            "entries": len(unit),
            "tensors": None,
            "bytes": usage.bytes,
            "files": usage.files,
            "inodes": usage.inodes,
            "place": unit.location.location,
            "complete": "yes" if unit.complete else f"no: {unit.incomplete_reason}",
            "problems": [f"{key}: {text}" for text in unit.problems],
        }
    except BAD_UNIT as error:
        return {"unit": str(key), **blank, "complete": _UNREADABLE, "problems": [f"{key}: {error}"]}
    try:
        found["tensors"] = sum(1 for _ in unit.store.keys())  # noqa: SIM118 (a Store is no mapping)
    except BAD_UNIT as error:
        # Another process is writing it, for one; the journal has told the rest.
        found["problems"].append(f"{key}: {error}")
    return found


def _ls(arguments: argparse.Namespace) -> int:
    import msformat  # noqa: PLC0415

    listed: list[dict[str, Any]] = []
    found = 0

    def list_unit(key: Any, unit: Unit) -> None:
        nonlocal found
        tell_incomplete(unit)
        for row in _tensor_rows(unit) if arguments.tensors else _entry_rows(unit):
            if not key_matches(row["name"], arguments.filter):
                continue
            found += 1
            if arguments.json:
                listed.append({"unit": str(key), **row})
            else:
                # A plain line a name: this is what people pipe into grep.
                print("\t".join([str(key), *(plain(str(value)) for value in row.values())]))

    code = for_each_unit(msformat.open(arguments.path, layout=arguments.layout), arguments, list_unit)
    if arguments.json:
        print_json(listed)
    return code if found else nothing_matches(arguments, code)


def tell_incomplete(unit: Unit) -> None:
    """Warn that entries may be missing from a unit."""
    if not unit.complete:
        warnings.warn(f"{unit.key}: not complete: {unit.incomplete_reason}", stacklevel=2)


def nothing_matches(arguments: argparse.Namespace, code: int) -> int:
    """Say that a filter left nothing over; the exit code."""
    if not arguments.filter:
        return code
    problem(f"{arguments.path}: nothing matches {arguments.filter!r}")
    return max(code, 1)


def _entry_rows(unit: Unit) -> Iterator[dict[str, Any]]:
    return ({"name": key} for key in (unit if len(unit) else _structure(unit)))


def _structure(unit: Unit) -> list[str]:
    """Names of a dump of task structure, which has a tree and call stacks but no entries."""
    return [node.key for node in unit.tree()] if unit.header.task == "structure" else []


def _tensor_rows(unit: Unit) -> Iterator[dict[str, Any]]:
    for tensor in unit.tensors():
        yield {
            "name": tensor.data_name or f"{tensor.entry.key} {tensor.slot}.{tensor.path}",
            "dtype": tensor.dtype_name,
            "shape": "x".join(map(str, tensor.shape)) or "scalar",
        }


def _show(arguments: argparse.Namespace) -> int:
    import msformat  # noqa: PLC0415

    nearest: list[MsformatError] = []

    def show_in(key: Any, unit: Unit) -> bool:
        try:
            found = _find(unit, arguments.name)
        except (EntryNotFoundError, TensorNotFoundError) as error:
            if arguments.name in _structure(unit):
                _show_place(key, unit, arguments.name, as_json=arguments.json)
                return True
            nearest.append(error)
            return False
        tell_incomplete(unit)
        _show_one(key, found, as_json=arguments.json)
        return True

    code = for_each_unit(msformat.open(arguments.path, layout=arguments.layout), arguments, show_in)
    if code == 2 and nearest:
        problem(str(nearest[0]))
    return code


def _find(unit: Unit, name: str) -> Entry | Tensor:
    try:
        return unit[name]
    except EntryNotFoundError as error:
        no_entry = error
    try:
        return unit.tensor(name)
    except TensorNotFoundError as error:
        # A misspelt entry key resembles the names of its tensors, too.
        if error.near and (name.endswith(SUFFIXES) or not no_entry.near):
            raise
        raise no_entry from None


def _show_one(key: Any, found: Entry | Tensor, *, as_json: bool) -> None:
    from msformat.entries import Entry  # noqa: PLC0415

    if isinstance(found, Entry):
        _show_entry(key, found, as_json=as_json)
    else:
        _show_tensor(key, found, as_json=as_json)


def _show_entry(key: Any, entry: Entry, *, as_json: bool) -> None:
    stack = entry.stack or ()
    if as_json:
        print_json(
            {"unit": str(key), "entry": entry.key, "parent": entry.parent, "value": entry.json(), "stack": stack}
        )
        return
    _print_place(key, entry.key, entry.parent)
    columns = ("slot", "path", "type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "data_name")
    print_table(columns, [_tensor_cells(tensor) for tensor in entry.tensors], right=("Max", "Min", "Mean", "Norm"))
    if entry.json() is None:
        print("null")
    for name, value in _scalars(entry.json()):
        print(plain(f"{name} = {value}"))
    _print_stack(stack)


def _show_place(key: Any, unit: Unit, name: str, *, as_json: bool) -> None:
    """What a dump of task structure knows of a call."""
    parent, stack = unit.parent(name), unit.stack(name) or ()
    if as_json:
        print_json({"unit": str(key), "entry": name, "parent": parent, "value": None, "stack": stack})
        return
    _print_place(key, name, parent)
    _print_stack(stack)


def _print_place(key: Any, entry: str, parent: str | None) -> None:
    print(plain(f"{key} {entry}"))
    print(plain(f"inside {parent or 'nothing'}"))


def _print_stack(stack: Sequence[str]) -> None:
    if stack:
        print("\nstack, innermost first:")
        for frame in stack:
            print("  " + plain(frame.replace("\n", " ").strip()))


def _tensor_cells(tensor: Tensor) -> tuple[object, ...]:
    return (
        tensor.slot,
        tensor.path,
        tensor.meta.type,
        tensor.dtype_name,
        list(tensor.shape),
        *_numbers(tensor.statistics()),
        tensor.data_name or "",
    )


def _numbers(stats: Stats | None) -> Iterator[object]:
    """Statistics to look at: nothing where the document has none, ``null`` for null."""
    for name in STATISTICS.values():
        number = getattr(stats, name, None)
        is_missing = stats is None or name in stats.absent
        yield "" if is_missing else "null" if number is None else number


def _scalars(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Recorded plain values (``{"type": "float", "value": 2.0}``) with their paths."""
    stack: list[tuple[str, Any]] = [(prefix, value)]
    while stack:
        name, node = stack.pop()
        if isinstance(node, Mapping):
            if set(node) == {"type", "value"}:
                yield name, f"{node['value']!r} ({node['type']})"
                continue
            items = [(str(key), item) for key, item in node.items()]
        elif isinstance(node, list):
            items = [(str(at), item) for at, item in enumerate(node)]
        else:
            continue
        stack.extend((f"{name}.{key}" if name else key, item) for key, item in reversed(items))


def _show_tensor(key: Any, tensor: Tensor, *, as_json: bool) -> None:
    values = _values(tensor) if tensor.has_data else None
    if as_json:
        described = {
            "unit": str(key),
            "entry": tensor.entry.key,
            "data_name": tensor.data_name,
            "dtype": tensor.dtype_name,
            "shape": list(tensor.shape),
            "values": None if values is None else values.reshape(-1)[:_PREVIEW].tolist(),
        }
        print_json(described)
        return
    print(plain(f"{key} {tensor.data_name}"))
    print_table(("entry", "slot", "path", "dtype", "shape", "Max", "Min", "Mean", "Norm"), [_short_cells(tensor)])
    if values is not None:
        import numpy as np  # noqa: PLC0415

        with np.printoptions(threshold=_PREVIEW, edgeitems=3, linewidth=120):
            # A lone text is printed as it is, control characters and all.
            print("\n".join(map(plain, f"{values}".split("\n"))))


def _values(tensor: Tensor) -> Any:
    """The first values; HiFloat8, which numpy does not have, as the numbers its codes mean."""
    stored = tensor.stored
    corner = _corner(stored.shape)
    return tensor.float32(corner) if stored.dtype.name == "hifloat8" else tensor[corner]


def _corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The first values of each axis, few enough to look at whatever the number of axes."""
    room = _PREVIEW * _PREVIEW
    corner: list[slice] = []
    for length in reversed(shape):
        corner.insert(0, slice(0, min(_PREVIEW, max(1, room))))
        room //= max(1, min(_PREVIEW, length))
    return tuple(corner)


def _short_cells(tensor: Tensor) -> tuple[object, ...]:
    slot, path, _, dtype, shape, *numbers, _ = _tensor_cells(tensor)
    return (tensor.entry.key, slot, path, dtype, shape, *numbers)
