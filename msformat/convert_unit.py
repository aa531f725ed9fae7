"""One unit into its destination: under a temporary name, whole, verified, and only then under its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from msformat.atomic import make_private, temporary_sibling
from msformat.columnindex import put_document_columns
from msformat.destination import (
    Destination,
    exclusive,
    install,
    make_parents,
    prune_empty,
    remove_leftovers,
    remove_temporary,
)
from msformat.errors import MsformatError, StoreError
from msformat.filesystem import is_url
from msformat.layout import UnitLocation, unit_backend
from msformat.plan import Rewrite, UnitPlan, plan_unit
from msformat.stores.base import ReadOnlyBuffer, Store, StoreOptions
from msformat.stores.registry import open_store, store_class
from msformat.transfer import Transferred, transfer, verify_transfer
from msformat.unfinished import unit_documents
from msformat.units import UnitKey

__all__ = [
    "UnitJob",
    "UnitProgress",
    "UnitReport",
    "all_done",
    "already_there",
    "convert_into",
    "convert_tree_unit",
    "failed_report",
    "is_done",
    "open_source",
    "plan_job",
    "plan_only",
    "skipped_report",
    "write_store",
]

UnitProgress: TypeAlias = "Callable[[str, int, int], None]"


@dataclass(frozen=True, slots=True)
class UnitJob:
    """Everything a worker process needs to convert one unit.

    Attributes
    ----------
    source
        Where the unit is.
    key
        Its key in the destination.
    destination
        Where it goes.
    rewrite, store_options
        What to change, and how to write.
    verify, resume, overwrite
        As in :class:`msformat.convert.ConvertOptions`.
    """

    source: UnitLocation
    key: UnitKey
    destination: Destination
    rewrite: Rewrite
    store_options: StoreOptions
    verify: bool = True
    resume: bool = False
    overwrite: bool = False


@dataclass(slots=True)
class UnitReport:
    """What became of a unit.

    Attributes
    ----------
    key
        Its path in the destination.
    entries, tensors
        How many were written.
    bytes_in, bytes_out, files_in, files_out
        On disk, hard links once. A group of a larger file counts as its uncompressed bytes in no file of its own; going
        into one, as what the file grew by.
    seconds
        Wall time.
    verified
        Every tensor and document read back as it was read from the source; None if that was not asked for. What does
        not read back is not kept.
    problems
        What is missing from the destination, by name.
    notes
        What a person should know, though nothing is missing.
    skipped
        It was there already, whole.
    failed
        Nothing of it was written.
    """

    key: str
    entries: int = 0
    tensors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    files_in: int = 0
    files_out: int = 0
    seconds: float = 0.0
    verified: bool | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: bool = False
    failed: bool = False

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def convert_tree_unit(job: UnitJob, progress: UnitProgress | None = None) -> UnitReport:
    """Convert a unit into ``step{N}/rank{R}`` of a tree. Never raises for what is wrong with this unit alone."""
    try:
        return _convert_tree_unit(job, progress)
    except (MsformatError, OSError) as error:
        return failed_report(job, error)


def failed_report(job: UnitJob, error: BaseException) -> UnitReport:
    """The report of a unit of which nothing was written."""
    return UnitReport(job.key.path, problems=[f"not converted: {error}"], failed=True)


def _convert_tree_unit(job: UnitJob, progress: UnitProgress | None) -> UnitReport:
    started = time.perf_counter()
    destination = job.destination
    directory = destination.unit_directory(job.key.path)
    make_parents(directory, destination.path)
    try:
        with exclusive(directory):
            remove_leftovers(directory)
            report = _write_tree_unit(job, directory, progress)
    finally:
        prune_empty(os.path.dirname(directory), destination.path)
    report.seconds = time.perf_counter() - started
    return report


def _write_tree_unit(job: UnitJob, directory: str, progress: UnitProgress | None) -> UnitReport:
    with open_source(job.source) as source:
        plan = plan_job(job, source, _scratch_beside(directory))
        if os.path.isdir(directory) and unit_backend(directory) is not None and not job.overwrite:
            return already_there(job, plan, directory)
        temporary = temporary_sibling(directory)
        try:
            os.mkdir(temporary)
            make_private(temporary)
            location = job.destination.store_location(temporary)
            report = write_store(job, source, plan, location, "", progress)
            report.bytes_out, report.files_out = disk_usage(temporary)
            strangers = install(temporary, directory, plan.documents)
        except BaseException:
            remove_temporary(temporary)
            raise
    report.notes += [f"{name}: not a file of a dump, kept" for name in strangers]
    return report


def already_there(job: UnitJob, plan: UnitPlan, directory: str) -> UnitReport:
    """The report of a unit that stands at its place already, whole and as it would be written.

    Raises
    ------
    StoreError
        It is another one.
    """
    backend = unit_backend(directory) or job.destination.backend
    here = Destination(job.destination.path, backend, single=False)
    with open_store(backend, here.store_location(directory)) as store:
        # Also without --resume: the worker that wrote it may have died before it could say so.
        if not is_done(store, plan):
            raise StoreError(f"{directory}: already holds another unit; --overwrite replaces it")
        return skipped_report(job, plan)


def skipped_report(job: UnitJob, plan: UnitPlan) -> UnitReport:
    """The report of a unit that is there already. What its source lacks, it lacks as well."""
    counts = (plan.entries, len(plan.tensors))
    return UnitReport(job.key.path, *counts, problems=plan.problems, notes=plan.notes, skipped=True)


def convert_into(job: UnitJob, location: str, progress: UnitProgress | None = None) -> UnitReport:
    """Convert a unit into a group of an unfinished file that holds many.

    Raises
    ------
    StoreError
        The file cannot be written. What is wrong with the source alone ends in the report.
    """
    started = time.perf_counter()
    # In a Zarr directory others may be writing their groups at the same time.
    place = os.path.join(location, job.key.path) if job.destination.backend == "zarr" else location
    before, files_before = disk_usage(place)
    try:
        source = open_source(job.source)
    except (MsformatError, OSError) as error:
        return failed_report(job, error)
    with source:
        try:
            plan = plan_job(job, source, _scratch_beside(location))
        except (MsformatError, OSError) as error:
            return failed_report(job, error)
        report = write_store(job, source, plan, location, job.key.path, progress)
    after, files_after = disk_usage(place)
    report.bytes_out, report.files_out = after - before, files_after - files_before
    report.seconds = time.perf_counter() - started
    return report


def plan_only(job: UnitJob) -> UnitReport:
    """What would be converted; nothing is written."""
    try:
        with open_source(job.source) as source:
            plan = plan_job(job, source)
    except (MsformatError, OSError) as error:
        return failed_report(job, error)
    report = UnitReport(job.key.path, plan.entries, len(plan.tensors), problems=plan.problems, notes=plan.notes)
    report.bytes_in, report.files_in = _source_usage(job.source, plan.nbytes)
    return report


def open_source(source: UnitLocation) -> Store:
    """The store of a unit to convert."""
    return open_store(source.backend, source.location, group=source.group)


def plan_job(job: UnitJob, source: Store, scratch: str | None = None) -> UnitPlan:
    """What a job is to write; documents too large for memory lie in ``scratch`` meanwhile, in files without a name."""
    documents, problems = unit_documents(job.source, source)
    plan = plan_unit(source, documents, job.rewrite, rank=job.source.key.rank, scratch=scratch)
    plan.problems[:0] = problems
    plan.notes[:0] = source.notes
    return plan


def _scratch_beside(location: str) -> str | None:
    """A directory on the disk that is written to."""
    return None if is_url(location) else os.path.dirname(os.path.abspath(location))


def write_store(
    job: UnitJob, source: Store, plan: UnitPlan, location: str, group: str, progress: UnitProgress | None
) -> UnitReport:
    """Write a plan into a store at ``location``, and read it back if the job says so.

    Raises
    ------
    StoreError
        It cannot be written, or does not read back as it was written.
    """
    name, total = job.key.path, plan.nbytes
    if progress is not None:
        progress(name, 0, total)
    notify = None if progress is None else lambda done: progress(name, min(done, total), total)
    backend = job.destination.backend
    with _written(open_store(backend, location, mode="a", group=group, options=job.store_options), job) as target:
        _check_strangers(target, plan)
        done = transfer(source, target, plan.tensors, notify)
        if job.resume and done.conflicts:
            raise StoreError(f"{location}: an earlier run wrote other content there")
        # The order of a finished dump: a document never names a tensor that is not safe.
        target.sync()
        target.put_documents(plan.documents)
        put_document_columns(target, plan.documents)
    report = _report_of(job, plan, done)
    if job.verify:
        faults = _verify(backend, location, group, plan.documents, done)
        if faults:
            raise StoreError(f"does not read back as it was written: {'; '.join(faults[:5])} ({len(faults)} in all)")
        report.verified = True
    if progress is not None:
        progress(name, total, total)
    return report


@contextlib.contextmanager
def _written(store: Store, job: UnitJob) -> Iterator[Store]:
    """Close a store; where an error ends the block, without waiting for what nobody will keep."""
    try:
        yield store
    except BaseException as error:
        single = job.destination.single and not job.destination.remote
        # Who asked to resume goes on from what one file holds by now.
        if job.resume and single and isinstance(error, KeyboardInterrupt):
            store.close()
        else:
            store.abandon()
        raise
    store.close()


def _check_strangers(target: Store, plan: UnitPlan) -> None:
    """What an earlier run left must be part of what this one writes."""
    wanted = {tensor.target for tensor in plan.tensors}
    if not (wanted.issuperset(target.keys()) and set(plan.documents).issuperset(target.documents())):
        raise StoreError(f"{target.location}: an earlier run left something else there")


def _report_of(job: UnitJob, plan: UnitPlan, done: Transferred) -> UnitReport:
    report = UnitReport(job.key.path, plan.entries, len(done.digests))
    report.problems = plan.problems + done.problems
    report.notes = plan.notes + done.notes
    report.bytes_in, report.files_in = _source_usage(job.source, done.nbytes)
    return report


def _verify(
    backend: str, location: str, group: str, documents: Mapping[str, ReadOnlyBuffer], done: Transferred
) -> list[str]:
    with open_store(backend, location, group=group) as store:
        faults = verify_transfer(store, done.digests)
        faults += [f"{name} reads back with other content" for name in documents if not _same(store, name, documents)]
    return faults


def _same(store: Store, name: str, documents: Mapping[str, ReadOnlyBuffer]) -> bool:
    found = store.get_document(name)
    return found is not None and memoryview(found) == memoryview(documents[name])


def is_done(store: Store, plan: UnitPlan) -> bool:
    """Whether a store holds everything the plan would write: documents go last, so they vouch for the tensors."""
    return (
        set(store.documents()) == set(plan.documents)
        and all(_same(store, name, plan.documents) for name in plan.documents)
        and all(tensor.target in store for tensor in plan.tensors)
    )


def all_done(jobs: Sequence[UnitJob], location: str) -> list[UnitReport] | None:
    """Reports of units that a finished file holds already, all of them as they would be written; None if one is not."""
    reports: list[UnitReport] = []
    try:
        groups = set(store_class(jobs[0].destination.backend).groups(location))
        for job in jobs:
            if job.key.path not in groups:
                return None
            with (
                open_source(job.source) as source,
                open_store(job.destination.backend, location, group=job.key.path) as store,
            ):
                plan = plan_job(job, source, _scratch_beside(location))
                if not is_done(store, plan):
                    return None
                reports.append(skipped_report(job, plan))
    except (MsformatError, OSError):
        return None
    return reports


# --- sizes -----------------------------------------------------------------------------------------------------------


def _source_usage(source: UnitLocation, logical: int) -> tuple[int, int]:
    """Bytes and files of a source unit."""
    if source.directory is not None and os.path.isdir(source.directory):
        return disk_usage(source.directory)
    return logical, 0


def disk_usage(path: str) -> tuple[int, int]:
    """Bytes and number of files at a path, each hard link once; (0, 0) where nothing is. Vanished ones are left out."""
    if os.path.isfile(path):
        return os.path.getsize(path), 1
    total, count = 0, 0
    seen: set[tuple[int, int]] = set()
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                found = os.lstat(os.path.join(directory, name))
            except OSError:
                continue
            count += 1
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                total += found.st_size
    return total, count
