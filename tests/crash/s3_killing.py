"""Conversions that die at a chosen request to an S3 server; large objects travel in parts, as they do above 100 MB.

Run as ``python -m tests.crash.s3_killing``: reads one JSON request a line, ``{"src": …, "dst": …, "options": {…},
"at": n or null}``, and answers ``{"killed": …, "events": …}``. A process of its own: imports are paid once, and pytest
is never forked.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from msformat.convert import ConvertOptions, convert
from msformat.convert_unit import UnitJob, UnitReport
from msformat.stores.registry import store_class
from tests.crash.forking import serve

__all__ = ["CHANGES", "COMPLETING", "PART_BYTES", "KillingAtRequest"]

#: Requests that change what a bucket holds, or what it will hold.
CHANGES = frozenset((
    "put_object", "copy_object", "delete_object", "delete_objects", "create_multipart_upload", "upload_part",
    "complete_multipart_upload", "abort_multipart_upload",
))  # fmt: skip
#: All parts of an object were sent, but are no object yet.
COMPLETING = "complete_multipart_upload"
#: Objects of twice that size travel in parts; the server must have been told to take such small ones.
PART_BYTES = 16 << 10


@dataclass(frozen=True)
class KillingAtRequest:
    """Stands in the place of ``convert_remote_unit`` and its like, in worker processes.

    Attributes
    ----------
    module, name
        Where the function is that converts a unit, and for which this stands in.
    log
        Folder where deaths and conversions are told.
    victim
        The unit whose first worker dies.
    at
        Where: see :func:`arm`; -1: after the unit is finished, before anybody is told.
    """

    module: str
    name: str
    log: str
    victim: str
    at: int | str

    def __call__(self, job: UnitJob, *rest: Any) -> UnitReport:
        is_doomed = job.key.path == self.victim and not self._has_killed()
        if is_doomed and self.at != -1:
            arm(self.at)
        # By name, because a worker process has the function itself there.
        report: UnitReport = getattr(import_module(self.module), self.name)(job, *rest)
        if not report.skipped and not report.failed:
            name = job.key.path.replace("/", "-")
            Path(self.log, f"{name}-{os.urandom(4).hex()}.done").touch()
        if is_doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return report

    def _has_killed(self) -> bool:
        try:
            Path(self.log, "death").touch(exist_ok=False)
        except FileExistsError:
            return True
        return False

    def conversions(self) -> dict[str, int]:
        """How often each unit was converted to its end."""
        done = ["/".join(path.name.split("-")[:2]) for path in Path(self.log).glob("*.done")]
        return {unit: done.count(unit) for unit in done}


def arm(at: int | str | None) -> list[int]:
    """Make this process die at the ``at``-th event, or in front of the first request of that name.

    Events are two a request of :data:`CHANGES`: it was not sent yet, and it was answered. Returns how many there were,
    as the only item of a list.
    """
    import s3fs

    numbers, last = count(1), [0]
    system = s3fs.S3FileSystem
    call, pipe, put = system._call_s3, system._pipe_file, system._put_file

    def event(method: str = "") -> None:
        last[0] = next(numbers)
        if at in (last[0], method):
            os.kill(os.getpid(), signal.SIGKILL)

    async def counted(self: Any, method: str, *arguments: Any, **more: Any) -> Any:
        if method not in CHANGES:
            return await call(self, method, *arguments, **more)
        event(method)
        answer = await call(self, method, *arguments, **more)
        event()
        return answer

    async def in_parts(self: Any, path: str, data: bytes, **more: Any) -> Any:
        return await pipe(self, path, data, **{**more, "chunksize": PART_BYTES})

    async def file_in_parts(self: Any, local: str, path: str, **more: Any) -> Any:
        return await put(self, local, path, **{**more, "chunksize": PART_BYTES})

    system._call_s3, system._pipe_file, system._put_file = counted, in_parts, file_in_parts
    return last


def main() -> None:
    """Serve until standard input ends."""
    import h5py  # noqa: F401
    import numcodecs  # noqa: F401
    import s3fs  # noqa: F401

    for backend in ("files", "hdf5", "zarr"):
        store_class(backend)
    serve(_convert)


def _convert(request: dict[str, Any]) -> dict[str, Any]:
    last = arm(request["at"])
    report = convert(request["src"], request["dst"], ConvertOptions(**request["options"]))
    assert report.exit_code == 0, report.as_json()
    return {"events": last[0]}


if __name__ == "__main__":
    main()
