"""Forks conversions that kill themselves. A process of its own: imports are paid once and pytest is never forked.

Reads one JSON request a line, ``{"src": …, "dst": …, "options": {…}, "at": n or null}``, and answers ``{"killed": …,
"calls": …}``. The conversion dies by SIGKILL in front of its n-th call into C that touches a file, in whatever thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count
from types import FrameType
from typing import Any

from msformat.convert import ConvertOptions, convert
from msformat.stores.registry import store_class
from tests.crash.forking import TOUCHES_FILES, serve


def main() -> None:
    """Serve until standard input ends."""
    for backend in ("files", "hdf5", "zarr"):
        store_class(backend)
    import h5py  # noqa: F401
    import numcodecs  # noqa: F401

    serve(_convert)


def _convert(request: dict[str, Any]) -> dict[str, Any]:
    numbers = count(1)
    last = [0]

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in TOUCHES_FILES:
            last[0] = next(numbers)
            if last[0] == request["at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(look)
    sys.setprofile(look)
    report = convert(request["src"], request["dst"], ConvertOptions(**request["options"]))
    sys.setprofile(None)
    assert report.exit_code == 0, report.as_json()
    return {"calls": last[0]}


if __name__ == "__main__":
    main()
