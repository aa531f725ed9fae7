"""Any store into any store: unit by unit, tensor by tensor, never overwriting unasked, verified when done."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from msformat import arguments
from msformat.atomic import make_directories, make_private, temporary_sibling
from msformat.convert_remote import convert_remote_single, convert_remote_unit
from msformat.convert_unit import (
    UnitJob,
    UnitReport,
    all_done,
    convert_into,
    convert_tree_unit,
    failed_report,
    plan_only,
)
from msformat.destination import (
    Destination,
    check_relation,
    check_state,
    exclusive,
    install,
    leftovers,
    remove_leftovers,
    remove_temporary,
    resolve_destination,
    sweep,
)
from msformat.destination_remote import check_remote_relation, check_remote_state, resolve_remote
from msformat.dialect import DIALECTS, Dialect, translate_units
from msformat.errors import FormatError, MsformatError, StoreError
from msformat.filesystem import is_url
from msformat.foreign.views import LAYOUTS, with_layout
from msformat.layout import UnitLocation, find_units
from msformat.parallel import run_all
from msformat.plan import Rewrite
from msformat.stores.base import StoreOptions
from msformat.stores.registry import open_store, store_class
from msformat.units import wanted_units

__all__ = ["ConvertOptions", "ConvertReport", "UnitReport", "convert"]

Progress: TypeAlias = Callable[[str, int, int], None]
_BACKENDS = ("files", "hdf5", "zarr")


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How to convert.

    Attributes
    ----------
    to
        ``files``, ``hdf5``, ``zarr``; None goes by the destination's suffix, ``files`` where it has none.
    tensors
        ``npy`` or ``pt``: suffix of all tensor names, in documents too. None keeps them.
    dialect
        Write names as msprobe ``1.2``, ``8.1`` or ``26`` does (see :mod:`msformat.dialect`). None keeps them.
    steps
        Only these steps.
    ranks
        Only these ranks: numbers mean ``rank{N}``, words the directory's name (``rank``, ``proc4711``).
    filter
        Only entries that match one of these globs or contain one of these texts, with their tensors.
    layout
        Of kernel dumps: ``framework`` or ``device``, as for :func:`msformat.open`.
    compression, links
        As in :class:`msformat.stores.base.StoreOptions`.
    jobs
        Units converted at the same time, each in a process of its own; at most twice the number of processors (8 where
        there are few). A single ``.h5`` is written by one.
    verify
        Read everything back and compare it with what was read from the source.
    resume
        Keep the finished units of an earlier run that would come out the same.
    overwrite
        Replace units of a dump that stands at the destination. Nothing else there is touched.
    dry_run
        Write nothing, report what would be.
    strict_json
        Spell NaN and infinities as strings in documents, for parsers that know no bare ``NaN``.
    """

    to: str | None = None
    tensors: str | None = None
    dialect: Dialect | None = None
    steps: frozenset[int] | None = None
    ranks: frozenset[int | str] | None = None
    filter: str | tuple[str, ...] = ()
    layout: str = "framework"
    compression: str = "auto"
    links: bool = True
    jobs: int = 1
    verify: bool = True
    resume: bool = False
    overwrite: bool = False
    dry_run: bool = False
    strict_json: bool = False

    def __post_init__(self) -> None:
        choices = (
            ("to", self.to, _BACKENDS),
            ("tensors", self.tensors, ("npy", "pt")),
            ("dialect", self.dialect, DIALECTS),
            ("layout", self.layout, LAYOUTS),
        )
        for name, value, allowed in choices:
            if value is not None or name == "layout":
                arguments.require_one_of(name, value, allowed)
        arguments.require_at_least(1, jobs=self.jobs)
        arguments.require_instance("compression", self.compression, str)
        arguments.settle_selection(self)

    @property
    def patterns(self) -> tuple[str, ...]:
        """``filter`` as a tuple."""
        return arguments.several_texts("filter", self.filter)

    @property
    def rewrite(self) -> Rewrite:
        """What changes in documents."""
        suffix = None if self.tensors is None else f".{self.tensors}"
        return Rewrite(self.dialect, suffix, self.patterns, self.strict_json)


@dataclass(slots=True)
class ConvertReport:
    """What became of all units.

    Attributes
    ----------
    units
        One report each, in order.
    problems
        What concerns no single unit.
    notes
        What a person should know, though nothing is missing.
    """

    units: list[UnitReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 all done, 1 done in part, 2 nothing done."""
        if not self.units or all(unit.failed for unit in self.units):
            return 2
        return 1 if self.problems or any(unit.problems for unit in self.units) else 0

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "exit_code": self.exit_code,
            "units": [unit.as_json() for unit in self.units],
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    *,
    executor: Executor | None = None,
) -> ConvertReport:
    """Convert a dump.

    Parameters
    ----------
    src
        A tree, a unit, a document in one, an ``.h5`` file, a ``.zarr`` group, or a URL.
    dst
        A directory (one store a unit below ``step{N}/rank{R}``), or a name ending in ``.h5``, ``.hdf5`` or ``.zarr``
        for one file or group with all units inside. Either may be a URL.
    options
        How.
    progress
        Called with a unit's path, bytes done, bytes in all; only at the end of each unit where processes work.
    executor
        Runs the units of a tree in place of processes of our own (``dask.distributed``'s ``Client.get_executor()``).

    Returns
    -------
    ConvertReport
        A bad tensor, document or unit is a problem in it; the rest is converted.

    Raises
    ------
    StoreError
        No such source, or the destination may not or cannot be written. An earlier content is still there.
    FormatError
        The source holds no dump, an option makes no sense, or nothing matches the steps, ranks or filter.
    """
    options = options if options is not None else ConvertOptions()
    arguments.require_instance("options", options, ConvertOptions)
    source, destination = _ends(arguments.path_text(src), arguments.path_text(dst), options, executor)
    found, problems = find_units(source)
    locations = with_layout(found, options.layout)
    report = ConvertReport(problems=list(problems))
    chosen = wanted_units(locations, options.steps, options.ranks, source, key=lambda unit: unit.key)
    jobs = _jobs(chosen, destination, options, report)
    check = check_remote_state if destination.remote else check_state
    check(destination, overwrite=options.overwrite, resume=options.resume)
    _require_matches(jobs, options, source)
    if options.dry_run:
        report.units = [plan_only(job) for job in jobs]
    elif destination.single and destination.remote:
        report.units = convert_remote_single(jobs, workers=options.jobs, executor=executor, progress=progress)
    elif destination.single:
        report.units = _convert_single(jobs, destination, options, progress, executor)
    else:
        report.units = _convert_tree(jobs, options, progress, executor)
    if destination.backend == "files" and options.compression not in ("auto", "none"):
        report.notes.append(f"canonical files are not compressed: {options.compression} was left out")
    return report


def _ends(src: str, dst: str, options: ConvertOptions, executor: Executor | None) -> tuple[str, Destination]:
    """Source and destination, one clear of the other, both as every worker finds them."""
    src, dst = src.removeprefix("file://"), dst.removeprefix("file://")
    elsewhere = executor is not None or options.jobs > 1
    if elsewhere and any(end.startswith("memory://") for end in (src, dst)):
        raise StoreError("memory:// is the memory of one process: no other can read or write it")
    if executor is not None and src and not is_url(src):
        src = os.path.abspath(src)
    if not is_url(dst):
        destination = resolve_destination(dst, options.to)
        check_relation(src, destination)
    else:
        destination = resolve_remote(dst, options.to)
        check_remote_relation(src, destination)
    return src, destination


def _require_matches(jobs: Sequence[UnitJob], options: ConvertOptions, source: str) -> None:
    """Refuse a filter that would leave nothing but empty units. Units are planned only up to the first with a match."""
    if not options.patterns:
        return
    could_be_read = False
    for job in jobs:
        planned = plan_only(job)
        if planned.entries:
            return
        could_be_read = could_be_read or not planned.failed
    if could_be_read:
        raise FormatError(f"{source}: no entry matches {', '.join(map(repr, options.patterns))}")


def _jobs(
    locations: Sequence[UnitLocation], destination: Destination, options: ConvertOptions, report: ConvertReport
) -> list[UnitJob]:
    keys = {unit.key: unit.key for unit in locations}
    if options.dialect is not None:
        keys, notes = translate_units([(unit.key, _is_debug(unit)) for unit in locations], options.dialect)
        report.notes += notes
    store_options = StoreOptions(compression=options.compression, links=options.links)
    return [
        UnitJob(
            source=unit,
            key=keys[unit.key],
            destination=destination,
            rewrite=options.rewrite,
            store_options=store_options,
            verify=options.verify,
            resume=options.resume,
            overwrite=options.overwrite,
        )
        for unit in locations
    ]


def _is_debug(unit: UnitLocation) -> bool:
    try:
        with open_store(unit.backend, unit.location, group=unit.group) as store:
            return "debug.json" in store.documents()
    except (MsformatError, OSError):
        # The unit's own conversion says what is wrong with it.
        return False


# --- trees -----------------------------------------------------------------------------------------------------------


def _convert_tree(
    jobs: Sequence[UnitJob], options: ConvertOptions, progress: Progress | None, executor: Executor | None
) -> list[UnitReport]:
    work = convert_remote_unit if jobs[0].destination.remote else convert_tree_unit
    if executor is None and (options.jobs == 1 or len(jobs) == 1):
        return [work(job, progress) for job in jobs]
    return _run([(work, job) for job in jobs], jobs, options, progress, executor)


def _run(
    calls: Sequence[tuple[Any, ...]],
    jobs: Sequence[UnitJob],
    options: ConvertOptions,
    progress: Progress | None,
    executor: Executor | None,
) -> list[UnitReport]:
    return run_all(
        calls,
        workers=options.jobs,
        executor=executor,
        done=progress and (lambda report: progress(report.key, report.bytes_in, report.bytes_in)),
        lost=lambda number, error: failed_report(jobs[number], error),
    )


# --- one file --------------------------------------------------------------------------------------------------------


def _convert_single(
    jobs: Sequence[UnitJob],
    destination: Destination,
    options: ConvertOptions,
    progress: Progress | None,
    executor: Executor | None,
) -> list[UnitReport]:
    path = destination.path
    make_directories(os.path.dirname(path))
    with exclusive(path):
        if os.path.lexists(path) and options.resume:
            found = all_done(jobs, path)
            if found is not None:
                return found
            if not options.overwrite:
                raise StoreError(
                    f"{path}: holds something else than {jobs[0].source.location}; --overwrite replaces it"
                )
        unfinished = next(iter(leftovers(path)), None) if options.resume else None
        remove_leftovers(path, keep=unfinished)
        if unfinished is not None:
            reports = _resume(jobs, unfinished, options, progress, executor)
            if reports is not None:
                install(unfinished, path)
                return reports
        return _write_whole(jobs, destination.path, options, progress, executor)


def _resume(
    jobs: Sequence[UnitJob],
    unfinished: str,
    options: ConvertOptions,
    progress: Progress | None,
    executor: Executor | None,
) -> list[UnitReport] | None:
    """Go on in a file that a killed run left; None (and the file gone) where it turns out to be damaged."""
    try:
        sweep(unfinished)
        strangers = set(store_class(jobs[0].destination.backend).groups(unfinished)) - {job.key.path for job in jobs}
        if not strangers:
            return _fill(jobs, unfinished, options, progress, executor)
    except (MsformatError, OSError):
        # Started again from nothing, so that a real fault of the destination comes up once more.
        remove_temporary(unfinished)
        return None
    except BaseException as error:
        _clean_up(unfinished, error, options)
        raise
    remove_temporary(unfinished)
    return None


def _write_whole(
    jobs: Sequence[UnitJob], path: str, options: ConvertOptions, progress: Progress | None, executor: Executor | None
) -> list[UnitReport]:
    temporary = temporary_sibling(path)
    try:
        # Made here, so that it is private before anything is in it; a store takes an empty one for a new one.
        Path(temporary).mkdir() if jobs[0].destination.backend == "zarr" else Path(temporary).touch(exist_ok=False)
        make_private(temporary)
        reports = _fill(jobs, temporary, options, progress, executor)
        if not all(unit.failed for unit in reports):
            install(temporary, path)
            return reports
    except BaseException as error:
        _clean_up(temporary, error, options)
        raise
    remove_temporary(temporary)
    return reports


def _clean_up(temporary: str, error: BaseException, options: ConvertOptions) -> None:
    """Leave nothing behind, unless it was Ctrl-C of someone who resumes: finished units in it are worth keeping."""
    if not (options.resume and isinstance(error, KeyboardInterrupt)):
        remove_temporary(temporary)


def _fill(
    jobs: Sequence[UnitJob],
    location: str,
    options: ConvertOptions,
    progress: Progress | None,
    executor: Executor | None,
) -> list[UnitReport]:
    """Write all units, and see that they lie in what was begun: a store makes anew what somebody took away."""
    with _kept(location) as begun:
        reports = _write_units(jobs, location, options, progress, executor)
        if not os.path.samestat(os.stat(location), begun):
            raise StoreError(f"{location}: was removed while it was being written")
    return reports


@contextlib.contextmanager
def _kept(location: str) -> Iterator[os.stat_result]:
    """What a file or directory is. It is open meanwhile: the next one that is made gets the number of one that is gone.

    Where no directory can be opened (Windows), its number has to do.
    """
    try:
        descriptor = os.open(location, os.O_RDONLY)
    except PermissionError:
        yield os.stat(location)
        return
    try:
        yield os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _write_units(
    jobs: Sequence[UnitJob],
    location: str,
    options: ConvertOptions,
    progress: Progress | None,
    executor: Executor | None,
) -> list[UnitReport]:
    alone = (executor is None and options.jobs == 1) or len(jobs) == 1
    if alone or jobs[0].destination.backend != "zarr":
        return [convert_into(job, location, progress) for job in jobs]
    # The first unit makes the root group, which the others then share.
    first = convert_into(jobs[0], location, progress)
    rest = jobs[1:]
    reports = _run([(convert_into, job, location) for job in rest], rest, options, progress, executor)
    # A worker that died in the making of a group which it shared with others, or of one that nobody went on with.
    sweep(location)
    return [first, *reports]
