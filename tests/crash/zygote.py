"""Forks writers and has them killed. A process of its own, so that imports are paid once and pytest is never forked.

Reads one JSON request a line from standard input::

    {"backend": …, "unit": …, "progress": …, "seed": …, "count": …, "how": "calls" | "tear" | "time", "when": …,
     "durability": … (may be left out)}

and answers each with one line ``{"killed": …, "calls": …, "seconds": …}``. ``calls``: the writer kills itself in front
of its n-th call into C that touches a file. ``tear``: in the middle of its n-th append to the journal. ``time``: it is
killed from outside after so many seconds.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from msformat.stores.base import StoreOptions
from msformat.stores.registry import store_class
from msformat.writer import DumpWriter
from tests.crash.forking import TOUCHES_FILES, serve
from tests.crash.workload import BACKENDS, HEADER, put, steps


def main() -> None:
    """Serve until standard input ends."""
    for backend in BACKENDS:
        store_class(backend)
    _warm_up()
    serve(_run)


def _warm_up() -> None:
    """Import what stores import on first use."""
    import h5py  # noqa: F401
    import numcodecs  # noqa: F401


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """The writer's life."""
    calls = 0
    write = os.write

    def count(_: Any, event: str, called: Any) -> None:
        nonlocal calls
        if event == "c_call" and getattr(called, "__name__", "") in TOUCHES_FILES:
            calls += 1
            if request["how"] == "calls" and calls == request["when"]:
                os.kill(os.getpid(), signal.SIGKILL)

    if request["how"] == "tear":
        os.write = _tearing(write, os.path.join(request["unit"], "journal.jsonl"), request["when"])
    progress = os.open(request["progress"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.setprofile(count)
    options = StoreOptions(durability=request.get("durability", "fsync"))
    with DumpWriter(request["unit"], HEADER, backend=request["backend"], options=options, sync_entries=1000) as writer:
        for number, one in enumerate(steps(request["seed"], request["count"])):
            put(writer, one)
            if number % 3 == 2:
                writer.commit()
                write(progress, b"%d\n" % (number + 1))
    write(progress, b"finished\n")
    return {"calls": calls}


def _tearing(write: Callable[[int, Any], int], journal: str, when: int) -> Callable[[int, Any], int]:
    """``os.write``, until the n-th call for the journal: that one dies in the middle."""
    done = 0

    def torn(descriptor: int, data: Any) -> int:
        nonlocal done
        done += os.path.exists(journal) and os.path.samestat(os.fstat(descriptor), os.stat(journal))
        if done == when:
            write(descriptor, data[: max(1, len(data) * 2 // 3)])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)

    return torn


if __name__ == "__main__":
    main()
