"""A program in a static graph at level L2, in a process of its own: ``python -m … {JSON}``.

It prints, as JSON, the inputs and outputs of every call that was made, by step, as the program saw them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # built for numpy 1.26, and says so
    import mindspore
    from mindspore import Tensor, nn, ops

from capture.mindspore import PrecisionDebugger


class Net(nn.Cell):
    """Three kernels, one of which has a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = mindspore.Parameter(Tensor(np.arange(6, dtype=np.float32).reshape(3, 2) - 2), name="w")
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        """``relu(x @ w - 3)``."""
        return self.relu(ops.matmul(x, self.w) - 3.0)


@mindspore.jit
def compiled(x: Any) -> Any:
    """A graph of its own in PyNative mode."""
    return ops.relu(x)


def value(number: float) -> np.ndarray:
    """An input that no other call has."""
    return np.linspace(-number, number + 1, 6, dtype=np.float32).reshape(2, 3)


def main() -> None:
    """Run as the arguments say."""
    wanted = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="LOG %(message)s")
    with contextlib.suppress(SystemError):  # with numpy 2 the first operation with a Python number fails
        mindspore.mint.add(Tensor([1.0]), 1)
    mindspore.set_context(mode=mindspore.GRAPH_MODE if wanted["mode"] == "graph" else mindspore.PYNATIVE_MODE)
    net = Net() if wanted["mode"] == "graph" else compiled
    if wanted.get("early"):
        net(Tensor(value(1000)))
    debugger = PrecisionDebugger(wanted["config"])
    if "first" in wanted:
        debugger.set_init_step(wanted["first"])
    calls: list[list[Any]] = []
    for step in range(wanted["steps"]):
        if step:
            net(Tensor(value(100 + step)))  # outside of start and stop
        debugger.start()
        for _ in range(wanted.get("calls", 1)):
            given = value(step)
            made = net(Tensor(given)).asnumpy()
            calls.append([step + wanted.get("first", 0), given.tolist(), made.tolist()])
        debugger.stop()
        net(Tensor(value(200 + step)))
        debugger.step()
    during = os.environ.get("MINDSPORE_DUMP_CONFIG")
    debugger.close()
    after = os.environ.get("MINDSPORE_DUMP_CONFIG")
    print("RESULT " + json.dumps({"calls": calls, "during": during, "after": after}))


if __name__ == "__main__":
    main()
