"""Conversions that write to a URL: tensors and documents straight there, HDF5 through a file that is uploaded.

A unit counts as finished when no marker stands beside it (:mod:`msformat.destination_remote`), which is removed only
after all of it was read back; ``dump.h5`` is one object, which appears when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeAlias

import xxhash

from msformat.convert_unit import (
    UnitJob,
    UnitReport,
    all_done,
    already_there,
    convert_into,
    failed_report,
    is_done,
    open_source,
    plan_job,
    skipped_report,
    write_store,
)
from msformat.credentials import hide_credentials
from msformat.destination_remote import Place
from msformat.errors import MsformatError, StoreError
from msformat.filesystem import RemoteFileSystem, open_remote
from msformat.parallel import run_all
from msformat.plan import UnitPlan
from msformat.stores.base import Store
from msformat.stores.registry import open_store

__all__ = ["convert_remote_single", "convert_remote_unit"]

Progress: TypeAlias = Callable[[str, int, int], None]
_PIECE = 8 << 20


def convert_remote_unit(job: UnitJob, progress: Progress | None = None) -> UnitReport:
    """Convert a unit into ``step{N}/rank{R}`` below a URL. Never raises for what is wrong with this unit alone."""
    started = time.perf_counter()
    try:
        with open_source(job.source) as source:
            plan = plan_job(job, source)
            place = Place(job.destination.unit_directory(job.key.path))
            if place.is_finished and not job.overwrite:
                return already_there(job, plan, place.url)
            place.discard_leftovers()
            write = _write_hdf5 if job.destination.backend == "hdf5" else _write_objects
            report = write(job, source, plan, place, progress)
    except (MsformatError, OSError) as error:
        return failed_report(job, error)
    report.seconds = time.perf_counter() - started
    return report


def _write_objects(job: UnitJob, source: Store, plan: UnitPlan, place: Place, progress: Progress | None) -> UnitReport:
    """Where nothing stands, in place; else beside it, and the whole unit is then put in the place of the old one."""
    if not place.is_finished:
        with place.claimed(plan.documents):
            return _write_at(job, source, plan, place.url, progress)
    with _temporary(place) as beside:
        report = _write_at(job, source, plan, beside, progress)
        place.replace_by(beside, plan.documents)
    return report


def _write_at(job: UnitJob, source: Store, plan: UnitPlan, url: str, progress: Progress | None) -> UnitReport:
    location = job.destination.store_location(url)
    report = write_store(job, source, plan, location, "", progress)
    report.bytes_out, report.files_out = _usage(open_remote(location))
    return report


def _write_hdf5(job: UnitJob, source: Store, plan: UnitPlan, place: Place, progress: Progress | None) -> UnitReport:
    with _scratch() as folder:
        local = str(Path(folder) / "dump.h5")
        report = write_store(job, source, plan, local, "", progress)
        if place.is_finished or place.is_marked:
            with place.claimed(plan.documents, replacing=True):
                _upload(local, place.fs, "dump.h5", verify=job.verify)
        else:
            _upload(local, place.fs, "dump.h5", verify=job.verify)
        report.bytes_out, report.files_out = os.path.getsize(local), 1
    return report


# --- one store for all units -----------------------------------------------------------------------------------------


def convert_remote_single(
    jobs: Sequence[UnitJob], *, workers: int, executor: Executor | None, progress: Progress | None
) -> list[UnitReport]:
    """Convert units into one ``.h5`` object or ``.zarr`` group.

    Raises
    ------
    StoreError
        It cannot be written, or something else stands there.
    """
    destination = jobs[0].destination
    place = Place(destination.path, zarr=destination.backend == "zarr")
    exists = place.is_finished or (destination.backend == "hdf5" and place.fs.kind("") == "file")
    if exists and jobs[0].resume:
        found = all_done(jobs, destination.path)
        if found is not None:
            return found
        if not jobs[0].overwrite:
            where = hide_credentials(destination.path)
            raise StoreError(f"{where}: holds something else than {jobs[0].source.location}; --overwrite replaces it")
    place.discard_leftovers()
    if destination.backend == "hdf5":
        return _one_file(jobs, destination.path, progress)
    if not exists:
        with place.claimed(keep=jobs[0].resume):
            return _one_group(jobs, destination.path, workers, executor, progress)
    with _temporary(place) as beside:
        reports = _one_group(jobs, beside, workers, executor, progress)
        place.replace_by(beside)
    return reports


def _one_file(jobs: Sequence[UnitJob], url: str, progress: Progress | None) -> list[UnitReport]:
    with _scratch() as folder:
        local = str(Path(folder) / "dump.h5")
        reports = [convert_into(job, local, progress) for job in jobs]
        if not all(report.failed for report in reports):
            above, _, name = url.rpartition("/")
            _upload(local, open_remote(above), name, verify=jobs[0].verify)
    return reports


def _one_group(
    jobs: Sequence[UnitJob], url: str, workers: int, executor: Executor | None, progress: Progress | None
) -> list[UnitReport]:
    from msformat.stores.zarr_remote import finish_root  # noqa: PLC0415 (numcodecs, which other stores do not need)

    if executor is None and workers == 1:
        reports = [_group_unit(job, url, progress) for job in jobs]
    else:
        reports = run_all(
            [(_group_unit, job, url) for job in jobs],
            workers=workers,
            executor=executor,
            done=progress and (lambda report: progress(report.key, report.bytes_in, report.bytes_in)),
            lost=lambda number, error: failed_report(jobs[number], error),
        )
    if all(report.failed for report in reports):
        raise StoreError(f"{hide_credentials(url)}: no unit could be written: {'; '.join(reports[0].problems)}")
    finish_root(url)
    return reports


def _group_unit(job: UnitJob, url: str, progress: Progress | None = None) -> UnitReport:
    """A unit into its group. A group without a marker that has its metadata was finished by an earlier run."""
    started = time.perf_counter()
    group = job.key.path
    try:
        with open_source(job.source) as source:
            plan = plan_job(job, source)
            place = Place(f"{url}/{group}", zarr=True)
            if place.is_finished and _group_is_done(job, plan, url):
                return skipped_report(job, plan)
            with place.claimed(replacing=True):
                report = write_store(job, source, plan, url, group, progress)
    except (MsformatError, OSError) as error:
        return failed_report(job, error)
    report.bytes_out, report.files_out = _usage(place.fs)
    report.seconds = time.perf_counter() - started
    return report


def _group_is_done(job: UnitJob, plan: UnitPlan, url: str) -> bool:
    try:
        with open_store("zarr", url, group=job.key.path) as store:
            return is_done(store, plan)
    except (MsformatError, OSError):
        return False


# --- uploads and what is temporary -----------------------------------------------------------------------------------


def _upload(local: str, fs: RemoteFileSystem, path: str, *, verify: bool) -> None:
    """A whole file as an object, read back and compared.

    Raises
    ------
    StoreError
        What the store gives back is something else.
    """
    fs.upload(local, path)
    if verify and _digest(fs, path) != _digest_of(local):
        fs.remove(path)
        raise StoreError(f"{hide_credentials(fs.describe(path))}: does not read back as it was uploaded")


def _digest(fs: RemoteFileSystem, path: str) -> bytes:
    state, start = xxhash.xxh3_128(), 0
    while piece := fs.read(path, start, _PIECE):
        state.update(piece)
        start += len(piece)
        if len(piece) < _PIECE:
            break
    return state.digest()


def _digest_of(local: str) -> bytes:
    state = xxhash.xxh3_128()
    with Path(local).open("rb") as stream:
        while piece := stream.read(_PIECE):
            state.update(piece)
    return state.digest()


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """A folder of this machine (``TMPDIR``) with room for one file."""
    with tempfile.TemporaryDirectory(prefix="msformat-") as folder:
        yield folder


@contextlib.contextmanager
def _temporary(place: Place) -> Iterator[str]:
    """URL of a temporary prefix, which is cleared in the end."""
    beside = place.temporary()
    try:
        yield beside
    finally:
        Place(beside).discard()


def _usage(fs: RemoteFileSystem) -> tuple[int, int]:
    sizes = fs.files()
    return sum(sizes.values()), len(sizes)
