"""Numbers of calls: they begin at 0 in every step, one series a name."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

__all__ = ["Counters"]


class Counters:
    """Call numbers by name. ``next`` of an ``itertools.count`` is one step of the interpreter, so threads may share."""

    def __init__(self) -> None:
        self._series: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def next(self, name: str) -> int:
        """The number of this call: 0 for the first one of the step."""
        return next(self._series[name])
