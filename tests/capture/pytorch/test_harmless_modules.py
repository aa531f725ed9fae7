"""Module hooks do no harm: a training with them is the training without them, and nothing is kept."""

from __future__ import annotations

import copy
import gc
import io
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacrev, vmap
from torch.overrides import TorchFunctionMode

from capture.pytorch.modules import ModuleHooks
from tests.capture.pytorch.module_models import MODELS
from tests.capture.pytorch.watching import Do, Watching, bits_equal, hooked, linear, rows, weigh
from tests.judges import torch_is_before


@pytest.mark.parametrize("name", MODELS)
def test_the_training_is_bit_for_bit_the_same(name: str) -> None:
    results = []
    for with_hooks in (False, True):
        torch.manual_seed(0)
        model, run = MODELS[name]()
        hooks = hooked(model)[1] if with_hooks else None
        torch.manual_seed(1)
        for _ in range(2):
            run(model)
        results.append(([parameter.grad for parameter in model.parameters()], torch.get_rng_state()))
        if hooks is not None:
            hooks.remove()
    (without, state), (with_, state_after) = results
    assert all(map(bits_equal, without, with_))
    assert torch.equal(state, state_after)


def test_in_place_and_views_train_the_same() -> None:
    results = []
    for with_hooks in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
            Do(lambda self, x: (x * 2).transpose(1, 2)[:1].add_(2)), nn.Flatten(), nn.Dropout(0.5, inplace=True),
        )  # fmt: skip
        if with_hooks:
            hooked(model)
        weigh(model(torch.randn(2, 1, 8, 8))).backward()
        results.append([parameter.grad for parameter in model.parameters()])
    assert all(map(bits_equal, *results))


def test_identity_of_inputs_and_outputs() -> None:
    seen: list[Any] = []

    def keep(self: Any, x: torch.Tensor) -> Any:
        seen.append(x)
        return self.out

    model = nn.Sequential(Do(keep))
    model[0].out = [{"k": rows()}]
    hooked(model)
    x = rows().requires_grad_()
    assert model(x) is model[0].out
    assert seen[0] is x
    assert nn.Sequential(nn.Identity())(x) is x


def test_hooks_return_nothing() -> None:
    model = nn.Sequential(linear())
    hooked(model)
    for hooks in (model[0]._forward_pre_hooks, model[0]._forward_hooks):
        for hook in hooks.values():
            assert hook(model[0], (rows(),), {}, rows()) is None if hooks is model[0]._forward_hooks else True
    y = model(rows())
    for group in y.grad_fn.metadata.values():
        assert group((torch.ones(4, 8),)) is None


# --- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_a_copy_of_a_model_is_not_recorded(how: str) -> None:
    model = nn.Sequential(linear(), nn.ReLU())
    watching, _ = hooked(model)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        assert b"capture" not in file.getvalue(), "loading must not need capture"
        file.seek(0)
        other = torch.load(file, weights_only=False)
    weigh(other(rows())).backward()
    assert watching.forwards == []
    assert watching.parameters == []
    assert list(other.state_dict()) == list(model.state_dict())


# --- memory ----------------------------------------------------------------------------------------------------------


class _Saved:
    """Stands in a graph for a saved tensor: alive as long as its node is."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # an output of its node would close a cycle


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _both(y: Any) -> torch.Tensor:
    return y[0].sum() + y[1].sum() + y[2].sum()


def _fail(gradient: Any) -> Any:
    raise ZeroDivisionError


def _failing(y: Any, x: torch.Tensor) -> None:
    y[0].register_hook(_fail)
    with pytest.raises(ZeroDivisionError):
        _both(y).backward()


def _penalty(y: Any, x: torch.Tensor) -> None:
    (gradient,) = torch.autograd.grad(y[0].tanh().sum(), x, create_graph=True)
    (gradient**2).sum().backward()
    del gradient


def _retained(y: Any, x: torch.Tensor) -> None:
    y[0].sum().backward(retain_graph=True)
    y[1].sum().backward()


ENDINGS: dict[str, Callable[[Any, torch.Tensor], object]] = {
    "backward": lambda y, x: _both(y).backward(),
    "no backward": lambda y, x: None,
    "one output": lambda y, x: y[1].sum().backward(),
    "retained": _retained,
    "penalty": _penalty,
    "failing": _failing,
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_kept(ending: str) -> None:
    model = nn.Sequential(
        linear(), nn.Tanh(), nn.Dropout(0.0), Do(lambda self, x: (self.a(x), self.b(x), x), a=linear(), b=linear())
    )
    watching, _ = hooked(model)
    watching.keeps = False
    alive: list[weakref.ref[Any]] = []

    def pack(tensor: torch.Tensor) -> _Saved:
        saved = _Saved(tensor)
        alive.append(weakref.ref(saved))
        return saved

    def once() -> None:
        x = rows().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
            y = model(x)
            alive.extend(weakref.ref(part) for part in y)
        ENDINGS[ending](y, x)

    for _ in range(200):
        once()
        watching.forwards.clear()
        watching.parents.clear()
    last = len(alive) // 200 if ending == "failing" else 0
    assert sum(reference() is not None for reference in alive) <= last, "a traceback may hold the last graph"
    if ending != "failing":
        assert not watching.local.stack


# --- odd surroundings ------------------------------------------------------------------------------------------------


def _model() -> nn.Sequential:
    return nn.Sequential(linear(), nn.ReLU(), nn.Sequential(linear(), nn.Tanh()))


def test_threads() -> None:
    models = [_model() for _ in range(4)]
    watching, _ = hooked(models)

    def train(model: nn.Module) -> None:
        for _ in range(25):
            weigh(model(rows())).backward()

    threads = [threading.Thread(target=train, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(watching.forwards) == len(watching.backwards) == 4 * 25 * 5
    for child, parent in watching.parents.items():
        assert parent is None or parent.split(".")[1] == child.split(".")[1]


def test_forward_in_another_thread() -> None:
    model = _model()
    watching, _ = hooked(model)
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(model(rows())))
    thread.start()
    thread.join()
    weigh(made[0]).backward()
    assert len(watching.keys) == 5
    assert not watching.local.stack


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd(mode: Any) -> None:
    model = _model()
    watching, hooks = hooked(model)
    with mode():
        y = model(rows())
    assert not y.requires_grad
    assert len(watching.forwards) == 5
    assert hooks.never_fired() == []


def test_transforms() -> None:
    model = _model()
    watching, _ = hooked(model)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    x = rows()
    vmap(vmap(model))(x.reshape(2, 2, 8))
    with_hooks = grad(lambda p: functional_call(model, p, (x,)).sum())(parameters)
    jacrev(model)(x[0])
    assert len(watching.forwards) == 15
    assert not watching.problems
    assert not watching.backwards
    without = grad(lambda p: functional_call(_unhooked(model), p, (x,)).sum())(parameters)
    assert all(bits_equal(with_hooks[name], without[name]) for name in parameters)


def _unhooked(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def test_fake_and_meta() -> None:
    model = _model()
    watching, _ = hooked(model)
    model.to("meta")(rows().to("meta")).sum().backward()
    assert len(watching.keys) == 5
    with FakeTensorMode():
        model = _model()
        hooked(model, watching)
        model(rows()).sum().backward()
    assert len(watching.keys) == 10
    assert not watching.problems


def test_a_subclass_with_functions_of_its_own() -> None:
    calls: list[str] = []

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    def run(*, with_hooks: bool) -> list[str]:
        calls.clear()
        torch.manual_seed(0)
        model = _model()
        if with_hooks:
            watching, _ = hooked(model)
            watching.keeps = False
        y = model(rows().as_subclass(Loud))
        y.sum().backward()
        return list(calls)

    assert run(with_hooks=True) == run(with_hooks=False)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_function_mode_sees_the_model_only(create_graph: bool) -> None:
    class Listening(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    calls: list[str] = []

    def run(*, with_hooks: bool) -> list[str]:
        calls.clear()
        model = _model()
        if with_hooks:
            hooked(model)[0].keeps = False
        x = rows()
        with Listening():
            weigh(model(x)).backward(create_graph=create_graph)
        return list(calls)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward\\(\\) with create_graph")
        assert run(with_hooks=True) == run(with_hooks=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripting_and_tracing_work_while_capture_is_on() -> None:
    model = _model()
    watching, hooks = hooked(model)
    original = torch.jit._recursive.create_script_module.__wrapped__  # type: ignore[attr-defined]
    x = rows()
    scripted = torch.jit.script(model)
    traced = torch.jit.trace(model, x, check_trace=False)
    assert watching.forwards == []
    assert watching.problems
    assert bits_equal(scripted(x), model(x))
    assert bits_equal(traced(x), model(x))
    assert len(watching.forwards) == 10, "the hooks are back"
    hooks.remove()
    assert torch.jit._recursive.create_script_module is original


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiling_a_function_around_a_hooked_model() -> None:
    model = _model()
    watching, hooks = hooked(model)
    work = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
    x = rows()
    assert bits_equal(work(x), model(x).sum())
    assert len(watching.forwards) == 5, "the call outside of the compiled function"
    hooks.install(model)
    torch._dynamo.reset()
    work(x)
    assert hooks.never_fired() == ["0", "1", "2", "2.0", "2.1"]
    if not torch_is_before("2.2"):  # a prototype, which takes no hooks
        torch.export.export(model, (x,))
    assert len(watching.forwards) == 5


def test_a_failing_observer_costs_nothing() -> None:
    class Broken(Watching):
        def end_module(self, *_: Any) -> None:
            raise ValueError("end")

        def open_module_backward(self, *_: Any) -> None:
            raise ValueError("open")

    model = _model()
    watching = Broken()
    hooked(model, watching)
    weigh(model(rows())).backward()
    assert model[0].weight.grad is not None
    assert {kind for kind, _, _ in watching.problems} == {"module hook ValueError"}


def test_remove_inside_a_forward() -> None:
    hooks: list[ModuleHooks] = []

    def stop(self: Any, x: torch.Tensor) -> torch.Tensor:
        hooks[0].remove()
        return x * 2

    model = nn.Sequential(linear(), nn.Sequential(Do(stop), linear()))
    watching, made = hooked(model)
    hooks.append(made)
    weigh(model(rows())).backward()
    assert not watching.local.stack
    assert not watching.problems
