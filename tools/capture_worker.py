"""One training under one tool, in a process of its own (``tools/bench_capture.py`` starts it, in three environments).

``python tools/capture_worker.py {none|msprobe|capture} CONFIG STEPS``: trains the GPT of ``tools/gpt.py`` on 2 threads
for STEPS steps after one to warm up, and prints a line of JSON. Run as a script: msprobe takes longer where frames of
``runpy`` stand on the stack. ``pairs`` in place of the tool measures a debugger that is made but records nothing.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from typing import Any

import torch
from gpt import Training

THREADS = 2


def main() -> int:
    """Measure and print."""
    tool, config, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(THREADS)
    result = measure_pairs(config, steps) if tool == "pairs" else measure(tool, config, steps)
    # Kilobytes on Linux.
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({**result, "peak": peak * 1024}))
    return 0


def make_debugger(tool: str, config: str) -> Any:
    """The debugger of a tool, or None."""
    if tool == "none":
        return None
    if tool == "msprobe":
        from msprobe.pytorch import PrecisionDebugger
    else:
        from capture.pytorch import PrecisionDebugger
    return PrecisionDebugger(config_path=config)


def measure(tool: str, config: str, steps: int) -> dict[str, Any]:
    """Seconds of each step as the training loop sees it, of what is still to be written after the last, and of CPUs."""
    debugger = make_debugger(tool, config)
    training = Training(debugger)
    training.step()
    settle(debugger)
    times, losses, cpu = [], [], time.process_time()
    for _ in range(steps):
        began = time.perf_counter()
        losses.append(training.step())
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    settle(debugger)
    drain, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"steps": times, "drain": drain, "cpu": cpu / steps, "losses": losses}


def settle(debugger: Any) -> None:
    """Wait for what a debugger writes beside the training (msprobe writes everything before its ``step`` returns)."""
    if hasattr(debugger, "wait"):
        debugger.wait()


def measure_pairs(config: str, steps: int) -> dict[str, Any]:
    """Steps without a tool and with a debugger whose config wants none of these steps, in turn."""
    trainings = {"none": Training(None), "idle": Training(make_debugger("capture", config))}
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for turn in range(-3, steps):
        for name, training in trainings.items():
            began = time.perf_counter()
            training.step()
            if turn >= 0:
                times[name].append(time.perf_counter() - began)
    differences = [idle - none for idle, none in zip(times["idle"], times["none"], strict=True)]
    quarters = statistics.quantiles(differences, n=4)
    return {"none": statistics.median(times["none"]), "idle": statistics.median(times["idle"]), "quarters": quarters}


if __name__ == "__main__":
    sys.exit(main())
