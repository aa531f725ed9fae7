"""Code that becomes a graph works as without capture, and somebody says that it is not recorded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone writes)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.jit import script as early_script
from torch.overrides import TorchFunctionMode

from capture.pytorch.apis import ApiHooks
from tests.capture.pytorch.recording import RecordingObserver, hooks_for, installed
from tests.judges import torch_is_before

IS_EARLY = torch_is_before("2.2")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def function(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.relu(torch.add(x, 1) + x.mul(2))).softmax(-1)


def partly(x: torch.Tensor) -> torch.Tensor:
    return left_to_python(F.relu(x)) * 2


@torch.compiler.disable
def left_to_python(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers warn about themselves
        yield
    torch._dynamo.reset()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(3, 3, generator=torch.Generator().manual_seed(0))


def _named(observer: RecordingObserver) -> list[Any]:
    """What was named; with PyTorch 2.1 what Dynamo wraps is, too, and some of it twice."""
    if not IS_EARLY:
        return observer.problems
    wrapped = {("compiled", name) for name in ("forward", "inner", "GraphModule.__new__.<locals>.GraphModuleImpl")}
    assert set(observer.problems[1:]) <= {observer.problems[0], *wrapped}
    return observer.problems[:1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_fullgraph_compiles_and_is_named(x: torch.Tensor, backend: str) -> None:
    expected, observer = function(x), RecordingObserver()
    with installed(observer):
        result = torch.compile(function, backend=backend, fullgraph=True)(x)
    assert torch.equal(result, expected)
    if not (backend == "eager" and IS_EARLY):  # whose graphs look functions up where the stand-ins are
        assert observer.keys == []
    assert _named(observer) == [("compiled", "function")]


def test_starting_and_stopping_compiles_nothing_anew(x: torch.Tensor) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    expected = compiled(x)
    observer = RecordingObserver()
    hooks = hooks_for(observer)
    for _ in range(12):
        hooks.install()
        assert torch.equal(compiled(x), expected)
        hooks.remove()
        assert torch.equal(compiled(x), expected)
    assert len(graphs) == 1
    assert observer.problems.count(("compiled", "function")) == 12
    assert IS_EARLY or len(observer.problems) == 12


def test_a_compiled_module_trains_as_without(x: torch.Tensor) -> None:
    def train(hooks: ApiHooks | None) -> list[torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU(), torch.nn.Linear(3, 1))
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        if hooks is not None:
            hooks.install()
        compiled(x).sum().backward()
        if hooks is not None:
            hooks.remove()
        return [p.grad for p in model.parameters() if p.grad is not None]

    observer = RecordingObserver()
    plain, hooked = train(None), train(hooks_for(observer))
    assert all(torch.equal(one, other) for one, other in zip(plain, hooked, strict=True))
    assert _named(observer) == [("compiled", "Sequential")]


def test_what_is_left_to_python_is_recorded(x: torch.Tensor) -> None:
    expected, observer = partly(x), RecordingObserver()
    with installed(observer):
        assert torch.allclose(torch.compile(partly, backend="aot_eager")(x), expected)
        F.relu(x)
    assert observer.keys == ["Functional.softmax.0.forward", "Functional.relu.0.forward"]


def test_recording_goes_on_after_a_compiler_failed(x: torch.Tensor) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return F.relu(x)

    observer = RecordingObserver()
    with installed(observer):
        with pytest.raises(Exception, match="graph"):
            torch.compile(broken, backend="eager", fullgraph=True)(x)
        F.relu(x)
    assert observer.keys == ["Functional.relu.0.forward"]


def test_stopped_inside_compiled_code(x: torch.Tensor) -> None:
    observer = RecordingObserver()
    hooks = hooks_for(observer)

    @torch.compiler.disable
    def stop() -> None:
        hooks.remove()

    def stopping(x: torch.Tensor) -> torch.Tensor:
        y = F.relu(x)
        stop()
        return y + 1

    before = F.relu
    hooks.install()
    torch.compile(stopping, backend="aot_eager")(x)
    assert F.relu is before
    with installed(observer):
        F.relu(x)
    assert observer.keys == ["Functional.relu.0.forward"]
    assert torch.overrides._get_current_function_mode_stack() == []


class _Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.add else result


def test_compiled_under_a_mode_of_the_user(x: torch.Tensor) -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1)

    with _Doubling():
        expected = torch.compile(add, backend="eager", fullgraph=True)(x)
    with installed(RecordingObserver()), _Doubling():
        result = torch.compile(add, backend="eager", fullgraph=True)(x)
    assert torch.equal(result, expected)


def test_scripting_works_however_it_is_reached(x: torch.Tensor) -> None:
    expected, observer = function(x), RecordingObserver()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU())
    with installed(observer):
        one, other = torch.jit.script(function), early_script(function)
        scripted = torch.jit.script(model)
        assert torch.equal(one(x), expected)
        assert torch.equal(other(x), expected)
        assert torch.equal(scripted(x), model(x))
    assert set(observer.problems) == {("scripted", "function"), ("scripted", "Sequential")}


def test_tracing_makes_the_graph_of_the_model_alone(x: torch.Tensor) -> None:
    plain = torch.jit.trace(function, (x,))
    observer = RecordingObserver(lambda value: value)
    with installed(observer):
        traced = torch.jit.trace(function, (x,))
    assert str(traced.graph) == str(plain.graph)
    assert observer.problems[0] == ("scripted", "function")


@pytest.mark.skipif(IS_EARLY, reason="PyTorch 2.1 has a prototype of torch.export, which takes no hooks")
@pytest.mark.parametrize("strict", [False, True])
def test_export_works_and_is_named(x: torch.Tensor, strict: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU())
    plain = torch.export.export(model, (x,), strict=strict)
    observer = RecordingObserver()
    with installed(observer):
        exported = torch.export.export(model, (x,), strict=strict)
    assert [node.target for node in exported.graph.nodes] == [node.target for node in plain.graph.nodes]
    assert observer.problems == [("exported", "Sequential")]
    assert observer.keys == []


def test_fx_finds_the_functions_and_not_what_stands_for_them(x: torch.Tensor) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    plain = torch.fx.symbolic_trace(Model())
    with installed(RecordingObserver()):
        traced = torch.fx.symbolic_trace(Model())
    assert [node.target for node in traced.graph.nodes] == [node.target for node in plain.graph.nodes]
    assert traced.code == plain.code
    assert torch.equal(traced(x), plain(x))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.vmap(f)(x),
        lambda f, x: torch.vmap(torch.vmap(f))(x[None]),
        lambda f, x: torch.func.grad(lambda t: f(t).sum())(x),
        lambda f, x: torch.func.jacrev(f)(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
        lambda f, x: torch.func.hessian(lambda t: f(t).sum())(x),
        lambda f, x: torch.vmap(torch.func.grad(lambda t: f(t).square().sum()))(x),
        lambda f, x: make_fx(f)(x)(x),
    ],
)
def test_transforms_give_what_they_gave(x: torch.Tensor, transform: Any) -> None:
    expected, observer = transform(function, x), RecordingObserver()
    with installed(observer):
        assert torch.equal(transform(function, x), expected)
    assert observer.problems == []
    assert "Functional.relu.0.forward" in observer.keys
