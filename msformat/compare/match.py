"""Which entries of two units are the same call.

Modules find each other by path, then without what wrappers put into it, then as modules that moved together. Calls of
functions are counted inside the module call that made them, so that one more call somewhere shifts nothing elsewhere;
where their number differs, shapes tell which one is new. A backward follows its forward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

from msformat.compare.calls import Call, Calls
from msformat.compare.model import Match
from msformat.compare.moved import moved_paths
from msformat.compare.translate import bare_operation, without_wrappers
from msformat.names import OpName

__all__ = ["match_calls"]

# Aligning takes the product of the lengths, or more where all look alike.
_MOST_ALIGNED = 1500

Signature: TypeAlias = "Callable[[Call], Hashable | None]"
Found: TypeAlias = "dict[str, tuple[str, Match]]"


def match_calls(a: Calls, b: Calls, given: Mapping[str, str] | None = None) -> Found:
    """Keys of A to keys of B, and how they found each other.

    Parameters
    ----------
    given
        Keys that a user said belong together.
    """
    matching = _Matching(a, b)
    matching.take(given or {})
    return matching.run()


class _Matching:
    def __init__(self, a: Calls, b: Calls) -> None:
        self._a = a
        self._b = b
        self._found: Found = {}
        self._taken: dict[str, str] = {}
        self._with_tree = a.has_tree and b.has_tree
        self._contexts: tuple[dict[str, str], dict[str, str]] = ({}, {})

    def take(self, given: Mapping[str, str]) -> None:
        """Match what a user said."""
        for key, other in given.items():
            if key in self._a and other in self._b:
                self._put(self._a[key], self._b[other], "mapping")

    def run(self) -> Found:
        """Match the rest."""
        self._match_named(_module_signature, "path")
        self._match_named(_bare_module_signature, "prefix")
        self._match_moved()
        self._match_named(_other_signature, "key")
        self._match_grouped(_api_group, "forward")
        self._match_backwards()
        self._match_grouped(_api_group, "backward")
        self._match_grouped(_operation_group, "forward")
        self._match_backwards()
        self._match_grouped(_operation_group, "backward")
        self._match_grouped(_kernel_group, None)
        self._match_named(lambda call: call.key, "key")
        return self._found

    # --- one to one ------------------------------------------------------------------------------------------------

    def _match_named(self, signature: Signature, how: Match) -> None:
        """Match what one signature names on both sides, and names once."""
        ours, theirs = self._by(self._a, signature), self._by(self._b, signature)
        for name, calls in ours.items():
            others = theirs.get(name, ())
            for call, other in zip(calls, others, strict=False):
                self._put(call, other, how)

    def _by(self, calls: Calls, signature: Signature) -> dict[Hashable, list[Call]]:
        found: dict[Hashable, list[Call]] = defaultdict(list)
        for call in self._free(calls):
            name = signature(call)
            if name is not None:
                found[name].append(call)
        return found

    def _free(self, calls: Calls) -> Iterator[Call]:
        done = self._found if calls is self._a else self._taken
        return (call for key, call in calls.items() if key not in done)

    def _put(self, call: Call, other: Call, how: Match) -> None:
        if call.is_mapped:
            how = "mapping"
        elif call.key == other.key:
            how = "key"
        elif how in ("path", "key") and call.name is not None and other.name is not None:
            how = "framework" if call.name.kind != other.name.kind else how
        self._found[call.key] = other.key, how
        self._taken[other.key] = call.key

    def _match_moved(self) -> None:
        moved = moved_paths(self._modules(self._a), self._modules(self._b))
        if moved:
            self._match_named(lambda call: _moved_signature(call, moved), "path")

    def _modules(self, calls: Calls) -> dict[str, str]:
        """Paths that found no other yet, with their classes."""
        return {
            call.name.path: call.name.class_name or ""
            for call in self._free(calls)
            if call.name is not None and call.name.order == "module"
        }

    def _match_backwards(self) -> None:
        """Backward entries of calls whose forwards found each other."""
        for key, (other, how) in list(self._found.items()):
            backward, its_backward = _backward_of(key), _backward_of(other)
            is_free = backward not in self._found and its_backward not in self._taken
            if is_free and backward in self._a and its_backward in self._b:
                self._put(self._a[backward], self._b[its_backward], how)

    # --- several to several ----------------------------------------------------------------------------------------

    def _match_grouped(self, group: Callable[[OpName], Hashable | None], stage: str | None) -> None:
        """Match calls of one kind inside one call, in their order."""
        ours, theirs = self._groups(self._a, group, stage), self._groups(self._b, group, stage)
        for name, calls in ours.items():
            others = theirs.get(name, [])
            for call, other in self._aligned(calls, others):
                self._put(call, other, "order")

    def _groups(
        self, calls: Calls, group: Callable[[OpName], Hashable | None], stage: str | None
    ) -> dict[Hashable, list[Call]]:
        found: dict[Hashable, list[Call]] = defaultdict(list)
        for call in self._free(calls):
            kind = group(call.name) if call.name is not None else None
            if kind is not None and call.name is not None and stage in (None, call.name.stage):
                found[kind, self._context(calls, call)].append(call)
        for members in found.values():
            members.sort(key=lambda call: (call.name.index or 0) if call.name is not None else 0)
        return found

    def _context(self, calls: Calls, call: Call) -> str | None:
        """The nearest enclosing call that found its other, by its key in A."""
        if not self._with_tree or call.parent is None:
            return None
        known = self._contexts[calls is self._b]
        if call.parent not in known:
            known[call.parent] = self._find_context(calls, call) or ""
        return known[call.parent] or None

    def _find_context(self, calls: Calls, call: Call) -> str | None:
        for parent in calls.parents(call.key):
            if calls is self._a and parent in self._found:
                return parent
            if calls is self._b and parent in self._taken:
                return self._taken[parent]
        return None

    def _aligned(self, calls: Sequence[Call], others: Sequence[Call]) -> Iterable[tuple[Call, Call]]:
        if len(calls) == len(others) or not others or max(len(calls), len(others)) > _MOST_ALIGNED:
            return zip(calls, others, strict=False)
        ours = [_looks(self._a, call) for call in calls]
        theirs = [_looks(self._b, call) for call in others]
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        return [(calls[at_a + n], others[at_b + n]) for at_a, at_b, size in blocks for n in range(size)]


def _looks(calls: Calls, call: Call) -> Hashable:
    """What tells calls of one function apart without their values: shapes, and whether they are a recomputation."""
    entry = calls.entry(call.key)
    if entry is None:
        return None
    return bool(entry.is_recompute), tuple((tensor.slot, tensor.shape) for tensor in entry.tensors)


# --- signatures -------------------------------------------------------------------------------------------------------


def _module_signature(call: Call) -> Hashable | None:
    name = call.name
    return (name.path, name.stage, name.index or 0) if name is not None and name.order == "module" else None


def _bare_module_signature(call: Call) -> Hashable | None:
    name = call.name
    if name is None or name.order != "module":
        return None
    return without_wrappers(name.path), name.stage, name.index or 0


def _moved_signature(call: Call, moved: dict[str, str]) -> Hashable | None:
    name = call.name
    if name is None or name.order != "module":
        return None
    return moved.get(name.path, name.path), name.stage, name.index or 0


def _other_signature(call: Call) -> Hashable | None:
    """Saved variables, of 1.2.2 too."""
    name = call.name
    return ("saved", name.path, name.index) if name is not None and name.order == "saved" else None


def _api_group(name: OpName) -> Hashable | None:
    return (name.kind, name.path, name.class_name) if name.order == "api" else None


def _operation_group(name: OpName) -> Hashable | None:
    return bare_operation(name) if name.order == "api" else None


def _kernel_group(name: OpName) -> Hashable | None:
    """Tasks, streams and timestamps differ from run to run."""
    return (name.class_name, name.path) if name.order == "kernel" else None


def _backward_of(key: str) -> str:
    """Key of the backward of a forward; of any other key, that key."""
    if key.endswith(".forward"):
        return key.removesuffix("forward") + "backward"
    head, forward, number = key.rpartition(".forward.")
    return f"{head}.backward.{number}" if forward and number.isdecimal() else key
