"""Reports on msprobe itself (R001 to R018): their cases through PrecisionDebugger for PyTorch.

PyTorch without capture judges what a program computes, the values themselves what is on disk.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import msformat
from tests.judges import torch_is_before
from tests.reports.cases import BACKENDS, everywhere, run_python

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from tests.reports.capturing import (  # noqa: E402
    BATCH,
    captured,
    debugging,
    gradients,
    node_of,
    same_bits,
    train,
    two_layers,
    unfinished,
)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_r001_a_split_view_is_captured_and_then_overwritten(tmp_path: Path, backend: str, later: bool) -> None:
    whole = torch.randn(2, 40).bfloat16()
    q, _ = whole.split([32, 8], -1)
    part = whole[1]
    wanted = [value.clone() for value in (q, part, whole)]

    def run() -> None:
        torch.add(q, 1)
        torch.add(part, whole)
        whole.fill_(0)  # at once: the writer has not had it yet

    unit = captured(tmp_path / "d", run, level="L1", storage={"format": backend}, async_dump=later)
    assert [value.is_contiguous() for value in (q, part, whole)] == [False, True, True]
    found = [*unit["Torch.add.0.forward"].inputs[:1], *unit["Torch.add.1.forward"].inputs]
    assert all(torch.equal(one.to_torch(), value) for one, value in zip(found, wanted, strict=True))


def test_r002_saved_again_under_the_same_name(tmp_path: Path) -> None:
    with debugging(tmp_path / "d", level="debug") as debugger:
        for step in (0, 10):
            for number in range(3):
                debugger.save(torch.tensor([step + number]), "a")
            debugger.save(torch.tensor([step + 3]), "a.0")
            debugger.save(torch.tensor([step + 4]), "a.0.debug")
            debugger.step()
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        for step, unit in zip((0, 10), msformat.open(target), strict=True):
            values = {key: int(entry.value[0]) for key, entry in unit.items() if "_grad" not in key}
            assert values == {
                "a.0.debug": step,
                "a.1.debug": step + 1,
                "a.2.debug": step + 2,
                "a.0.0.debug": step + 3,
                "a.0.debug.0.debug": step + 4,
            }


def test_r004_parameter_gradients_are_counted_anew_each_step(tmp_path: Path) -> None:
    model = two_layers()
    with debugging(tmp_path / "d") as debugger:
        for _ in range(3):
            debugger.start(model)
            train(model)
            debugger.stop()
            debugger.step()
            model.zero_grad()
    units = list(msformat.open(tmp_path / "d"))
    assert len(units) == 3
    assert set(units[0]) == set(units[1]) == set(units[2])
    for unit in units:
        for key in ("Module.0.Linear.parameters_grad", "Module.2.Linear.parameters_grad"):
            assert {name: len(found) for name, found in unit[key].value.items()} == {"weight": 1, "bias": 1}
    names = [{tensor.data_name for tensor in unit.tensors()} for unit in units]
    assert names[0] == names[1] == names[2]


class Adding(torch.utils.data.Dataset[Any]):
    """Calls a function that capture replaces, in the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.add(torch.ones(2), index), os.getpid()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", BACKENDS)
def test_r005_forked_workers_record_nothing(tmp_path: Path, backend: str) -> None:
    workers: set[int] = set()

    def run() -> None:
        torch.mul(torch.ones(2), 2)
        for batch, pids in DataLoader(Adding(), num_workers=2, multiprocessing_context="fork"):
            assert batch.shape == (1, 2)
            workers.update(pids.tolist())
        torch.add(torch.ones(2), 41)

    unit = captured(tmp_path / "d", run, level="L1", storage={"format": backend})
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert [key for key in unit if ".add." in key] == ["Torch.add.0.forward"]
    assert unit["Torch.add.0.forward"].outputs[0].numpy().tolist() == [42, 42]
    assert unit.complete
    assert msformat.open(tmp_path / "d").problems == ()


FORGOTTEN_WORKS = """
import os, resource, sys
os.environ["OMP_NUM_THREADS"] = "1"
from datetime import timedelta
import torch
import torch.distributed as dist
from capture.pytorch import PrecisionDebugger

root = sys.argv[1]
rank = 0 if os.fork() else 1
minute = timedelta(seconds=60)
dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2, timeout=minute)
debugger = PrecisionDebugger(f"{root}/config.json")

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def step():
    debugger.start()
    works = []
    for _ in range(10):
        x = torch.ones(1 << 16)  # 256 KiB
        works.append(dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0))
        works.append(dist.all_reduce(torch.ones(1 << 16), async_op=True))
    debugger.stop()
    debugger.step()
    dist.barrier()  # gloo itself hangs where works are dropped before they are done

for _ in range(5):
    step()
debugger.wait()
before = rss()
for _ in range(25):
    step()
debugger.wait()
grown = rss() - before
assert grown < 40 << 20, grown  # the tensors are 125 MiB
debugger.close()
dist.destroy_process_group()
if rank == 0:
    os.wait()
    print("flat")
"""


def test_r006_works_that_nobody_waits_for_are_let_go(tmp_path: Path) -> None:
    text = '{"task": "statistics", "level": "L1", "dump_path": "%s", "storage": {"durability": "process"}}'
    (tmp_path / "config.json").write_text(text % (tmp_path / "d"))
    done = run_python(FORGOTTEN_WORKS, tmp_path)
    assert done.stdout == "flat\n", done.stderr
    unit = msformat.open(tmp_path / "d")[3, 0]
    assert {"Distributed.isend.0.forward", "Distributed.all_reduce.0.forward"} <= set(unit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_r008_statistics_are_no_operations_of_the_model(tmp_path: Path, dtype: torch.dtype) -> None:
    if torch_is_before("2.4"):
        pytest.skip("PyTorch before 2.4 has no selective checkpoints")
    seen: list[str] = []

    def policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> Any:
        seen.append(str(operation))
        must = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
        return must if "mm" in str(operation) else torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = two_layers()

        def forward(self, x: Any) -> Any:
            def contexts() -> Any:
                from torch.utils.checkpoint import create_selective_checkpoint_contexts

                return create_selective_checkpoint_contexts(policy)

            return checkpoint(self.inner, x, use_reentrant=False, context_fn=contexts)

    def run(model: nn.Module) -> tuple[Any, list[str]]:
        seen.clear()
        model.zero_grad()
        train(model, BATCH.to(dtype, copy=True).requires_grad_())
        return gradients(model), list(seen)

    # Statistics of float32 use no operation of torch: those of other types do.
    model = Block().to(dtype)
    plain = run(model)
    results: list[Any] = []
    unit = captured(
        tmp_path / "d", lambda: results.append(run(model)), model, level="mix", task="statistics", summary_mode="md5"
    )
    ((found, operations),) = results
    assert same_bits(found, plain[0])
    assert operations == plain[1]
    assert unit["Module.inner.0.Linear.forward.0"].outputs[0].stats.max is not None


def test_r009_a_recompute_that_ends_early_leaves_the_tree_right(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.block = two_layers()
            self.last = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            inner = checkpoint(
                lambda y: checkpoint(self.block, y, use_reentrant=False), self.first(x), use_reentrant=False
            )
            return self.last(inner)

    model = Net()

    def run() -> None:
        train(model)
        model.first(BATCH)

    unit = captured(tmp_path / "d", run, model, level="mix")
    recomputed = [key for key in unit if unit[key].is_recompute]
    assert {"Module.block.0.Linear.forward.1", "Module.block.1.ReLU.forward.1"} <= set(recomputed)
    assert not any(unit[key].is_recompute for key in unit if key.endswith(".forward.0"))
    parents = {
        "Module.first.Linear.forward.0": None,
        "Module.block.Sequential.forward.0": None,
        "Module.block.0.Linear.forward.0": "Module.block.Sequential.forward.0",
        "Module.block.0.Linear.forward.1": "Module.block.Sequential.forward.1",
        "Module.last.Linear.forward.0": None,
        "Module.block.1.ReLU.backward.0": "Module.block.Sequential.backward.0",
        "Module.first.Linear.backward.0": None,
        "Module.first.Linear.forward.1": None,
    }
    tree = {key: unit.parent(key) for key in parents}
    # The second forward runs inside of the backward pass, which may be that of a module.
    assert tree == parents
    assert unit.problems == ()
    last = [key for key in unit if key.startswith("Functional.linear.") and key.endswith("forward")][-1]
    assert unit.parent(last) == "Module.first.Linear.forward.1"


def test_r010_wrappers_without_values(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = two_layers()
    parameters = dict(model.named_parameters())
    meta = two_layers().to("meta")
    results: list[Any] = []

    def run() -> None:
        results.append(torch.vmap(torch.vmap(model))(torch.ones(2, 2, 3)))
        results.append(torch.func.grad(lambda p: torch.func.functional_call(model, p, BATCH).sum())(parameters))
        with FakeTensorMode():
            results.append(nn.Linear(3, 2)(torch.ones(5, 3)))
        results.append(meta(torch.ones(4, 3, device="meta")))

    unit = captured(tmp_path / "d", run, [model, meta], level="mix")
    assert results[0].shape == (2, 2, 2)
    assert set(results[1]) == set(parameters)
    linear = {key: unit[key].outputs[0] for key in unit if ".Linear.forward." in key or "Functional.linear" in key}
    reasons = {unfinished(tensor) for tensor in linear.values()}
    assert all(reasons), reasons
    assert {"meta tensor: it has no values", "fake tensor: it has no values"} <= reasons
    assert any("torch.func" in str(reason) for reason in reasons)
    inside_vmap, in_grad, fake, on_meta = {(4,), (2,)}, {(2, 4), (2, 2)}, {(5, 2)}, {(4, 4), (4, 2)}
    assert {tensor.shape for tensor in linear.values()} == inside_vmap | in_grad | fake | on_meta
    assert {tensor.dtype_name for tensor in linear.values()} == {"torch.float32"}


def test_r012_the_local_shard_of_a_dtensor(tmp_path: Path) -> None:
    import torch.distributed as dist

    if torch_is_before("2.5"):
        pytest.skip("PyTorch before 2.5 has no public torch.distributed.tensor")
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        model = nn.Sequential(nn.Linear(3, 4, bias=False))
        plain = model[0].weight.detach().clone()
        model[0].weight = nn.Parameter(distribute_tensor(plain, mesh, [Shard(0)]))
        batch = distribute_tensor(BATCH, mesh, [torch.distributed.tensor.Replicate()])
        captured(tmp_path / "d", lambda: train(model, batch), model)
    finally:
        dist.destroy_process_group()
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        unit = msformat.open(target)[0]
        weight = unit["Module.0.Linear.forward.0"].parameters["weight"]
        assert torch.equal(weight.to_torch(), plain)
        found = node_of(weight)["dtensor"]
        assert (found["global_shape"], found["placements"]) == ([4, 3], [str(Shard(0))])
        assert (found["mesh"]["ranks"], found["mesh"]["dim_names"]) == ([0], ["tp"])
        gradient = unit["Module.0.Linear.parameters_grad"].parameters["weight"]
        assert torch.equal(gradient.to_torch(), model[0].weight.grad.to_local())


NARROW = [
    name for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2") if hasattr(torch, name)
]


def test_r013_narrow_floats_are_captured(tmp_path: Path) -> None:
    values = {name: torch.arange(1, 9, dtype=torch.uint8).view(getattr(torch, name)) for name in NARROW}
    ones = torch.ones(8).to(torch.float8_e4m3fn)
    with debugging(tmp_path / "d", level="debug") as debugger:
        for name, value in values.items():
            debugger.save(value, name)
        debugger.save(ones, "ones")
        debugger.step()
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        unit = msformat.open(target)[0]
        for name in NARROW:
            found = unit[f"{name}.0.debug"].value
            assert found.dtype_name == f"torch.{name}"
            assert found.bits().tobytes() == bytes(range(1, 9))
        assert unit["ones.0.debug"].value.stats.max == 1.0


# Not in PyTorch 2.1.
UNSIGNED = [name for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]


def odd_operations() -> dict[str, Any]:
    c = torch.tensor([1 + 2j, 3 - 1j])
    y = torch.ones(2, 2)
    return {
        "complex32": lambda: torch.add(torch.ones(2, dtype=torch.complex32), 1),
        "conjugated": lambda: torch.mul(c.conj(), 2),
        "negative bit": lambda: torch.mul(c.conj().imag, 2),
        "sparse": lambda: torch.matmul(torch.eye(2).to_sparse(), y),
        **{name: lambda name=name: torch.add(*[torch.ones(2, dtype=getattr(torch, name))] * 2) for name in UNSIGNED},
    }


def outcome(operation: Any) -> Any:
    """What PyTorch makes of it: a result, or its own refusal."""
    try:
        found = operation()
    except (RuntimeError, NotImplementedError) as error:
        return type(error)
    return found.dtype, found.to_dense().tolist()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_r014_odd_tensors_never_raise(tmp_path: Path, task: str, caplog: pytest.LogCaptureFixture) -> None:
    operations = odd_operations()
    plain = {name: outcome(operation) for name, operation in operations.items()}
    found: dict[str, Any] = {}

    def run() -> None:
        found.update((name, outcome(operation)) for name, operation in operations.items())

    unit = captured(tmp_path / "d", run, level="L1", task=task, summary_mode="md5")
    assert found == plain
    inputs = {tensor.dtype_name for key in unit for tensor in unit[key].tensors}
    assert {"torch.complex32", "torch.complex64", *(f"torch.{name}" for name in UNSIGNED)} <= inputs
    conjugated = unit["Torch.mul.0.forward"].inputs[0]
    assert conjugated.digest is not None
    if task == "tensor":
        assert conjugated.numpy().tolist() == [1 - 2j, 3 + 1j]
        assert unit["Torch.mul.1.forward"].inputs[0].numpy().tolist() == [-2, 1]
    texts = [record.message.split(": ", 2)[-1] for record in caplog.records]
    assert len(texts) == len(set(texts))


def test_r016_scalars_of_numpy_as_arguments(tmp_path: Path) -> None:
    import numpy as np

    class Taking(nn.Module):
        def forward(self, x: Any, **_more: Any) -> Any:
            return x

    model = nn.Sequential(Taking())

    def run() -> None:
        model[0](BATCH, scale=np.float32(1.5), size=torch.Size([np.int64(2)]), flag=np.bool_(True))

    captured(tmp_path / "d", run, model)
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        kwargs = msformat.open(target)[0]["Module.0.Taking.forward.0"].kwargs
        assert (kwargs["scale"].value, kwargs["flag"].value) == (1.5, True)
        assert "2" in str(kwargs["size"])


def test_r017_each_thread_has_names_and_parents_of_its_own(tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh())) for _ in range(4)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(200):
                with torch.no_grad():
                    models[number](torch.ones(number + 1, 3))
        except BaseException as error:  # noqa: BLE001 (shown below)
            failures.append(error)

    def run() -> None:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    unit = captured(tmp_path / "d", run, models, level="mix", task="statistics")
    assert failures == []
    tanh = [key for key in unit if key.startswith("Torch.tanh.")]
    assert sorted(int(key.split(".")[2]) for key in tanh) == list(range(800))
    for key in tanh:
        number = unit[key].inputs[0].shape[0] - 1
        parent = unit.parent(key)
        assert str(parent).startswith(f"Module.{number}.0.1.Tanh.forward.")
        assert str(unit.parent(str(parent))).startswith(f"Module.{number}.0.Sequential.forward.")
    for number in range(4):
        calls = [key for key in unit if key.startswith(f"Module.{number}.0.0.Linear.forward.")]
        assert len(calls) == 200


def test_r018_deep_and_endless_values_are_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(2)
    endless: list[Any] = [x]
    endless.append(endless)
    deep: Any = x
    for _ in range(60):
        deep = [deep]
    bottomless: Any = x
    for _ in range(100_000):
        bottomless = [bottomless]
    with debugging(tmp_path / "d", level="debug") as debugger:
        debugger.save(endless, "endless")
        debugger.save(deep, "deep")
        debugger.save(bottomless, "bottomless")
        debugger.save(x, "after")
        debugger.step()
    while isinstance(bottomless, list):
        bottomless = bottomless.pop()  # bit by bit: PyTest would walk it
    unit = msformat.open(tmp_path / "d")[0]
    first, _ = unit["endless.0.debug"].value
    assert first.numpy().tolist() == [1, 1]
    assert "contains itself" in str(unit["endless.0.debug"].json()[1])
    assert "contains itself" in caplog.text
    # Each kind is said once on the log, and the dump lists every place.
    said = bytes(unit.document("dump_error_info.log") or b"").decode()
    assert [said.count(f"cut short: {name}.0.debug") for name in ("endless", "deep", "bottomless")] == [1, 1, 1]
    assert unit["after.0.debug"].value.numpy().tolist() == [1, 1]
    assert all("more than 50 deep" in str(unit[f"{name}.0.debug"].json()) for name in ("deep", "bottomless"))
