"""Forks writers of tensors in shards that kill themselves. A process of its own: imports are paid once.

Reads one JSON request a line, ``{"store": …, "progress": …, "how": …, "when": n}``, and answers ``{"killed": …,
"calls": …, "puts": …}``. ``how`` is one of

- ``calls``: SIGKILL in front of the n-th call into C that touches a file, in whatever thread, once the unit is made;
- ``making``: the same, counted from the first call of all, in the first thread;
- ``tear``: half-way through the n-th piece of a shard, chunk or index;
- ``not``.

Numbers of the tensors that were synced go to the file ``progress``, a line each.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import dtype_named
from msformat.stores.base import StoreOptions
from msformat.stores.zarr import ZarrStore
from msformat.stores.zarr_codecs import require_numcodecs
from msformat.stores.zarr_shards import FileShard
from tests.crash.forking import TOUCHES_FILES, serve

COUNT = 6
GROUP = "step0/rank0"


def tensor(number: int) -> NDArray[np.float32]:
    """Of three chunks of up to 8 MiB, the last one not full; each third has the bytes of the one before as a vector."""
    bits = np.full((2500, 2000), number - number % 3 // 2, np.float32)
    return bits.reshape(-1) if number % 3 == 2 else bits


def main() -> None:
    """Serve until standard input ends."""
    require_numcodecs()
    serve(_run)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    calls, puts = count(1), count(1)
    last = {"calls": 0, "puts": 0}

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in TOUCHES_FILES:
            last["calls"] = next(calls)
            if request["how"] in ("calls", "making") and request["when"] == last["calls"]:
                os.kill(os.getpid(), signal.SIGKILL)

    put = FileShard._put

    def torn(self: FileShard, start: int, data: Any) -> None:
        last["puts"] = next(puts)
        if (request["how"], request["when"]) == ("tear", last["puts"]):
            put(self, start, memoryview(data).cast("B")[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        put(self, start, data)

    FileShard._put = torn  # type: ignore[method-assign]
    progress = os.open(request["progress"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if request["how"] == "making":
        sys.setprofile(look)
    _write(request["store"], progress, look)
    return last


def _write(location: str, progress: int, look: Callable[[FrameType, str, Any], None]) -> None:
    with ZarrStore(location, mode="w", group=GROUP, options=StoreOptions(threads=2)) as store:
        # The threads start later.
        threading.setprofile(look)
        sys.setprofile(look)
        for number in range(COUNT):
            store.put(f"x{number}", tensor(number), dtype_named("float32"), owned=True)
            if number % 2:
                store.sync()
                os.write(progress, b"%d\n" % number)


if __name__ == "__main__":
    main()
