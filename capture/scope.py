"""Which entries are recorded, and which of them with their data: ``scope``, ``list`` and ``tensor_list``."""

from __future__ import annotations

import difflib
import threading
from typing import TYPE_CHECKING

from capture.framework import Wanted
from msformat import parse_entry

if TYPE_CHECKING:
    from capture.config import CaptureConfig

__all__ = ["Scope"]

# As many names as a message about a filter that matched nothing could need.
_MOST_SEEN = 2000
_SHOWN = 10


class Scope:
    """Decides about names, in the order in which entries begin.

    The interval of ``scope`` is one for all threads, since it may begin in a forward pass and end in the backward
    pass, which another thread runs. The modules that a list expands are kept by thread: what one thread does is not
    inside a module that another one runs.

    Parameters
    ----------
    config
        Its ``scope``, ``list`` and ``tensor_list`` count, and the level, task and summary mode.

    Attributes
    ----------
    is_filtering
        Whether any entry may be left out.
    """

    def __init__(self, config: CaptureConfig) -> None:
        self._interval = _Interval(*config.scope) if config.scope else None
        self._list = _Patterns("list", config.list)
        self._expands = bool(config.list) and config.level == "mix"
        self._data_list = _Patterns("tensor_list", config.tensor_list)
        self._running = _Running()
        with_data = config.task == "tensor"
        self._plain = Wanted(statistics=True, data=with_data, md5=config.summary_mode == "md5")
        self._full = self._plain._replace(data=True)
        self._seen: dict[str, None] = {}
        self.is_filtering = bool(config.scope or config.list)

    def check(self, name: str) -> bool:
        """Whether an entry is recorded. Ask when it begins; asking again about the same entry changes nothing."""
        if not self.is_filtering:
            return True
        self._note(name)
        # Both are asked always: each keeps account of what it has met.
        inside = self._interval is None or self._interval.takes(name)
        listed = not self._list.words or self._list.match(name) or (self._expands and bool(self._running.names))
        return inside and listed

    def wanted(self, name: str) -> Wanted:
        """What the tensors of an entry are recorded with."""
        return self._full if self._data_list.words and self.wants_data(name) else self._plain

    def wants_data(self, name: str) -> bool:
        """Whether the data of an entry's tensors are saved."""
        return self._plain.data or (bool(self._data_list.words) and self._note(name) and self._data_list.match(name))

    def begin_module(self, name: str) -> None:
        """A module begins, in its forward or backward pass; ``name`` is its entry key."""
        if self._interval is not None:
            self._interval.begin(name)
        if self._expands and self._list.match(name):
            self._running.names.add(name)

    def end_module(self, name: str) -> None:
        """A module has ended, or was left by an exception."""
        if self._interval is not None:
            self._interval.end(name)
        if self._expands:
            self._running.names.discard(name)

    def new_step(self) -> None:
        """Counts begin again: an interval that found no end is over, and no module is running."""
        if self._interval is not None:
            self._interval.is_open = False
        self._running = _Running()

    def unmatched(self) -> list[str]:
        """One text for each filter that matched nothing so far, with names that were near; empty before any entry."""
        if not self._seen:
            return []
        found = [] if self._interval is None else self._interval.complaints()
        for patterns in (self._list, self._data_list):
            found += [f"{patterns.key}: {word!r} matched nothing" for word in patterns.words if word in patterns.idle]
        return [f"{text}; {self._examples(text)}" for text in found]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _note(self, name: str) -> bool:
        if len(self._seen) < _MOST_SEEN:
            self._seen[_without_count(name)] = None
        return True

    def _examples(self, text: str) -> str:
        word = text.split("'")[1]
        seen = list(self._seen)
        last_parts = {name.rpartition(".")[2]: name for name in reversed(seen)}
        near = [name for name in seen if word.lower() in name.lower()]
        near += difflib.get_close_matches(_without_count(word), seen, n=3, cutoff=0.7)
        near += [last_parts[part] for part in difflib.get_close_matches(word, last_parts, n=3, cutoff=0.7)]
        shown = list(dict.fromkeys([*near, *seen]))[:_SHOWN]
        more = f" and {len(seen) - len(shown)} more" if len(seen) > len(shown) else ""
        return f"names that came: {', '.join(shown)}{more}"


class _Running(threading.local):
    """Listed modules that run in this thread."""

    def __init__(self) -> None:
        self.names: set[str] = set()


class _Patterns:
    """Names and parts of names; ``idle`` are those that have matched nothing yet."""

    def __init__(self, key: str, words: tuple[str, ...]) -> None:
        self.key = key
        self.words = words
        self.idle = frozenset(words)
        # A module's key ends in a number: as a part of a name, ….forward.1 would also mean ….forward.10.
        self._whole = frozenset(word for word in words if _is_module(word))
        self._parts = tuple(word for word in words if word not in self._whole)

    def match(self, name: str) -> bool:
        if self.idle:
            # Made anew: another thread may be reading it.
            self.idle = frozenset(word for word in self.idle if not self._means(word, name))
        if name in self._whole:
            return True
        return any(part in name for part in self._parts)

    def _means(self, word: str, name: str) -> bool:
        return word == name if word in self._whole else word in name


class _Interval:
    """Between two entries, both included; it opens again when the first comes again, in the next step."""

    def __init__(self, first: str, last: str) -> None:
        self.first = first
        self.last = last
        self.is_open = False
        self._ends_with_module = _is_module(last)
        self._begins_with_module = _is_module(first)
        self._has_begun = False
        self._takes_last = False
        self._was_closed = False

    def takes(self, name: str) -> bool:
        if name == self.first:
            if not self._begins_with_module or not self._has_begun:
                self._open()
            return True
        if name != self.last:
            return self.is_open
        if self.is_open:
            self._takes_last = self._was_closed = True
            # What is inside the last module comes after its beginning.
            self.is_open = self._ends_with_module
        return self._takes_last

    def begin(self, name: str) -> None:
        if name == self.first:
            self._open()

    def end(self, name: str) -> None:
        if name == self.last and self.is_open:
            self._takes_last = self._was_closed = True
            self.is_open = False

    def _open(self) -> None:
        self.is_open = self._has_begun = True
        self._takes_last = False

    def complaints(self) -> list[str]:
        if not self._has_begun:
            return [f"scope: {self.first!r} never came, so nothing was recorded"]
        if not self._was_closed:
            return [f"scope: {self.last!r} never came after {self.first!r}: each step was recorded to its end"]
        return []


def _is_module(name: str) -> bool:
    found = parse_entry(name)
    return found is not None and found.order == "module"


def _without_count(name: str) -> str:
    """``Functional.relu`` of ``Functional.relu.0.forward``, ``Module.fc.Linear`` of ``Module.fc.Linear.forward.0``."""
    return name.rsplit(".", 2)[0]
