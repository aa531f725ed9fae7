"""What each of two gloo processes does for test_distributed.py, run as a module with RANK FILE.

It prints one JSON document with the outcome of every case.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import all_reduce as early_all_reduce
from torch.distributed import irecv as early_irecv
from torch.distributed import isend as early_isend

from tests.capture.pytorch.recording import RecordingFramework, RecordingObserver, installed
from tests.judges import torch_is_before

# Gloo of PyTorch 2.1 cannot.
GATHERS_FLAT = not torch_is_before("2.2")


def _tensors(value: Any) -> Any:
    """Tensors of an event as lists; anything else by its type."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_tensors(item) for item in value]
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    return type(value).__name__


def _report(observer: RecordingObserver, **more: Any) -> dict[str, Any]:
    return {
        "keys": observer.keys, "inputs": observer.inputs, "outputs": observer.outputs,
        "problems": observer.problems, "failed": observer.failed, **more,
    }  # fmt: skip


def collectives(rank: int) -> dict[str, Any]:
    """Every collective that waits by itself."""
    observer, framework = RecordingObserver(_tensors), RecordingFramework()
    x = torch.full((2,), rank + 1.0)
    with installed(observer, framework):
        dist.all_reduce(x, op=dist.ReduceOp.SUM)
        dist.broadcast(x, src=0)
        gathered = [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(gathered, x)
        if GATHERS_FLAT:
            dist.all_gather_into_tensor(output_tensor=torch.zeros(4), input_tensor=x)
        dist.distributed_c10d.all_reduce(x)
    return _report(observer, x=x.tolist())


def asynchronous(rank: int) -> dict[str, Any]:
    """The output of an asynchronous call is what is there after wait."""
    observer = RecordingObserver(_tensors)
    x = torch.full((2,), rank + 1.0)
    with installed(observer):
        work = dist.all_reduce(x, async_op=True)
        early = list(observer.outputs)
        work.wait()
    return _report(observer, early=early, same=x.tolist())


def point_to_point(rank: int) -> dict[str, Any]:
    """Sends and receives, one by one and in a batch, with functions bound before."""
    observer = RecordingObserver(_tensors)
    other, mine, theirs = 1 - rank, torch.full((2,), rank + 1.0), torch.zeros(2)
    with installed(observer):
        if rank == 0:
            dist.send(mine, other)
            dist.recv(theirs, other)
        else:
            dist.recv(theirs, other)
            dist.send(mine, other)
        works = [dist.isend(mine, other), dist.irecv(tensor=theirs.zero_(), src=other)]
        for work in works:
            work.wait()
        batch = [dist.P2POp(early_isend, mine, other), dist.P2POp(dist.irecv, theirs.zero_(), other)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    return _report(observer, theirs=theirs.tolist())


def never_waited(rank: int) -> dict[str, Any]:
    """Whoever is not waited for is let go of at the end of the step, with its tensors."""
    observer = RecordingObserver(_tensors)
    x = torch.full((2,), rank + 1.0)
    alive = weakref.ref(x)
    with installed(observer) as hooks:
        work = dist.all_reduce(x, async_op=True)
        hooks.drop_pending()
        work.wait()
        del x, work
        deadline = time.monotonic() + 10
        while alive() is not None and time.monotonic() < deadline:
            time.sleep(0.01)  # gloo's own thread may hold it for a moment
        gone = alive() is None
        dist.barrier()
    return _report(observer, gone=gone)


def early(rank: int) -> dict[str, Any]:
    """Collectives bound early work; of these function modes are told, so they are recorded."""
    observer = RecordingObserver(_tensors)
    x = torch.full((2,), rank + 1.0)
    before = dist.all_reduce, dist.Work.wait if hasattr(dist, "Work") else None
    with installed(observer):
        early_all_reduce(x)
        work = early_isend(x, 1) if rank == 0 else early_irecv(x, 0)
        work.wait()
    return _report(observer, x=x.tolist(), put_back=before[0] is dist.all_reduce)


def data_parallel(rank: int) -> dict[str, Any]:
    """DDP gives the same gradients, bit for bit."""

    def train() -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        model(torch.arange(6.0).reshape(2, 3) + rank).square().sum().backward()
        return [parameter.grad.tolist() for parameter in model.parameters() if parameter.grad is not None]

    plain, observer = train(), RecordingObserver(_tensors)
    with installed(observer):
        hooked = train()
    return {"keys": observer.keys, "equal": plain == hooked, "problems": observer.problems}


def main() -> None:
    """Run one case as one of two processes."""
    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    result = {}
    for case in (collectives, asynchronous, point_to_point, never_waited, early, data_parallel):
        result[case.__name__] = case(rank)
        dist.barrier()
    dist.destroy_process_group()
    print("RESULT" + json.dumps(result))


if __name__ == "__main__":
    main()
