"""Ctrl-C between any two instructions of a put: the store can be closed, and what was there before is there.

A tracer raises it at a chosen instruction. In processes of their own, which a deadlock would stop.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.workload import BACKENDS

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, sys
import numpy as np
from msformat.dtypes import dtype_named
from msformat.errors import MsformatError
from msformat.stores.base import StoreOptions
from msformat.stores.registry import open_store

place, backend, stride = sys.argv[1], sys.argv[2], int(sys.argv[3])
float32 = dtype_named("float32")
# Some chunks for threads, and one row of an array.
rng = np.random.default_rng(0)
before, large, small = (rng.random(shape, np.float32) for shape in [(9, 9), (900, 1000), (99, 99)])

def trace(frame, event, _):
    global reached
    if "/msformat/" in frame.f_code.co_filename:
        frame.f_trace_opcodes = True
        if event == "opcode":
            reached += 1
            if reached == wanted:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

wanted, reached = 0, 0
while reached >= wanted:
    wanted, reached = wanted + stride, 0
    location = os.path.join(place, f"{wanted}") + (".h5" if backend == "hdf5" else "")
    if backend == "files":
        os.mkdir(location)
    options = StoreOptions(threads=2, durability="process", compression="none" if backend == "files" else "gzip:1")
    store = open_store(backend, location, mode="w", options=options)
    store.put("before", before, float32)
    store.sync()
    try:
        sys.settrace(trace)
        store.put("large", large, float32, owned=True)  # by threads
        store.put("small", small, float32)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    try:
        store.close()
    except MsformatError:
        pass
    with open_store(backend, location) as store:
        assert store.get("before").bits().tobytes() == before.tobytes()
        for name, bits in (("large", large), ("small", small)):
            try:
                found = store.get(name).bits()
            except MsformatError:  # not there, or named as incomplete
                continue
            assert found.tobytes() == bits.tobytes()
print("tried", wanted > 15 * stride)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupt_anywhere_in_a_put(tmp_path: Path, backend: str) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), backend, "29"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "tried True\n", done.stderr[-3000:]
