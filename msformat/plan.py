"""What a unit becomes before a byte of a tensor moves: its new documents, and which tensors go under which names.

Without a change of dialect, of suffixes or of the set of entries, documents are the source's bytes. Otherwise they are
rewritten entry by entry, unknown keys included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from msformat.dialect import Dialect, Translator, detect_dialect
from msformat.documents import DumpDocument, encode_dump, salvage
from msformat.dtypes import parse_dtype
from msformat.errors import FormatError, MsformatError, TensorNotFoundError
from msformat.jsontext import canonical, parse_json
from msformat.names import key_matches
from msformat.spool import spooled
from msformat.stores.base import ReadOnlyBuffer, Store
from msformat.strictjson import has_bare_words, strict_pieces

__all__ = ["PlannedTensor", "Rewrite", "UnitPlan", "load_entries", "plan_unit", "tensor_references"]

ENTRY_DOCUMENTS = ("dump.json", "debug.json")
_SUFFIXES = (".pt", ".npy")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What is to change.

    Attributes
    ----------
    dialect
        Dialect to write, None for the source's.
    suffix
        Suffix of tensor names (``.npy``, ``.pt``), None to keep them.
    patterns
        Entries to keep: globs, or parts of a key. Empty keeps all.
    strict_json
        Spell NaN and infinities as strings in every JSON document (:mod:`msformat.strictjson`).
    """

    dialect: Dialect | None = None
    suffix: str | None = None
    patterns: tuple[str, ...] = ()
    strict_json: bool = False

    def keeps(self, key: str) -> bool:
        """Whether an entry is kept."""
        return not self.patterns or any(key_matches(key, pattern) for pattern in self.patterns)

    def respell(self, data_name: str) -> str:
        """A tensor's name with the wanted suffix."""
        found = next((suffix for suffix in _SUFFIXES if data_name.endswith(suffix)), None)
        if self.suffix is None or found is None:
            return data_name
        return data_name.removesuffix(found) + self.suffix


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to copy.

    Attributes
    ----------
    source, target
        Keys in the two stores.
    declared
        Element type as the document spells it, None for tensors no document names.
    entry
        The entry that names it, ``""`` for none.
    nbytes
        Size as the document declares it, 0 where it does not say; for progress only.
    """

    source: str
    target: str
    declared: str | None = None
    entry: str = ""
    nbytes: int = 0


@dataclass(slots=True)
class UnitPlan:
    """Everything :func:`plan_unit` finds out."""

    documents: dict[str, ReadOnlyBuffer] = field(default_factory=dict)
    tensors: list[PlannedTensor] = field(default_factory=list)
    entries: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Declared bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def plan_unit(
    store: Store,
    documents: Mapping[str, ReadOnlyBuffer],
    rewrite: Rewrite,
    *,
    rank: str = "",
    scratch: str | None = None,
) -> UnitPlan:
    """Plan a unit.

    Parameters
    ----------
    store
        Where its tensors are.
    documents
        Its documents by name.
    rewrite
        What is to change.
    rank
        Name of its directory, which helps to tell the dialect.
    scratch
        Directory for what is too large for memory: a new dump.json of gigabytes (:func:`msformat.spool.spooled`).

    Raises
    ------
    OSError
        Nothing can be written there.
    """
    plan = UnitPlan(documents=dict(documents))
    name = next((name for name in ENTRY_DOCUMENTS if name in documents), None)
    dump = None if name is None else load_entries(documents[name], f"{store.location}: {name}", plan.problems)
    translator = _translator(dump, documents, rewrite, rank=rank, is_debug=name == "debug.json")
    names = _Names(rewrite, translator)
    _plan_tensors(plan, dump, store, names)
    if name is not None and dump is not None and (translator or rewrite.suffix or rewrite.patterns):
        plan.documents[name] = spooled(encode_dump(dump.header, _rewritten(dump, names)), scratch)
    _plan_others(plan, dump, rewrite, translator)
    if rewrite.strict_json:
        _make_strict(plan.documents, scratch)
    return plan


def load_entries(data: ReadOnlyBuffer, source: str, problems: list[str]) -> DumpDocument | None:
    """The document; of a damaged one, its whole entries and a problem."""
    try:
        return DumpDocument.parse(data, source)
    except FormatError as error:
        found, reason = salvage(data, source)
        kept = f"{len(found)} whole entries of it are used" if found is not None else "no entry of it is readable"
        problems.append(f"{error}; {kept} ({reason})")
        return found


def _translator(
    dump: DumpDocument | None,
    documents: Mapping[str, ReadOnlyBuffer],
    rewrite: Rewrite,
    *,
    rank: str,
    is_debug: bool,
) -> Translator | None:
    if rewrite.dialect is None:
        return None
    stack = _quietly_parsed(documents.get("stack.json"))
    items = _values(dump, []) if dump is not None else iter(())
    framework = dump.header.framework if dump is not None else ""
    source = detect_dialect(items, stack=stack, rank=rank, framework=framework, is_debug=is_debug)
    if source == rewrite.dialect:
        return None
    return Translator.over(dump or (), source, rewrite.dialect, is_debug=is_debug)


def _quietly_parsed(data: ReadOnlyBuffer | None) -> Any:
    try:
        return None if data is None else parse_json(bytes(data), "")
    except MsformatError:
        return None


# --- tensors ---------------------------------------------------------------------------------------------------------


def tensor_references(value: Any) -> Iterator[dict[str, Any]]:
    """Every node of an entry's JSON value that names a tensor, in document order; iterative, strangers nest deeply."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if isinstance(node.get("data_name"), str):
                yield node
            pending.extend(reversed(list(node.values())))
        elif isinstance(node, list):
            pending.extend(reversed(node))


class _Names:
    """New names of tensors. No two get one name: where a new one is taken the old one stays, or it gets a number."""

    def __init__(self, rewrite: Rewrite, translator: Translator | None) -> None:
        self.rewrite = rewrite
        self.translator = translator
        self._targets: dict[str, str] = {}
        self._taken: set[str] = set()

    def target(self, name: str, entry: str | None) -> str:
        """The new name of a tensor; the first entry that names it decides."""
        if name not in self._targets:
            moved = self.translator.data_name(name, entry) if self.translator and entry is not None else name
            self._targets[name] = self._free(self.rewrite.respell(moved), name)
            self._taken.add(self._targets[name])
        return self._targets[name]

    def _free(self, wanted: str, old: str) -> str:
        """``wanted``; else ``old``, unless a tensor that came earlier has just that as its new name."""
        suffix = next((suffix for suffix in _SUFFIXES if wanted.endswith(suffix)), "")
        numbered = (f"{wanted.removesuffix(suffix)}~{number}{suffix}" for number in count(2))
        return next(name for name in chain((wanted, old), numbered) if name not in self._taken)


def _values(dump: DumpDocument, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Entries that can be decoded."""
    for key in dump:
        try:
            yield key, dump.json(key)
        except FormatError as error:
            problems.append(f"entry {key!r} cannot be read: {error}")


def _plan_tensors(plan: UnitPlan, dump: DumpDocument | None, store: Store, names: _Names) -> None:
    """Tensors that entries name, in document order, then those that none names."""
    mentioned: set[str] = set()
    planned: set[str] = set()
    missing: list[tuple[str, str]] = []
    for key, value in _values(dump, plan.problems) if dump is not None else ():
        keeps = names.rewrite.keeps(key)
        plan.entries += keeps
        for node in tensor_references(value):
            name = node["data_name"]
            mentioned.add(name)
            if keeps and name not in planned:
                planned.add(name)
                target = names.target(name, key)
                if _is_there(store, name):
                    plan.tensors.append(PlannedTensor(name, target, _declared(node), key, _declared_bytes(node)))
                else:
                    missing.append((key, name))
    there = list(store.keys())
    for name in there:
        if name not in mentioned and names.rewrite.keeps(name):
            plan.tensors.append(PlannedTensor(name, names.target(name, None)))
    plan.problems += _why_missing(store, missing, frozenset(there))


def _declared(node: Mapping[str, Any]) -> str | None:
    dtype = node.get("dtype")
    return dtype if isinstance(dtype, str) else None


def _is_there(store: Store, name: str) -> bool:
    try:
        return name in store
    except MsformatError:
        return False


def _why_missing(store: Store, missing: list[tuple[str, str]], there: frozenset[str]) -> Iterator[str]:
    """A sentence a tensor that an entry names and the store will not give."""
    for key, name in missing:
        why = "is missing"
        # Asking costs a look for near names: only for what lies there, and for what could be a path.
        if name in there or "/" in name or "\\" in name:
            try:
                store.get(name)
            except TensorNotFoundError:
                pass
            except (MsformatError, OSError) as error:
                why = f"is refused: {error}"
        yield f"entry {key!r}: tensor {name!r} {why}"


def _declared_bytes(node: Mapping[str, Any]) -> int:
    spelling = _declared(node)
    dtype = parse_dtype(spelling) if spelling is not None else None
    shape = node.get("shape")
    if dtype is None or not isinstance(shape, list):
        return 0
    count = dtype.itemsize
    for length in shape:
        if not isinstance(length, int) or not 0 <= length < 1 << 48:
            return 0
        count *= length
    return count


# --- documents -------------------------------------------------------------------------------------------------------


def _rewritten(dump: DumpDocument, names: _Names) -> Iterator[tuple[str, Any]]:
    translator = names.translator
    # What cannot be decoded was named when tensors were planned.
    for key, value in _values(dump, []):
        if not names.rewrite.keeps(key):
            continue
        for node in tensor_references(value):
            node["data_name"] = names.target(node["data_name"], key)
        yield (translator.key(key), translator.value(value)) if translator else (key, value)


def _plan_others(plan: UnitPlan, dump: DumpDocument | None, rewrite: Rewrite, translator: Translator | None) -> None:
    """Rewrite stack.json and construct.json where keys or the set of entries change."""
    if translator is None and not rewrite.patterns:
        return
    positions = {key: number for number, key in enumerate(dump or ())}
    changes: dict[str, Callable[[Any], Any]] = {
        "stack.json": lambda stack: _new_stack(stack, rewrite, translator, positions),
        "construct.json": lambda construct: _new_construct(construct, rewrite, translator),
    }
    for name, change in changes.items():
        data = plan.documents.get(name)
        if data is None:
            continue
        try:
            plan.documents[name] = canonical(change(parse_json(bytes(data), name)))
        except FormatError as error:
            plan.problems.append(f"{name} is carried along as it is: {error}")


def _make_strict(documents: dict[str, ReadOnlyBuffer], scratch: str | None) -> None:
    for name, data in documents.items():
        if name.endswith(".json") and has_bare_words(data):
            documents[name] = spooled(strict_pieces(data), scratch)


def _new_stack(stack: Any, rewrite: Rewrite, translator: Translator | None, positions: Mapping[str, int]) -> Any:
    if rewrite.patterns and isinstance(stack, dict):
        stack = _cut_stack(stack, rewrite.keeps)
    if translator is None:
        return stack
    return translator.stack(stack, lambda key: positions.get(key, len(positions)))


def _cut_stack(stack: dict[str, Any], keeps: Callable[[str], bool]) -> dict[str, Any]:
    groups: dict[str, Any] = {}
    for key, value in stack.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            entries = [entry for entry in value[0] if keeps(str(entry))]
            if entries:
                groups[str(len(groups))] = [entries, *value[1:]]
        elif keeps(key):
            groups[key] = value
    return groups


def _new_construct(construct: Any, rewrite: Rewrite, translator: Translator | None) -> Any:
    if rewrite.patterns and isinstance(construct, dict):
        construct = _kept_ancestors(construct, rewrite.keeps)
    return translator.construct(construct) if translator else construct


def _kept_ancestors(construct: Mapping[str, Any], keeps: Callable[[str], bool]) -> dict[str, Any]:
    """For each entry that is kept, the nearest enclosing one that is kept, too; None where parents go in circles.

    Each entry is looked at once, however many lie below a long chain.
    """
    nearest: dict[str, Any] = {}
    for child in filter(keeps, construct):
        trail = {child: None}
        parent = construct[child]
        while isinstance(parent, str) and not keeps(parent) and parent not in nearest and parent not in trail:
            trail[parent] = None
            parent = construct.get(parent)
        if isinstance(parent, str) and not keeps(parent):
            parent = nearest.get(parent)
        nearest.update(dict.fromkeys(trail, parent))
    return {child: parent for child, parent in nearest.items() if keeps(child)}
