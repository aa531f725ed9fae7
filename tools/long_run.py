"""A long captured training: does memory, or any kind of handle, grow with the number of steps?

``python -m tools.long_run --task tensor --steps 500`` trains a small GPT, records every step, looks at the process
every few steps, and ends with 1 when a later part of the run holds more than an earlier one. ``--disk "20 MiB"`` makes
a disk of that speed out of any disk, by sleeping in the writer: then the queue has to block at its bound.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

from msformat import DumpWriter
from msformat.cli.output import bytes_text
from msformat.cli.tables import print_table

MODELS = {
    "tiny": {"layers": 1, "width": 8, "heads": 1, "batch": 1, "tokens": 2},
    "small": {"layers": 1, "width": 32, "heads": 2, "batch": 2, "tokens": 16},
    "gpt": {},
}


@dataclass(frozen=True)
class Sample:
    """What a process holds between two steps, with nothing waiting to be written.

    Attributes
    ----------
    step
        Steps before it.
    rss
        Resident bytes.
    traced
        Bytes that Python allocated and holds (0 without tracing).
    objects
        Objects that the garbage collector knows, after a collection.
    descriptors, threads
        Open files and threads of the process, as Linux counts them.
    """

    step: int
    rss: int
    traced: int
    objects: int
    descriptors: int
    threads: int

    @classmethod
    def take(cls, step: int) -> Sample:
        """Look at this process."""
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        traced = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
        handles = [len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")]
        return cls(step, resident, traced, len(gc.get_objects()), *handles)


# What a run may hold more at its end than after its first quarter: an allocator's slack, counters of steps.
ALLOWED = {"rss": 24 << 20, "traced": 64 << 10, "objects": 200, "descriptors": 0, "threads": 0}


def growth(samples: list[Sample]) -> dict[str, int]:
    """How much more the last quarter of a run holds than its second one, in medians."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    names = [each.name for each in fields(Sample)[1:]]
    return {
        name: round(statistics.median(getattr(each, name) for each in late))
        - round(statistics.median(getattr(each, name) for each in early))
        for name in names
    }


# What is handed over at once may be more than the bound, and is taken when nothing else waits.
LARGEST_BATCH = 16 << 20


class SlowDisk:
    """Stands in for :class:`msformat.DumpWriter`, as slow as a disk of so many bytes a second."""

    def __init__(self, rate: float, entry_seconds: float = 0.0) -> None:
        self.rate, self.entry_seconds = rate, entry_seconds
        self.bytes = 0

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """All units that are opened meanwhile lie on it."""
        disk = self

        class SlowWriter(DumpWriter):
            def put_tensor(self, name: str, data: Any, *arguments: Any, **named: Any) -> None:
                disk.bytes += data.nbytes
                time.sleep(data.nbytes / disk.rate)
                super().put_tensor(name, data, *arguments, **named)

            def put_entries(self, entries: Any) -> None:
                time.sleep(disk.entry_seconds * len(entries))
                super().put_entries(entries)

        with mock.patch("capture.session.DumpWriter", SlowWriter):
            yield


class Watch:
    """The most bytes that ever waited in a queue, looked at all the time by a thread of its own."""

    def __init__(self, queue: Any) -> None:
        self.most = 0
        self._queue, self._ended = queue, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            self.most = max(self.most, self._queue.waiting_bytes)


def make_training(root: Path, model: str, **config: object) -> Any:
    """A training of one of :data:`MODELS` whose debugger records every step into ``root / "dump"``."""
    import torch

    from capture.pytorch import PrecisionDebugger
    from tools.gpt import Training

    torch.set_num_threads(1)
    settings = {"level": "mix", "dump_path": str(root / "dump"), **config}
    (root / "config.json").write_text(json.dumps(settings))
    return Training(PrecisionDebugger(str(root / "config.json")), **MODELS[model])


def run_long(training: Any, dump: Path, steps: int, every: int) -> list[Sample]:
    """Train, and look every few steps. Units that are looked past are removed: a disk is no part of the question."""
    training.step()
    training.debugger.wait()
    gc.collect()
    gc.freeze()  # what is there now need not be walked at each look
    samples = []
    for step in range(2, steps + 1):
        training.step()
        if step % every == 0:
            training.debugger.wait()
            samples.append(Sample.take(step))
            for unit in dump.iterdir():
                shutil.rmtree(unit)
    return samples


def run_slow(training: Any, steps: int, disk: SlowDisk) -> dict[str, float]:
    """Train onto a slow disk: seconds, bytes written, the most that waited, and the growth of resident memory."""
    training.step()
    training.debugger.wait()
    before, began = Sample.take(0).rss, time.perf_counter()
    written, most = disk.bytes, 0
    with Watch(training.debugger._session.queue) as watch:
        for _ in range(steps):
            training.step()
            most = max(most, Sample.take(0).rss)
        training_seconds = time.perf_counter() - began
    training.debugger.wait()
    seconds = time.perf_counter() - began
    found = {"training": training_seconds, "all": seconds, "bytes": disk.bytes - written, "waited": watch.most}
    return {**found, "grown": most - before}


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("statistics", "tensor"), default="tensor")
    parser.add_argument("--store", choices=("files", "hdf5", "zarr"), default="files")
    parser.add_argument("--level", choices=("L0", "L1", "mix"), default="mix")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=10, help="look at the process every so many steps")
    parser.add_argument("--trace", action="store_true", help="count Python's own memory, too (half the speed)")
    parser.add_argument("--queue", type=int, default=64 << 20, metavar="BYTES", help="max_queue_bytes")
    parser.add_argument("--disk", type=float, metavar="BYTES", help="write no faster than this a second")
    parser.add_argument("--json", action="store_true", help="print one line of JSON and judge nothing")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="long-run-"))
    try:
        storage = {"format": arguments.store, "durability": "process"}
        config = {"task": arguments.task, "level": arguments.level, "max_queue_bytes": arguments.queue}
        training = make_training(root, arguments.model, storage=storage, **config)
        if arguments.disk:
            # The records of an entry are about 4 KiB of documents.
            disk = SlowDisk(arguments.disk, (4 << 10) / arguments.disk)
            with disk.mounted():
                return report_slow(run_slow(training, arguments.steps, disk), arguments)
        if arguments.trace:
            tracemalloc.start()
        samples = run_long(training, root / "dump", arguments.steps, arguments.every)
        return report_long(samples, arguments)
    finally:
        training.debugger.close()
        shutil.rmtree(root)


def report_slow(found: dict[str, float], arguments: argparse.Namespace) -> int:
    """What a slow disk did."""
    if arguments.json:
        print(json.dumps(found))
        return 0
    written = bytes_text(int(found["bytes"]))
    print(f"{written} written in {found['all']:.1f} s; the training took {found['training']:.1f} s")
    print(f"at most {bytes_text(int(found['waited']))} waited (bound {bytes_text(arguments.queue)});", end=" ")
    print(f"resident memory grew by {bytes_text(max(0, int(found['grown'])))}")
    return int(found["waited"] > max(arguments.queue, LARGEST_BATCH))


def report_long(samples: list[Sample], arguments: argparse.Namespace) -> int:
    """How the process grew."""
    grown = growth(samples)
    if arguments.json:
        print(json.dumps({"samples": [vars(each) for each in samples], "growth": grown}))
        return 0
    shown = samples[:: max(1, len(samples) // 10)]
    rows = [
        (each.step, bytes_text(each.rss), bytes_text(each.traced), each.objects, each.descriptors, each.threads)
        for each in shown
    ]
    columns = ("step", "resident", "Python's", "objects", "descriptors", "threads")
    print_table(columns, rows, right=columns, title=f"{arguments.task}, {arguments.store}")
    too_much = {name: amount for name, amount in grown.items() if amount > ALLOWED[name]}
    print(f"grown from the second quarter to the last: {grown}; too much: {too_much or 'nothing'}")
    return int(bool(too_much))


if __name__ == "__main__":
    sys.exit(main())
