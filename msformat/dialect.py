"""Three spellings of one dump: msprobe 1.2.2, 8.1.0 (the canonical one) and 26.2.0.

======================  ============================  ==========================  =============================
                        1.2                           8.1                         26
======================  ============================  ==========================  =============================
single-process rank     ``rank``                      ``rank``                    ``proc{pid}``
saved variables         ``rank/`` without a step      ``step{N}/rank/``           ``step{N}/proc{pid}/``
their entry keys        ``{name}.{n}``                ``{name}.{n}.debug``        ``{name}.{n}.debug``
their tensors           ``{name}.{n}.tensor.{path}``  ``{name}.{n}.debug.{path}``  ``{name}.{n}.debug.{path}``
parameter gradients     ``….parameters_grad``         ``….parameters_grad``       ``….parameters_grad.{n}``
stack.json              entry to frames               groups of entries           groups of entries
is_recompute            in forward entries            in forward entries          absent
======================  ============================  ==========================  =============================

What a spelling has no place for is kept in its old form instead of being dropped, and every renaming is undone by the
opposite translation:

* ``parameters_grad`` becomes ``parameters_grad.0`` and back: the number counts backward passes, not calls of the
  module, so a module called twice has ``.0`` alone (golden dumps of 26.2.0). Later numbers keep their 26 form anywhere.
* 26 has no process id to take from the others: ``rank`` becomes ``proc0``, an id that no process of a user has.
  ``proc{pid}`` becomes ``rank`` where it is the only one of its step; two in one step are two runs (never two ranks)
  and keep their names.
* 1.2 keeps one directory for saved variables of all steps and goes on counting, without a word on where a step began:
  its unit becomes ``step0``, counters as they are. Into 1.2, a lone ``step0`` loses its step; several keep theirs.
* ``is_recompute`` is dropped for 26 only where it is false. It is never invented.
* Statistics stay as recorded (26 leaves mean and norm of integers out, the others give floats).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from msformat.errors import FormatError
from msformat.names import TensorName, build_data_name, build_entry, parse_data_name, parse_entry
from msformat.units import UnitKey

__all__ = ["DIALECTS", "Dialect", "Translator", "detect_dialect", "translate_units"]

Dialect: TypeAlias = Literal["1.2", "8.1", "26"]
DIALECTS: tuple[Dialect, ...] = ("1.2", "8.1", "26")

# How many entries are looked at; what tells dialects apart turns up in the first layers of a network.
_LOOK_AT = 20_000


_BY_GRADIENT: dict[int | None, Dialect] = {None: "8.1", 0: "26"}


# --- detection -------------------------------------------------------------------------------------------------------


def detect_dialect(
    entries: Iterable[tuple[str, Any]],
    *,
    stack: Any = None,
    rank: str = "",
    framework: str = "",
    is_debug: bool = False,
) -> Dialect:
    """Tell which msprobe wrote a unit.

    Parameters
    ----------
    entries
        Key and JSON value of entries of ``dump.json`` or ``debug.json``.
    stack
        Parsed ``stack.json``, where there is one.
    rank
        Name of the unit's directory.
    framework
        As the header says.
    is_debug
        The entries come from ``debug.json``.

    Returns
    -------
    Dialect
        ``8.1`` where nothing tells.
    """
    if rank.startswith("proc"):
        return "26"
    if _is_flat_stack(stack):
        return "1.2"
    seen = _Evidence()
    for _, (key, value) in zip(range(_LOOK_AT), entries, strict=False):
        found = _debug_evidence(key) if is_debug else _gradient_evidence(key)
        if found is not None:
            return found
        seen.look(key, value)
    return seen.verdict(framework)


class _Evidence:
    """Hints that single values give."""

    def __init__(self) -> None:
        self.forward = False
        self.recompute = False
        self.integer_mean: bool | None = None

    def look(self, key: str, value: Any) -> None:
        if not isinstance(value, dict):
            return
        self.recompute = self.recompute or "is_recompute" in value
        if not self.forward:
            name = parse_entry(key)
            self.forward = name is not None and name.stage == "forward"
        if self.integer_mean is None:
            integers = (node for node in _tensor_nodes(value) if "int" in str(node.get("dtype")).lower())
            means = [node.get("Mean") is not None for node in integers if node.get("Max") is not None]
            self.integer_mean = means[0] if means else None

    def verdict(self, framework: str) -> Dialect:
        if self.recompute or self.integer_mean:
            return "8.1"
        # 26.2.0 alone leaves the mean of integers out; on PyTorch it alone has no is_recompute.
        is_26 = self.integer_mean is False or (framework == "pytorch" and self.forward)
        return "26" if is_26 else "8.1"


def _debug_evidence(key: str) -> Dialect | None:
    name = parse_entry(key)
    if name is None or name.order != "saved":
        return None
    return "1.2" if not name.stage else None


def _gradient_evidence(key: str) -> Dialect | None:
    name = parse_entry(key)
    if name is None or name.stage != "parameters_grad":
        return None
    # Later numbers survive in the other dialects (see above), so they prove nothing.
    return _BY_GRADIENT.get(name.index)


def _is_flat_stack(stack: Any) -> bool:
    if not isinstance(stack, dict) or not stack:
        return False
    first = next(iter(stack.values()))
    return isinstance(first, list) and all(isinstance(frame, str) for frame in first)


def _tensor_nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping with a dtype in a JSON value; iterative, because strangers nest deeply."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if "dtype" in node:
                yield node
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


# --- translation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Translator:
    """Renames everything in a unit from one dialect to another.

    Attributes
    ----------
    source, target
        The dialects.
    is_debug
        The unit holds saved variables; elsewhere ``name.0`` is no key of ours.
    renamed
        Entry keys that change, old to new. Keys that are not in it stay.
    """

    source: Dialect
    target: Dialect
    is_debug: bool
    renamed: Mapping[str, str]

    @classmethod
    def over(cls, keys: Iterable[str], source: Dialect, target: Dialect, *, is_debug: bool) -> Translator:
        """The translator for a unit with these entry keys.

        A key stays as it is where its new form is taken by another entry: no entry may replace another one.
        """
        there = dict.fromkeys(keys)
        renamed: dict[str, str] = {}
        taken: set[str] = set()
        for key in there:
            new = _translated(key, source, target, is_debug=is_debug)
            if new != key and new not in there and new not in taken:
                renamed[key] = new
                taken.add(new)
        return cls(source, target, is_debug, renamed)

    def key(self, key: str) -> str:
        """The entry's key in the target dialect."""
        return self.renamed.get(key, key)

    def data_name(self, data_name: str, entry: str) -> str:
        """The tensor's name in the target dialect; names of a stranger's form stay."""
        new_entry = self.key(entry)
        if new_entry == entry:
            return data_name
        name = parse_data_name(data_name, entry)
        if name is None or name.path == ("",):
            return data_name
        return build_data_name(TensorName(new_entry, self._category(name), name.path, name.suffix))

    def _category(self, name: TensorName) -> str:
        if not self.is_debug:
            return name.category
        return "tensor" if self.target == "1.2" else ""

    def value(self, value: Any) -> Any:
        """An entry's JSON value without what the target dialect does not write. May change ``value``."""
        if self.target == "26" and isinstance(value, dict) and value.get("is_recompute") is False:
            del value["is_recompute"]
        return value

    def stack(self, stack: Any, order: Callable[[str], int] | None = None) -> Any:
        """``stack.json`` in the target dialect; what is no stack stays as it is.

        Parameters
        ----------
        stack
            Parsed document.
        order
            Position of an (old) entry key in the dump, for 1.2, where entries stand in call order.
        """
        pairs = list(stack_pairs(stack))
        if not pairs:
            return stack
        if self.target == "1.2":
            if order is not None:
                pairs.sort(key=lambda pair: order(pair[0]))
            return {self.key(entry): frames for entry, frames in pairs}
        if not _is_flat_stack(stack):
            return {
                number: [[self.key(entry) for entry in group[0]], *group[1:]] if _is_group(group) else group
                for number, group in stack.items()
            }
        return _grouped((self.key(entry), frames) for entry, frames in pairs)

    def construct(self, construct: Any) -> Any:
        """``construct.json`` in the target dialect."""
        if not isinstance(construct, dict):
            return construct
        return {
            self.key(child): self.key(parent) if isinstance(parent, str) else parent
            for child, parent in construct.items()
        }


def _translated(key: str, source: Dialect, target: Dialect, *, is_debug: bool) -> str:
    new = _respell(key, target, is_debug=is_debug)
    # What the opposite translation would not bring back is not translated.
    return new if _respell(new, source, is_debug=is_debug) == key else key


def _respell(key: str, target: Dialect, *, is_debug: bool) -> str:
    name = parse_entry(key)
    if name is None:
        return key
    if is_debug and name.order == "saved":
        name = replace(name, stage="" if target == "1.2" else "debug")
    elif name.stage == "parameters_grad" and target == "26":
        name = replace(name, index=name.index or 0)
    elif name.stage == "parameters_grad" and name.index == 0:
        name = replace(name, index=None)
    try:
        return build_entry(name)
    except FormatError:
        return key


def stack_pairs(stack: Any) -> Iterator[tuple[str, list[Any]]]:
    """Entry and frames of either form of ``stack.json``, in document order."""
    if not isinstance(stack, dict):
        return
    for key, value in stack.items():
        if _is_group(value):
            yield from ((entry, value[1]) for entry in value[0])
        elif isinstance(value, list) and all(isinstance(frame, str) for frame in value):
            yield key, value


def _is_group(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(part, list) for part in value)
        and all(isinstance(entry, str) for entry in value[0])
    )


def _grouped(pairs: Iterable[tuple[str, list[Any]]]) -> dict[str, Any]:
    """Entries with one call stack together, in the order of their first entries, as 8.1.0 and 26.2.0 number them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for entry, frames in pairs:
        groups.setdefault(tuple(frames), []).append(entry)
    return {str(number): [entries, list(frames)] for number, (frames, entries) in enumerate(groups.items())}


# --- directories -----------------------------------------------------------------------------------------------------


def translate_units(units: Sequence[tuple[UnitKey, bool]], target: Dialect) -> tuple[dict[UnitKey, UnitKey], list[str]]:
    """New keys of units.

    Parameters
    ----------
    units
        Key of each unit, and whether it holds saved variables.
    target
        Dialect to write.

    Returns
    -------
    dict, list of str
        Old key to new key, and what a person should know.
    """
    notes: list[str] = []
    renamed: dict[UnitKey, UnitKey] = {}
    for key, is_debug in units:
        new = replace(key, rank=_rank_label(key, [other for other, _ in units], target, notes))
        renamed[key] = _with_step(new, key, units, target, notes) if is_debug else new
    if len(set(renamed.values())) < len(renamed):
        notes.append("translated unit names would collide: units keep their names")
        return {key: key for key in renamed}, notes
    return renamed, notes


def _rank_label(key: UnitKey, units: Sequence[UnitKey], target: Dialect, notes: list[str]) -> str:
    if target == "26":
        return "proc0" if key.rank == "rank" else key.rank
    if not key.rank.startswith("proc"):
        return key.rank
    beside = [other for other in units if (other.step, other.branch) == (key.step, key.branch)]
    if len(beside) == 1:
        return "rank"
    notes.append(f"{key.path}: {len(beside)} units share this step, so {key.rank} keeps its name")
    return key.rank


def _with_step(
    new: UnitKey, old: UnitKey, units: Sequence[tuple[UnitKey, bool]], target: Dialect, notes: list[str]
) -> UnitKey:
    if target != "1.2":
        return replace(new, step=0) if new.step is None else new
    if new.step is None:
        return new
    steps = {key.step for key, is_debug in units if is_debug and key.branch == old.branch}
    if steps == {0}:
        return replace(new, step=None)
    notes.append(f"{old.path}: 1.2 has one directory for all steps of saved variables; the step is kept")
    return new
