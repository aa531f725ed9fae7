"""Reports on hooks and compiled, scripted, exported or sharded models (R050 to R053, R065): the cases as they are.

PyTorch without capture judges what a program computes, autograd and the values themselves what is on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import msformat
from capture.errors import CaptureError
from tests.judges import torch_is_before
from tests.reports.cases import everywhere

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.reports.capturing import BATCH, captured, debugging, node_of, train, two_layers  # noqa: E402


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of one process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_r050_sharded_gradients(tmp_path: Path) -> None:
    if torch_is_before("2.6"):
        pytest.skip("PyTorch before 2.6 has no public fully_shard")
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    model = two_layers()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    captured(tmp_path / "d", lambda: train(model), model)
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        unit = msformat.open(target)[0]
        for at in (0, 2):
            for name, parameter in model[at].named_parameters():
                found = unit[f"Module.{at}.Linear.parameters_grad"].parameters[name]
                assert torch.equal(found.to_torch(), parameter.grad.to_local())
                assert node_of(found)["dtensor"]["global_shape"] == list(parameter.shape)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("use_orig_params", [True, False])
def test_r050_gradients_under_the_older_wrapper(tmp_path: Path, use_orig_params: bool) -> None:
    if torch_is_before("2.2"):
        pytest.skip("PyTorch 2.1 shards on no CPU")
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(two_layers(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
    unit = captured(tmp_path / "d", lambda: train(model), model)
    found = {
        f"{key.removesuffix('.parameters_grad').rpartition('.')[0]}.{name}": gradient
        for key in unit
        if key.endswith(".parameters_grad")
        for name, gradient in unit[key].parameters.items()
    }
    wanted = {f"Module.{name}": parameter.grad for name, parameter in model.named_parameters()}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name].to_torch(), gradient) for name, gradient in wanted.items())


def test_r050_no_gradient_at_all_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = two_layers()

    def run() -> None:
        torch.autograd.grad(model(BATCH).sum(), tuple(model.parameters()))

    captured(tmp_path / "d", run, model)
    assert "0 of 4 parameter gradients" in caplog.text


def compiled(model: nn.Module) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> Any:
    torch._dynamo.reset()
    model.compile(backend="eager")
    return model


ignore_compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")


@ignore_compiler
@pytest.mark.parametrize("way", [compiled, compiled_in_place])
def test_r052_hooks_after_the_first_compiled_call(tmp_path: Path, way: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = two_layers()
    ready = way(model)
    wanted = ready(BATCH).detach()
    with debugging(tmp_path / "d") as debugger:
        debugger.start(ready)
        found = ready(BATCH)
        debugger.stop()
        debugger.step()
    assert torch.equal(found, wanted)
    assert "torch.compile" in caplog.text
    assert not (tmp_path / "d/step0").exists()
    assert "nothing was captured" in caplog.text


class Block(nn.Module):
    """A module that Dynamo compiles as one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.inner(x).relu()


@ignore_compiler
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r053_compilation_is_as_it_was(tmp_path: Path, level: str) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    model = nn.Sequential(nn.Linear(3, 4), Block())
    model[1].compile(backend=counter)
    with torch.no_grad():
        model(BATCH)
        frames = counter.frame_count
        captured(tmp_path / "d", lambda: model(BATCH), model, level=level)
        model(BATCH)
        assert counter.frame_count == frames == 1
    assert not torch._dynamo.config.disable


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", ["script", "trace", "export"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r065_modules_that_become_graphs(
    tmp_path: Path, way: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    if way == "export" and torch_is_before("2.2"):
        pytest.skip("PyTorch 2.1 has a prototype of torch.export, which takes no hooks")
    model = two_layers()
    wanted = model(BATCH).detach()
    graphs: list[Any] = []

    def run() -> None:
        model(BATCH)
        if way == "script":
            graphs.append(torch.jit.script(model))
        elif way == "trace":
            graphs.append(torch.jit.trace(model, (BATCH,)))
        else:
            graphs.append(torch.export.export(model, (BATCH,)).module())
        assert torch.equal(graphs[-1](BATCH), wanted)

    unit = captured(tmp_path / "d", run, model, level=level)
    assert "Module.2.Linear.forward.0" in unit
    assert "record" in caplog.text
    assert way[:5] in caplog.text or "jit" in caplog.text
    assert torch.equal(graphs[0](BATCH), wanted)
    if way != "export":
        with pytest.raises(CaptureError, match="Module"), debugging(tmp_path / "e") as debugger:
            debugger.start(graphs[0])
        caplog.clear()
        mixed = nn.Sequential(nn.Linear(3, 3), graphs[0])
        captured(tmp_path / "f", lambda: mixed(BATCH), mixed, level=level)
        assert "1: " in caplog.text
        assert "nothing inside it is recorded" in caplog.text
