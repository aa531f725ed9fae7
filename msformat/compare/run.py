"""Comparing two dumps of any form: units that belong together, one after the other or at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from msformat.arguments import path_text, require_at_least, require_instance, settle_selection, several_texts
from msformat.cluster import shared_path
from msformat.compare.mapping import NameMapping
from msformat.compare.model import DiffResult, UnitResult
from msformat.compare.pairing import pair_units
from msformat.compare.thresholds import Thresholds
from msformat.compare.unit import Progress, UnitJob, compare_units
from msformat.credentials import hide_credentials
from msformat.errors import MsformatError
from msformat.filesystem import is_url
from msformat.foreign.views import with_layout
from msformat.layout import UnitLocation, find_units
from msformat.parallel import run_all
from msformat.unit import Unit
from msformat.units import wanted_units

__all__ = ["DiffOptions", "diff"]

_REMOTE_THREADS = 8


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """How to compare.

    Attributes
    ----------
    thresholds
        When two tensors are different.
    mapping
        Names of A and what they are called in B (:func:`msformat.compare.mapping.load_mapping` reads a file).
    steps, ranks
        Only these units, as for :class:`msformat.ConvertOptions`.
    filter
        Only entries that match one of these globs or contain one of these texts.
    layout
        Of kernel dumps: ``framework`` or ``device``.
    ignore_missing
        Entries and tensors of one side alone are no difference. None: only where the frameworks differ, which call
        other functions.
    scalars
        Compare plain arguments (an epsilon, an axis) too; never done where the frameworks differ.
    jobs
        Units compared at the same time, each in a process of its own.
    threads
        Tensors of a unit read and compared at the same time. None: one, because numpy's work on a piece that fits the
        caches is too short for threads to take turns (two took a quarter longer than one); eight where a side is a URL
        and most of the time is waiting.
    context
        How many entries before a divergence are shown with it.

    Raises
    ------
    FormatError
        ``jobs`` or ``threads`` below 1, or something of another kind than what stands here.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    mapping: NameMapping | None = None
    steps: frozenset[int] | None = None
    ranks: frozenset[int | str] | None = None
    filter: str | tuple[str, ...] = ()
    layout: str = "framework"
    ignore_missing: bool | None = None
    scalars: bool = True
    jobs: int = 1
    threads: int | None = None
    context: int = 5

    def __post_init__(self) -> None:
        require_instance("thresholds", self.thresholds, Thresholds)
        if self.mapping is not None:
            require_instance("mapping", self.mapping, NameMapping)
        require_at_least(1, jobs=self.jobs, **({} if self.threads is None else {"threads": self.threads}))
        require_at_least(0, context=self.context)
        settle_selection(self)

    @property
    def patterns(self) -> tuple[str, ...]:
        """``filter`` as a tuple."""
        return several_texts("filter", self.filter)


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    options: DiffOptions | None = None,
    progress: Progress | None = None,
    *,
    executor: Executor | None = None,
) -> DiffResult:
    """Compare a dump with a reference.

    Parameters
    ----------
    a, b
        The dump in question and the reference: whatever :func:`msformat.open` takes, in any two stores, versions and
        frameworks.
    options
        How.
    progress
        Called with a unit's path, entries done, entries in all; only at the end of each unit where processes work.
    executor
        Runs units in place of processes of our own (``dask.distributed``'s ``Client.get_executor()``).

    Raises
    ------
    StoreError
        Nothing is at one of the paths.
    FormatError
        What is there is no dump, an option makes no sense, or no unit is of the wanted steps and ranks.

    Examples
    --------
    >>> import msformat
    >>> found = msformat.diff("my_dump", "my_dump")
    >>> found.exit_code, found.divergence
    (0, None)
    """
    options = options if options is not None else DiffOptions()
    require_instance("options", options, DiffOptions)
    sides = [path_text(side) if executor is None else shared_path(side) for side in (a, b)]
    (units_a, problems_a), (units_b, problems_b) = (_units(side, options) for side in sides)
    pairs, notes = pair_units(units_a, units_b)
    frameworks = _framework(units_a), _framework(units_b)
    are_alike = "" in frameworks or frameworks[0] == frameworks[1]
    ignore = options.ignore_missing if options.ignore_missing is not None else not are_alike
    threads = _threads(options, sides)
    jobs = [
        UnitJob(
            one, other, options.thresholds, options.patterns, options.mapping, threads, options.context,
            with_scalars=options.scalars and are_alike, ignore_missing=ignore,
        )
        for one, other in pairs
    ]  # fmt: skip
    units = _run(jobs, options, progress, executor)
    return DiffResult(
        hide_credentials(sides[0]), hide_credentials(sides[1]), frameworks, tuple(units),
        (*(f"a: {text}" for text in problems_a), *(f"b: {text}" for text in problems_b)), tuple(notes), ignore,
    )  # fmt: skip


def _units(path: str, options: DiffOptions) -> tuple[list[UnitLocation], Sequence[str]]:
    found, problems = find_units(path)
    units = with_layout(found, options.layout)
    return wanted_units(units, options.steps, options.ranks, path, key=lambda unit: unit.key), problems


def _framework(units: Sequence[UnitLocation]) -> str:
    """Of the first unit that can be read."""
    for location in units:
        try:
            with Unit(location) as unit:
                return unit.header.framework
        except (MsformatError, OSError):
            continue
    return ""


def _threads(options: DiffOptions, sides: Sequence[str]) -> int:
    return options.threads or (_REMOTE_THREADS if any(map(is_url, sides)) else 1)


def _run(
    jobs: Sequence[UnitJob], options: DiffOptions, progress: Progress | None, executor: Executor | None
) -> list[UnitResult]:
    if executor is None and (options.jobs == 1 or len(jobs) == 1):
        return [compare_units(job, progress) for job in jobs]
    return run_all(
        [(compare_units, job) for job in jobs],
        workers=options.jobs,
        executor=executor,
        done=progress and (lambda found: progress(found.label, len(found.entries), len(found.entries))),
        lost=lambda at, error: _lost(jobs[at], error),
    )


def _lost(job: UnitJob, error: Exception) -> UnitResult:
    keys = [unit.key if unit is not None else None for unit in (job.a, job.b)]
    return UnitResult(keys[0], keys[1], problems=(f"was not compared: {error}",))
