"""A Zarr store whose writer is killed at seeded moments keeps everything that was synced."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.stores.zarr import ZarrStore

pytest.importorskip("numcodecs")

FLOAT32 = dtype_named("float32")

# Small tensors, bigger ones through a thread, aliases and documents; a number is printed once it must survive.
WRITER = """
import sys
import numpy as np
from msformat.dtypes import dtype_named
from msformat.stores.zarr import ZarrStore
float32 = dtype_named("float32")
store = ZarrStore(sys.argv[1], mode="w", group="step0/rank")
print("ready", flush=True)
for number in range(100000):
    store.put(f"small{number}", np.full(11, number, np.float32), float32)
    store.put(f"alias{number}", np.full(11, number, np.float32), float32)
    if number % 3 == 0:
        store.put(f"big{number}", np.full((30, 2000), number, np.float32), float32, owned=True)
    if number % 4 == 3:
        store.put_document("dump.json", b"%d" % number * 1000)
        store.sync()
        print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(8))
def test_synced_tensors_survive_a_kill(tmp_path: Path, seed: int) -> None:
    location = str(tmp_path / "d.zarr")
    with subprocess.Popen([sys.executable, "-c", WRITER, location], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(random.Random(seed).uniform(0.02, 0.4))
        writer.send_signal(signal.SIGKILL)
        promised = [int(line) for line in writer.stdout if line.endswith("\n")]
    last = promised[-1] if promised else -1
    with ZarrStore(location, group="step0/rank") as store:
        wanted = [f"{kind}{number}" for number in range(last + 1) for kind in ("small", "alias")]
        assert set(wanted) <= set(store.keys())
        known = list(store.keys())
        for key in known:
            stored = store.get(key)
            stored.verify()
            assert (stored.numpy() == float(re.sub("[a-z]+", "", key))).all()
        if last >= 0:
            document = store.get_document("dump.json")
            assert document is not None
            number = int(bytes(document).decode()[: len(document) // 1000])
            assert number >= last
            assert bytes(document) == b"%d" % number * 1000
    with ZarrStore(location, mode="a", group="step0/rank") as store:
        store.put("after", np.ones(3, np.float32), FLOAT32)
    with ZarrStore(location, group="step0/rank") as store:
        assert list(store.keys()) == [*known, "after"]
        for key in (*known, "after"):
            store.get(key).verify()
    assert not list(Path(location).rglob("*msformat-partial*"))
