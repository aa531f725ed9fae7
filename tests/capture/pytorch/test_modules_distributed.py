"""Module hooks under DDP and FSDP2, two ranks over gloo. A training without hooks is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

from tests.capture.pytorch.watching import Watching, bits_equal, hooked, linear, rows, weigh
from tests.judges import torch_is_before

RANKS, STEPS = 2, 2
# There was no public fully_shard before.
KINDS = ("ddp",) if torch_is_before("2.6") else ("ddp", "fsdp")


def _model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(linear(), nn.ReLU(), nn.Sequential(linear(), nn.Tanh()), linear())
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _train(kind: str, rank: int, *, with_hooks: bool) -> tuple[Watching, list[list[Any]]]:
    model, watching, gradients = _model(kind), Watching(), []
    for step in range(STEPS):
        hooks = hooked(model, watching)[1] if with_hooks else None
        torch.manual_seed(10 * step + rank)
        weigh(model(rows())).backward()
        if hooks is not None:
            hooks.finish()
            hooks.remove()
        gradients.append([_local(parameter.grad).clone() for parameter in model.parameters()])
        model.zero_grad()
    return watching, gradients


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _worker(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    try:
        for kind in KINDS:  # in one process: starting one costs more than all the rest
            watching, gradients = _train(kind, rank, with_hooks=True)
            _, without = _train(kind, rank, with_hooks=False)
            for with_, right in zip(gradients, without, strict=True):
                assert all(map(bits_equal, with_, right))
            _check(kind, watching, gradients)
    finally:
        distributed.destroy_process_group()


def _check(kind: str, watching: Watching, gradients: list[list[Any]]) -> None:
    assert not watching.problems
    assert not watching.local.stack
    base, block = ("Module.module.", "Sequential") if kind == "ddp" else ("Module.", "FSDPSequential")
    outer = ["Module.module.Sequential"] if kind == "ddp" else []  # no input of it has a gradient: it comes first
    calls = ["3.Linear", "2.1.Tanh", "2.0.Linear", f"2.{block}", "1.ReLU", "0.Linear"]
    once = outer + [base + call for call in calls]
    assert watching.keys == [f"{prefix}.backward.{step}" for step in range(STEPS) for prefix in once]
    assert len(watching.parameters) == STEPS * 6
    if kind == "fsdp":
        recorded = {(prefix, name): _local(gradient) for prefix, name, gradient in watching.parameters}
        order = [(f"Module.{path}.Linear", name) for path in ("0", "2.0", "3") for name in ("weight", "bias")]
        assert all(bits_equal(recorded[key], right) for key, right in zip(order, gradients[-1], strict=True))


def test_two_ranks(tmp_path: Path) -> None:
    multiprocessing.spawn(_worker, (str(tmp_path / "meeting"),), nprocs=RANKS)  # type: ignore[no-untyped-call]
