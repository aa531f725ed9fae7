"""Forks trainings that end in some way in the middle of a captured step. A process of its own: torch is imported once.

Reads one JSON request a line, ``{"root": …, "backend": …, "how": …}``, and answers ``{"status": …}``: the exit code, or
minus the signal. The fork ends as Python does, exit handlers and all.

========  ==============================================================================
how       in the second step
========  ==============================================================================
term      SIGTERM in a forward, which nobody handles
exit      SIGTERM in a forward, whose handler is ``sys.exit(143)``
int       SIGINT in a forward, as Ctrl-C has it
raise     an exception in a forward
backward  an exception in a backward
========  ==============================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from capture.pytorch import PrecisionDebugger
from msformat import StoreError, open_store

# Layers, and where it ends. A death that leaves no time for a word shows what was committed: enough of it.
LAYERS = {"term": (100, 96)}
FEW = (6, 4)


class End(torch.nn.Module):
    """The layer where it ends."""

    def __init__(self, how: str, debugger: PrecisionDebugger) -> None:
        super().__init__()
        self.how, self.debugger, self.calls = how, debugger, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls < 2:
            return x
        if self.how == "backward":
            x.register_hook(lambda _: self._fail())
            return x
        if self.how == "raise":
            self._fail()
        self.debugger.wait()
        os.kill(os.getpid(), signal.SIGINT if self.how == "int" else signal.SIGTERM)
        return x

    def _fail(self) -> None:
        raise ArithmeticError("the loss is NaN")


def model(how: str) -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS.get(how, FEW)[0])))


def data(how: str) -> torch.Tensor:
    """Where there is time for a word, tensors are large enough for a store's threads, which Python ends before."""
    rows = 3 if how == "term" else 2100
    return torch.linspace(-1, 1, 8 * rows).reshape(rows, 8)


def train(root: str, backend: str, how: str) -> None:
    """Two steps, of which the second does not come to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if how == "exit":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = Path(root) / "config.json"
    config.write_text(f'{{"task": "tensor", "level": "L0", "storage": {{"format": "{backend}"}}}}')
    debugger = PrecisionDebugger(str(config), dump_path=str(Path(root) / "dump"))
    net = model(how)
    net.insert(LAYERS.get(how, FEW)[1], End(how, debugger))
    for _ in range(2):
        debugger.start(model=net)
        net(data(how)).sum().backward()
        debugger.stop()
        debugger.step()


def main() -> None:
    """Serve until standard input ends."""
    torch.set_num_threads(1)
    for backend in ("hdf5", "zarr"):
        with contextlib.suppress(StoreError):
            open_store(backend, "/nowhere").close()  # imports what it needs
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            train(**request)
            return
        print(json.dumps({"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}), flush=True)


if __name__ == "__main__":
    main()
