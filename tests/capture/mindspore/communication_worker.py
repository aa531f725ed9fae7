"""One of two processes that talk to each other under capture: run by test_communication through msrun."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, mint
from mindspore.communication import get_rank, init

from capture.mindspore import PrecisionDebugger


def main() -> None:
    """Three collectives in a step, one of them waited for."""
    mindspore.set_device("CPU")
    init()
    folder = Path(sys.argv[1])
    (folder / f"connected{get_rank()}").touch()
    with contextlib.suppress(SystemError):  # numpy 2
        mint.add(Tensor([1.0]), 1)
    debugger = PrecisionDebugger(task="tensor", dump_path=folder / "dump", level="L1")
    mine = Tensor(np.arange(3, dtype=np.float32)) * (get_rank() + 1)
    debugger.start()
    mint.distributed.all_reduce(mine)
    waited = mine * 1
    handle = mint.distributed.all_reduce(waited, async_op=True)
    if handle is not None:
        handle.wait()
    mint.distributed.broadcast(mine * 1, src=1)
    assert waited.asnumpy().tolist() == [0, 6, 12]
    debugger.stop()
    debugger.step()
    debugger.close()
    np.save(folder / f"result{get_rank()}.npy", mine.asnumpy())


if __name__ == "__main__":
    main()
