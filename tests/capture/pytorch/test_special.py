"""Tensors that are no plain memory: never an exception, recorded or with the reason why not; nothing is disturbed."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from capture.framework import Framework, Wanted
from capture.pytorch.tensors import TorchFramework
from capture.record import EntryRecord, Recorder
from msformat.check import check_entry
from tests.capture.pytorch.describing import CHECKSUMS, EVERY_WAY, STATISTICS, TENSORS, describe, statistics
from tests.judges import torch_is_before

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:.*(beta state|prototype|deprecated|invariant).*"),
]
KEYS = ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"]


class Mine(torch.Tensor):
    """A subclass that is told of every operation, attributes included, and does not like it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was seen")


class Dispatched(torch.Tensor):
    """A subclass with memory of its own and a ``__torch_dispatch__``."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, inner)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was seen")


class Wrapper(torch.Tensor):
    """A subclass without memory: its values are elsewhere."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was seen")


def released() -> torch.Tensor:
    tensor = torch.randn(8)
    tensor.untyped_storage().resize_(0)
    return tensor


def partly_released() -> torch.Tensor:
    tensor = torch.randn(1000)
    tensor.untyped_storage().resize_(16)
    return tensor


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(2, 3)


def bits(name: str) -> torch.Tensor:
    return torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))


# What older releases cannot make.
LACKING = {
    name for name, place in (("Buffer", torch.nn), ("uint16", torch), ("jagged", torch)) if not hasattr(place, name)
}  # fmt: skip
RECORDED: dict[str, Callable[[], torch.Tensor]] = {
    "parameter": lambda: torch.nn.Parameter(torch.randn(2, 3)),
    "Buffer": lambda: torch.nn.Buffer(torch.randn(2, 3)),
    "function subclass": lambda: torch.randn(2, 3).as_subclass(Mine),
    "dispatch subclass": lambda: Dispatched(torch.randn(2, 3)),
    "inference": lambda: torch.inference_mode()(torch.randn)(2, 3),
    "requires grad": lambda: torch.randn(2, 3, requires_grad=True) * 2,
    "conj": lambda: torch.randn(2, 3, dtype=torch.complex64).conj(),
    "neg": lambda: torch.randn(2, 3, dtype=torch.complex64).conj().imag,
    "zero": lambda: torch._efficientzerotensor(3),  # type: ignore[attr-defined]
    "complex32": lambda: torch.randn(3, dtype=torch.complex64).to(torch.complex32),
    "uint16": lambda: torch.tensor([1, 2], dtype=torch.uint16),
    "float8": lambda: torch.randn(3).to(torch.float8_e4m3fn),
    "mkldnn": lambda: torch.randn(2, 3).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.qint8),
    "quantized channels": lambda: torch.quantize_per_channel(
        torch.randn(2, 4), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged),
    "huge stride": lambda: torch.empty(1).as_strided((3, 4), (0, 0)),
    "shared": lambda: torch.randn(3).share_memory_(),
}
RECORDED = {name: make for name, make in RECORDED.items() if name not in LACKING}
SPARSE: dict[str, Callable[[], torch.Tensor]] = {
    "coo": lambda: torch.eye(3).to_sparse(),
    "uncoalesced": lambda: torch.sparse_coo_tensor([[1, 1]], [2.0, -3.0], (4,)),
    "hybrid": lambda: torch.eye(3).to_sparse(1),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "csc": lambda: torch.eye(3).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bool": lambda: torch.eye(3).bool().to_sparse(),
    "no values": lambda: torch.zeros(3).to_sparse(),
    "nan": lambda: torch.tensor([0.0, float("nan"), 1.0]).to_sparse(),
}
WITHOUT_VALUES: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.empty(2, 3, device="meta"),
    "meta parameter": lambda: torch.nn.Parameter(torch.empty(2, 3, device="meta")),
    "fake": fake,
    "wrapper": lambda: Wrapper(torch.randn(2, 3)),
    "released": released,
    "partly released": partly_released,
    "uninitialised": torch.nn.parameter.UninitializedParameter,
}
# Their bits are kept, but mean no number.
PACKED = [
    name for name in ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2") if hasattr(torch, name)
]
EVERYTHING = RECORDED | SPARSE | WITHOUT_VALUES | {name: (lambda name=name: bits(name)) for name in PACKED}


@pytest.mark.parametrize("wanted", EVERY_WAY)
@pytest.mark.parametrize("name", EVERYTHING)
def test_never_an_exception_and_always_a_record(name: str, wanted: Wanted) -> None:
    tensor = EVERYTHING[name]()
    node, host, pending = describe(tensor, wanted)
    assert pending is None
    check_entry("x.0.debug", node, "test")
    if name == "uninitialised":
        assert node == {"type": "torch.Tensor", "value": None, "not_captured": node["not_captured"]}
        return
    assert [key for key in node if key in KEYS] == KEYS
    assert node["type"] == "torch.Tensor"
    if name in WITHOUT_VALUES:
        assert node["not_captured"]
        assert host is None
    elif not (name in SPARSE and wanted != STATISTICS):
        assert "not_captured" not in node
        assert (host is not None) == wanted.data


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in ("nested", "jagged", "quantized channels")])
def test_values_are_those_of_the_plain_tensor(name: str) -> None:
    torch.manual_seed(0)
    tensor = RECORDED[name]()
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        plain = tensor.to_dense() if tensor.is_mkldnn else tensor.as_subclass(torch.Tensor).detach()
        plain = plain.dequantize() if plain.is_quantized else plain
        plain = plain.resolve_conj().resolve_neg().clone()
    assert describe(tensor).node["Max"] == pytest.approx(statistics(plain)[0])
    assert describe(tensor).node["shape"] == list(plain.shape)
    if not plain.dtype.is_complex and name != "quantized":
        host = describe(tensor, TENSORS).host
        assert host is not None
        assert host.bits is not None
        assert host.bits.tobytes() == plain.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_statistics_include_the_zeros(name: str) -> None:
    tensor = SPARSE[name]()
    dense = statistics(tensor.to_dense())
    node = describe(tensor).node
    np.testing.assert_equal([node[key] for key in KEYS[3:7]], list(dense))
    assert node["shape"] == list(tensor.shape)
    assert node["nnz"] == tensor._nnz()
    assert "not stored" in describe(tensor, TENSORS).node["not_captured"]
    assert "md5" not in describe(tensor, CHECKSUMS).node


def test_quantised_values_and_bits() -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([-1.0, 0.5, 2.0]), 0.5, 3, torch.qint8)
    node, host, _ = describe(tensor, TENSORS)
    assert (node["Max"], node["Min"], node["Mean"]) == (2.0, -1.0, 0.5)
    assert node["quantization"] == {"scheme": "torch.per_tensor_affine", "scale": 0.5, "zero_point": 3}
    assert host is not None
    assert host.bits is not None
    assert host.bits.view(np.int8).tolist() == tensor.int_repr().tolist()


def test_nested_tensors_keep_their_parts() -> None:
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    if "jagged" in LACKING:
        pytest.skip("this PyTorch has no layouts of nested tensors")
    for layout in (torch.strided, torch.jagged):
        node, host, _ = describe(torch.nested.nested_tensor(parts, layout=layout), TENSORS)
        assert node["Max"] == max(part.max().item() for part in parts)
        assert host is not None
        assert host.bits is not None
        assert host.bits.reshape(-1).tolist() == torch.cat(parts).reshape(-1).tolist()


def test_requires_grad_is_of_the_outer_tensor() -> None:
    assert describe(torch.nn.Parameter(torch.ones(2))).node["requires_grad"] is True
    with torch.no_grad():
        assert describe(torch.nn.Parameter(torch.ones(2))).node["requires_grad"] is True
    assert describe(torch.ones(2, requires_grad=True).as_subclass(Mine)).node["requires_grad"] is True


def test_extras_come_last_and_subclasses_are_named() -> None:
    node = describe(torch.ones(2).as_subclass(Mine), CHECKSUMS).node
    assert list(node) == [*KEYS, "md5", "class"]
    assert node["class"] == f"{__name__}.Mine"


@pytest.mark.parametrize("wanted", EVERY_WAY)
def test_a_lost_device_is_a_reason(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(tensor: torch.Tensor) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    framework = TorchFramework()
    framework.element_type(torch.float32).reduce = lost
    node, host, _ = describe(torch.randn(5), wanted, framework)
    assert "device-side assert" in node["not_captured"]
    assert node["shape"] == [5]
    assert host is None


# --- transforms, modes, subclasses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", EVERY_WAY)
@pytest.mark.parametrize("transform", ["vmap", "vmap vmap", "grad", "jvp", "functionalize"])
def test_inside_transforms(transform: str, wanted: Wanted) -> None:
    framework, nodes, outside = TorchFramework(), [], torch.full((3,), 7.0)

    def model(x: torch.Tensor) -> torch.Tensor:
        nodes.append(describe(x, wanted, framework).node)
        nodes.append(describe(outside, wanted, framework).node)
        return (x * 2).sum()

    x = torch.randn(4, 3, 2)
    plain = {
        "vmap": lambda: torch.func.vmap(model)(x),
        "vmap vmap": lambda: torch.func.vmap(torch.func.vmap(model))(x),
        "grad": lambda: torch.func.grad(model)(x),
        "jvp": lambda: torch.func.jvp(model, (x,), (x,)),
        "functionalize": lambda: torch.func.functionalize(model)(x),
    }
    result = plain[transform]()
    inside, other = nodes[0], nodes[1]
    assert "transform" in inside["not_captured"]
    assert inside["shape"] == {"vmap": [3, 2], "vmap vmap": [2]}.get(transform, [4, 3, 2])
    assert other["Max"] == 7.0
    if transform == "grad":
        torch.testing.assert_close(result, torch.full_like(x, 2.0))


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class CountingFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("wanted", EVERY_WAY)
@pytest.mark.parametrize("mode", [Counting, CountingFunctions])
@pytest.mark.parametrize(
    "name", sorted({"parameter", "conj", "uint16", "coo", "quantized", "nested", "float8"} - LACKING)
)
def test_modes_of_the_user_see_nothing(name: str, mode: Any, wanted: Wanted) -> None:
    tensor, framework = EVERYTHING[name](), TorchFramework()
    with mode() as active:
        describe(tensor, wanted, framework)
        describe(tensor, wanted, framework)
        assert active.seen == []
        torch.ones(1).add(1)
        assert active.seen


@pytest.mark.parametrize("wanted", EVERY_WAY)
def test_a_fake_mode_around_does_not_hide_real_values(wanted: Wanted) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensor = torch.tensor([[1.0, 4.0], [2.0, 3.0]]).t()
    with FakeTensorMode():
        assert describe(tensor, wanted).node["Max"] == 4.0


@pytest.fixture
def grad_mode() -> Iterator[None]:
    enabled = torch.is_grad_enabled()
    yield
    assert torch.is_grad_enabled() == enabled


def fail(*, while_grad_is: bool) -> None:
    assert torch.is_grad_enabled() == while_grad_is
    raise ZeroDivisionError


@pytest.mark.usefixtures("grad_mode")
@pytest.mark.parametrize("enabled", [True, False])
def test_quiet_restores_what_was(enabled: bool) -> None:
    with torch.set_grad_enabled(enabled), Counting(), CountingFunctions():
        levels = (
            torch._C._len_torch_dispatch_stack(),  # type: ignore[attr-defined]
            torch._C._len_torch_function_stack(),
        )
        with pytest.raises(ZeroDivisionError), TorchFramework().quiet():
            fail(while_grad_is=False)
        assert torch.is_grad_enabled() == enabled
        assert levels == (
            torch._C._len_torch_dispatch_stack(),  # type: ignore[attr-defined]
            torch._C._len_torch_function_stack(),
        )


@pytest.mark.parametrize("wanted", EVERY_WAY)
@pytest.mark.parametrize("name", EVERYTHING)
def test_random_state_and_defaults_are_left(name: str, wanted: Wanted) -> None:
    tensor = EVERYTHING[name]()
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):  # what capture allocates must name its device
            node = describe(tensor, wanted).node
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_equal(node, describe(tensor, wanted).node)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    if dtype == torch.float16 and torch_is_before("2.2"):
        pytest.skip("this PyTorch has no autocast to float16 on a CPU")
    tensor = torch.randn(3000) * 100
    expected = statistics(tensor)
    with torch.autocast("cpu", dtype=dtype):
        assert statistics(tensor) == expected
        assert statistics(tensor.to(torch.complex64))[0] == pytest.approx(max(map(abs, expected[:2])))


@pytest.mark.parametrize("errors", ["raise", "warn"])
def test_numpy_settings_of_the_user_do_no_harm(errors: Any) -> None:
    with np.errstate(all=errors):
        for values in ([1e-40, 1e38], [1e-30, 1.0], [1e-40, 1.0], [np.inf, -np.inf], [np.nan, 1.0], [3e38, 3e38]):
            for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.float64):
                for count in (2, 5000):
                    assert "not_captured" not in describe(torch.tensor(values).to(dtype).repeat(count)).node


# --- distributed -----------------------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()
        gc.collect()


@pytest.mark.usefixtures("group")
def test_dtensors_are_recorded_by_their_local_shard() -> None:
    if torch_is_before("2.2"):
        pytest.skip("this PyTorch has no torch.distributed.device_mesh")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    whole = torch.randn(6, 4)
    for placement, text in ((Shard(0), "S(0)"), (Replicate(), "R")):
        tensor = torch.nn.Parameter(distribute_tensor(whole, mesh, [placement]))
        for wanted in EVERY_WAY:
            node, host, _ = describe(tensor, wanted)
            check_entry("x.0.debug", node, "test")
            assert node["Max"] == whole.max().item()
            assert node["requires_grad"] is True
            assert node["dtensor"]["global_shape"] == [6, 4]
            assert node["dtensor"]["placements"] == [str(placement)], text
            assert node["dtensor"]["mesh"] == {"device_type": "cpu", "ranks": [0], "dim_names": ["dp"]}
            if wanted.data:
                assert host is not None
                assert host.bits is not None
                assert host.bits.tolist() == whole.tolist()


@pytest.mark.usefixtures("group")
def test_asynchronous_collectives_are_waited_for() -> None:
    from torch.distributed import _functional_collectives as functional

    tensor = functional.all_reduce(torch.arange(5.0), "sum", list(range(1)))
    node, host, _ = describe(tensor, TENSORS)
    assert node["Max"] == 4.0
    assert host is not None
    assert (tensor + 1).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("group")
def test_leaves_of_distributed() -> None:
    framework, distributed = TorchFramework(), torch.distributed
    world = distributed.group.WORLD
    assert framework.leaf(world)["group_ranks"] == [0]
    assert len(framework.leaf(world)["group_id"]) == 8
    assert framework.leaf(distributed.ReduceOp.SUM)["type"] == "torch.distributed.ReduceOp"
    assert framework.rank() == 0


def test_rank_without_a_group() -> None:
    assert TorchFramework().rank() is None


# --- leaves and the rest of the seam ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "node"),
    [
        (torch.float32, {"type": "torch.dtype", "value": "torch.float32"}),
        (torch.device("cuda", 1), {"type": "torch.device", "value": "cuda:1"}),
        (torch.Size([2, 3]), {"type": "torch.Size", "value": [2, 3]}),
        (torch.preserve_format, {"type": "torch.memory_format", "format": "preserve_format"}),
        (torch.channels_last, {"type": "torch.memory_format", "format": "channels_last"}),
        (torch.strided, {"type": "torch.layout", "value": "torch.strided"}),
        pytest.param(torch.Generator(), {"type": "torch.Generator", "value": "cpu"}, id="generator"),
    ],
    ids=str,
)
def test_leaves(value: Any, node: Any) -> None:
    assert TorchFramework().leaf(value) == node


def test_strangers_are_no_leaves() -> None:
    from capture.values import NOT_A_LEAF

    for value in (3, "x", object(), np.float32(1), torch.nn.Linear(1, 1), torch.max(torch.ones(2, 2), 0)):
        assert TorchFramework().leaf(value) is NOT_A_LEAF


def test_it_is_a_framework() -> None:
    framework: Framework = TorchFramework()  # mypy judges
    assert framework.is_tensor(torch.nn.Parameter(torch.ones(1)))
    assert not framework.is_tensor(np.ones(1))


def test_gradients_are_watched_and_left_alone() -> None:
    framework, seen = TorchFramework(), []
    leaf = torch.ones(2, requires_grad=True)
    made = leaf * 2
    assert framework.on_gradient(made, seen.append)
    assert not framework.on_gradient(torch.ones(2), seen.append)
    made.sum().backward()
    assert seen[0].tolist() == [1, 1]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recompute_is_told_from_the_first_forward(use_reentrant: bool) -> None:
    framework, seen = TorchFramework(), []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(framework.is_recompute())
        return x.sin().cos()

    x = torch.ones(3, requires_grad=True)
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    assert seen == [False, True]
    y = torch.ones(1, requires_grad=True)
    y.register_hook(lambda gradient: seen.append(framework.is_recompute()))
    y.backward()
    assert seen[2] is False


def test_a_forked_child_can_describe() -> None:
    framework = TorchFramework()
    describe(torch.ones(3), TENSORS, framework)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if describe(torch.tensor([3.0]), TENSORS, framework).node["Max"] == 3.0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_tensor_without_values_is_said() -> None:
    said: list[tuple[str, str, str]] = []
    recorder = Recorder(TorchFramework(), on_problem=lambda *problem: said.append(problem))
    entry = EntryRecord("Functional.relu.0.forward")
    wanted = Wanted(statistics=True, data=True, md5=False)
    node = recorder.values((torch.empty(3, device="meta"),), "Functional.relu.0.forward.input", entry, wanted)[0]
    assert said == [("not captured: torch.Tensor", "Functional.relu.0.forward.input.0", node["not_captured"])]


def test_a_view_of_one_number_as_10_to_the_12_keeps_its_statistics() -> None:
    wide = torch.full((1,), 3.0).expand(10**12)
    found = TorchFramework().describe(wide, Wanted(statistics=True, data=True, md5=True))
    assert found.host is None
    assert (found.node["Max"], found.node["Min"], found.node["Norm"]) == (3.0, 3.0, 3e6)
    assert "4,000,000,000,000 bytes" in found.node["not_captured"]
