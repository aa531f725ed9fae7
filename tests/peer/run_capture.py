"""Trains models of the suite under a debugger.

``PYTHONPATH=. python tests/peer/run_capture.py DEBUGGER OUT [RUN...]``: DEBUGGER has a ``PrecisionDebugger``,
``msprobe.pytorch`` or ``capture.pytorch``. A RUN is ``model-level-task-mode``, where mode is one of :data:`SECTIONS`,
further keys of the task's section; its dump goes to ``OUT/RUN``, what was printed to ``OUT/RUN.log``. Each run is a
forked child: debuggers, of which msprobe has one a process, start afresh, and torch is imported once. Prints the runs
that failed and exits with their number.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.peer.capture_models import SUITE

STEPS = 2
SECTIONS: dict[str, dict[str, object]] = {
    "statistics": {},
    "md5": {"summary_mode": "md5"},
    "forward": {"data_mode": ["forward"]},
    "backward": {"data_mode": ["backward"]},
    "input": {"data_mode": ["input"]},
    "output": {"data_mode": ["output"]},
    "parts": {"list": ["linear", "fc2"]},
    "expanded": {"list": ["Module.blocks.1.Block.forward.0"]},
    "interval": {"scope": ["Module.blocks.0.Block.forward.0", "Module.norm.LayerNorm.forward.0"]},
    "some": {"tensor_list": ["softmax"]},
}


def main() -> int:
    """Run all; the number that failed."""
    debugger, out, *runs = sys.argv[1:]
    torch.set_num_threads(1)
    module = importlib.import_module(debugger)
    failed = [run for run in runs if not succeeds(module, Path(out), run)]
    for run in failed:
        print(f"failed: {run}, see {Path(out) / run}.log")
    return min(len(failed), 100)


def succeeds(module: Any, out: Path, run: str) -> bool:
    """Whether a child that does the run exits with 0."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    code = 1
    try:
        log = os.open(f"{out / run}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        train(module, out, run)
        code = 0
    except BaseException:  # noqa: BLE001 (a child must not run on as its parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def train(module: Any, out: Path, run: str) -> None:
    """Two steps of a model of the suite, captured; parameters are updated outside of the capture."""
    torch.manual_seed(7)
    models, run_step = SUITE[run.split("-", maxsplit=1)[0]]()
    debugger = module.PrecisionDebugger(config_path=str(write_config(out, run)))
    parameters = [each for one in as_list(models) for each in one.parameters()]
    for step in range(STEPS):
        torch.manual_seed(20 + step)
        debugger.start(model=models)
        run_step(step)
        debugger.stop()
        debugger.step()
        update(parameters)
    if hasattr(debugger, "close"):
        debugger.close()


def write_config(out: Path, run: str) -> Path:
    """A config.json that both debuggers read."""
    _, level, task, mode = run.split("-")
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics", **SECTIONS[mode]}
    config: dict[str, object] = {"task": task, "dump_path": str(out / run), "rank": [], "step": [], "level": level}
    path = Path(f"{out / run}.config.json")
    path.write_text(json.dumps({**config, "async_dump": False, task: section}, indent=1))
    return path


def as_list(models: Any) -> list[torch.nn.Module]:
    """The models of a suite entry, one or several."""
    return list(models) if isinstance(models, list | tuple) else [models]


@torch.no_grad()
def update(parameters: list[torch.nn.Parameter]) -> None:
    """Other parameters for the next step. Not by their gradients, whose last bits msprobe changes."""
    for parameter in parameters:
        parameter *= 0.9
        parameter.grad = None


if __name__ == "__main__":
    sys.exit(main())
