"""How dumps, units, entries, tensors and tables show themselves in a notebook: small pieces of HTML.

Text of a dump comes from strangers: :func:`_cell` escapes all of it, cuts it, and makes control characters visible. A
view shows a few rows of whatever there are, and reads no tensor. No colour is absolute, so that light and dark themes
both work.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msformat.columns import MISSING, number_of
from msformat.errors import MsformatError
from msformat.model import STATISTICS, Opaque, Scalar, Stats, walk_nodes
from msformat.plaintext import shortened

if TYPE_CHECKING:
    from msformat.entries import Entry, Tensor
    from msformat.reader import Dump
    from msformat.table import Table
    from msformat.unit import Unit

__all__ = ["dump_html", "entry_html", "table_html", "tensor_html", "unit_html"]

T = TypeVar("T")

_ROWS = 20
_LEAVES = 50
_TENSORS_IN_A_CELL = 3
_PROBLEMS = 5
_FRAMES = 40
_AXES = 12
_TEXT = 160
_LONGEST_TEXT = 1000
_EXACT = 10**18
_STYLE = (
    "<style>.msformat{font-size:90%;overflow-x:auto}"
    ".msformat table{border-collapse:collapse;margin:.3em 0}"
    ".msformat th,.msformat td{text-align:left!important;vertical-align:top;padding:.15em .7em .15em 0;"
    "border-bottom:1px solid rgba(128,128,128,.3);color:inherit;background:none}"
    ".msformat td,.msformat b{font-family:monospace;font-weight:normal}.msformat td{white-space:nowrap}"
    ".msformat .dim{opacity:.65}.msformat .bad{font-weight:bold!important;background:rgba(255,64,64,.25)}"
    ".msformat pre{color:inherit;background:none}</style>"
)


class _Cell(NamedTuple):
    """A text and how it looks: ``""``, ``dim``, ``bad``."""

    text: str
    look: str = ""


def _guarded(view: Callable[[T], str]) -> Callable[[T], str]:
    """A view of what cannot be read says why: an exception would leave a traceback in the place of a picture."""

    @wraps(view)
    def guarded(shown: T) -> str:
        try:
            return view(shown)
        except (MsformatError, OSError, MemoryError) as error:
            return _page(type(shown).__name__, _note(f"cannot be read: {error}"))

    return guarded


@_guarded
def dump_html(dump: Dump) -> str:
    """Where it is, what steps and ranks it has, its first units. Looks into none of them."""
    facts = [("units", _Cell(str(len(dump)))), ("steps", _range(dump.steps)), ("ranks", _range(dump.ranks))]
    rows = [_unit_row(unit) for unit in islice(dump, _ROWS)]
    table = _table(("branch", "step", "rank", "store"), rows, len(dump))
    return _page(f"Dump {dump.path}", _facts(facts), table, _notes(dump.tree_problems))


@_guarded
def unit_html(unit: Unit) -> str:
    """What run it is of, whether it is whole, its first entries."""
    header = unit.header
    said = [(name, _Cell(text)) for name, text in _said(header.framework, header.level, header.task)]
    facts = [*said, ("store", _Cell(f"{unit.backend}, {unit.path}")), ("entries", _Cell(str(len(unit))))]
    rows = [_entry_row(unit, key) for key in islice(unit, _ROWS)]
    incomplete = () if unit.incomplete_reason is None else (f"not complete: {unit.incomplete_reason}",)
    return _page(
        f"Unit {unit.label}",
        _facts(facts),
        _notes(incomplete),
        _table(("entry", "inputs", "outputs, values"), rows, len(unit)),
    )


@_guarded
def entry_html(entry: Entry) -> str:
    """What its name says, where it was called, and its tensors and values with the statistics of the document."""
    leaves = walk_nodes(entry.value)
    rows = [_leaf_row(path, leaf) for path, leaf in islice(leaves, _LEAVES)]
    total = len(rows) + sum(1 for _ in leaves)
    name = entry.name
    facts = [("unit", _Cell(entry.unit.label))]
    if entry.parent is not None:
        facts.append(("inside", _Cell(entry.parent)))
    if name is not None:
        facts.extend((what, _Cell(_text(text))) for what, text in _said_by_name(name))
    if entry.is_recompute:
        facts.append(("recompute", _Cell("yes")))
    return _page(f"Entry {entry.key}", _facts(facts), _table(_LEAF_HEAD, rows, total), _stack(entry.stack))


@_guarded
def tensor_html(tensor: Tensor) -> str:
    """What the document says of it, and whether there are values. Reads none."""
    facts = [
        ("of", _Cell(tensor.place)),
        ("unit", _Cell(tensor.entry.unit.label)),
        ("type", _Cell(tensor.dtype_name)),
        ("shape", _Cell(_shape(tensor.shape))),
        *((name, cell) for name, cell in zip(STATISTICS, _statistics(tensor.stats), strict=True) if cell.text),
    ]
    if tensor.requires_grad is not None:
        facts.append(("requires_grad", _Cell(str(tensor.requires_grad))))
    if tensor.digest is not None:
        facts.append(("digest", _Cell(tensor.digest)))
    return _page(f"Tensor of {tensor.entry.key}", _facts([*facts, ("values", _values(tensor))]))


def table_html(table: Table) -> str:
    """The first rows, without the columns that only tell more of the same."""
    columns = [name for name in table.columns if name not in _LEFT_OUT]
    first = table[:_ROWS]
    rows = [[_table_cell(name, row[name]) for name in columns] for row in first.rows()]
    return _page(f"Table: {len(table)} rows, {len(table.columns)} columns", _table(columns, rows, len(table)))


# --- rows ------------------------------------------------------------------------------------------------------------

_LEAF_HEAD = ("", "type", "shape", *STATISTICS)
_LEFT_OUT = frozenset({"step", "rank", "type", "digest", "data_name", "requires_grad"})


def _unit_row(unit: Unit) -> list[_Cell]:
    key = unit.key
    return [_Cell(key.branch), _Cell("" if key.step is None else str(key.step)), _Cell(key.rank), _Cell(unit.backend)]


def _entry_row(unit: Unit, key: str) -> list[_Cell]:
    try:
        entry = unit[key]
        inputs = [tensor for tensor in entry.tensors if tensor.slot.startswith("input")]
        others = [
            tensor for tensor in entry.tensors if not tensor.slot.startswith("input") and tensor.slot != "parameters"
        ]
    except (MsformatError, OSError) as error:
        return [_Cell(key), _Cell(str(error), "bad"), _Cell("")]
    return [_Cell(key), _tensors(inputs), _tensors(others)]


def _tensors(tensors: Sequence[Tensor]) -> _Cell:
    """The first few of some tensors in one cell, marked where a statistic is no finite number."""
    shown = [f"{_short_type(tensor.dtype_name)} {_shape(tensor.shape)}" for tensor in tensors[:_TENSORS_IN_A_CELL]]
    more = f" and {len(tensors) - len(shown)} more" if len(tensors) > len(shown) else ""
    is_bad = any(cell.look == "bad" for tensor in tensors for cell in _statistics(tensor.stats))
    return _Cell(", ".join(shown) + more, "bad" if is_bad else "")


def _leaf_row(path: tuple[str, ...], leaf: Any) -> list[_Cell]:
    where = _Cell(".".join(path))
    if isinstance(leaf, Scalar):
        cells = [_Cell(leaf.type), _Cell(_text(leaf.value))]
    elif leaf is None or isinstance(leaf, (Opaque, Mapping, tuple)):
        cells = [_Cell(""), _Cell(_text(leaf.raw if isinstance(leaf, Opaque) else leaf), "dim")]
    else:
        return [_Cell(leaf.place), _Cell(leaf.dtype_name), _Cell(_shape(leaf.shape)), *_statistics(leaf.stats)]
    return [where, *cells, *[_Cell("")] * len(STATISTICS)]


def _statistics(stats: Stats | None) -> list[_Cell]:
    if stats is None:
        return [_Cell("")] * len(STATISTICS)
    return [
        _Cell("") if attribute in stats.absent else _number(getattr(stats, attribute))
        for attribute in STATISTICS.values()
    ]


def _number(value: Any) -> _Cell:
    """A statistic: six digits will do for people; what is no finite number stands out."""
    if value is MISSING:
        return _Cell("")
    if value is None:
        return _Cell("null", "dim")
    if isinstance(value, (bool, str)):
        return _Cell(str(value))
    if isinstance(value, int) and abs(value) < _EXACT:
        return _Cell(str(value))
    number = number_of(value)
    assert number is not None
    return _Cell(f"{number:.6g}", "" if math.isfinite(number) else "bad")


def _table_cell(name: str, value: Any) -> _Cell:
    if name in STATISTICS:
        return _number(value)
    return _Cell(_shape(value) if isinstance(value, tuple) else "" if value is None else _text(value))


def _values(tensor: Tensor) -> _Cell:
    if tensor.data_name is None:
        return _Cell(f"none: task {tensor.entry.unit.header.task!r} saved no data of it", "dim")
    return _Cell(tensor.data_name) if tensor.has_data else _Cell(f"{tensor.data_name} is not in the store", "bad")


# --- words -----------------------------------------------------------------------------------------------------------


def _said(framework: str, level: str, task: str) -> Iterator[tuple[str, str]]:
    named = {"framework": framework, "level": level, "task": task}
    return ((name, text) for name, text in named.items() if text)


def _said_by_name(name: Any) -> Iterator[tuple[str, Any]]:
    found = {"kind": name.kind, "path": name.path, "class": name.class_name, "stage": name.stage, "call": name.index}
    return ((what, text) for what, text in found.items() if text not in (None, ""))


def _range(labels: Sequence[Any]) -> _Cell:
    """``0, 1, 2`` or, of many, ``0, 1, 2, …, 999 (1000)``."""
    if len(labels) <= _AXES:
        return _Cell(", ".join(map(str, labels)) or "none", "" if labels else "dim")
    return _Cell(f"{', '.join(map(str, labels[:3]))}, …, {labels[-1]} ({len(labels)})")


def _shape(shape: Sequence[int]) -> str:
    """A stranger's shape may have a million axes, or lengths of thousands of digits."""
    lengths = [_number(length).text for length in shape[:_AXES]]
    return f"[{', '.join(lengths)}{', …' if len(shape) > _AXES else ''}]"


def _short_type(spelling: str) -> str:
    return spelling.removeprefix("torch.")


def _text(value: Any) -> str:
    """A value of a document; what is large is cut before it is spelled."""
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_text(item) for item in value[:_AXES])
        return f"[{shown}{', …' if len(value) > _AXES else ''}]"
    if isinstance(value, dict):
        shown = ", ".join(f"{key}: {_text(item)}" for key, item in islice(value.items(), _AXES))
        return f"{{{shown}{', …' if len(value) > _AXES else ''}}}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(value).text
    return str(value)


# --- HTML ------------------------------------------------------------------------------------------------------------


def _escaped(text: str, most: int = _TEXT) -> str:
    return html.escape(shortened(text, most))


def _cell(cell: _Cell, tag: str = "td") -> str:
    look = f' class="{cell.look}"' if cell.look else ""
    return f"<{tag}{look}>{_escaped(cell.text)}</{tag}>"


def _table(head: Sequence[str], rows: Sequence[Sequence[_Cell]], total: int) -> str:
    if not rows:
        return ""
    lines = ["".join(_cell(_Cell(text), "th") for text in head), *("".join(map(_cell, row)) for row in rows)]
    more = f"<div class='dim'>… and {total - len(rows)} more</div>" if total > len(rows) else ""
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{more}"


def _facts(facts: Iterable[tuple[str, _Cell]]) -> str:
    """One line of names and values."""
    pairs = (f"{_cell(_Cell(name, 'dim'), 'span')} {_cell(cell, 'b')}" for name, cell in facts)
    return f"<div>{' &middot; '.join(pairs)}</div>"


def _note(text: str) -> str:
    return f"<div class='bad'>{_escaped(text, _LONGEST_TEXT)}</div>"


def _notes(texts: Sequence[str]) -> str:
    more = (f"and {len(texts) - _PROBLEMS} more problems",) if len(texts) > _PROBLEMS else ()
    return "".join(map(_note, (*texts[:_PROBLEMS], *more)))


def _stack(frames: Sequence[str] | None) -> str:
    if not frames:
        return ""
    lines = [_escaped(" ".join(frame[:_LONGEST_TEXT].split()), _LONGEST_TEXT) for frame in frames[:_FRAMES]]
    text = "\n".join(lines) + ("\n…" if len(frames) > _FRAMES else "")
    return f"<details><summary>stack, {len(frames)} frames, innermost first</summary><pre>{text}</pre></details>"


def _page(title: str, *parts: str) -> str:
    return f"{_STYLE}<div class='msformat'><strong>{_escaped(title, _LONGEST_TEXT)}</strong>{''.join(parts)}</div>"
