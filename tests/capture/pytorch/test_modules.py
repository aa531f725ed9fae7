"""Modules: which events come, in which order, with which gradients. PyTorch's own hooks and autograd are the judges."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.pytorch.module_models import MODELS, Run
from tests.capture.pytorch.watching import Do, Pair, Result, bits_equal, hooked, linear, rows, weigh

Backward = tuple[str, list[Any], list[Any]]


class Judge:
    """Full backward hooks of PyTorch on every module of a model, named as the dump names them."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[Backward] = []
        for path, module in model.named_modules():
            if module is not model:
                self._hook(module, f"Module.{path}.{type(module).__name__}")

    def _hook(self, module: nn.Module, prefix: str) -> None:
        calls: Counter[str] = Counter()

        def before(module: nn.Module, args: Any) -> Any:
            number = calls[prefix]
            calls[prefix] += 1

            def backward(module: nn.Module, grad_inputs: Any, grad_outputs: Any) -> None:
                self.seen.append((f"{prefix}.backward.{number}", _there(grad_outputs), _there(grad_inputs)))

            from torch.utils.hooks import BackwardHook

            hook = BackwardHook(module, [backward], [])
            waiting.append(hook)
            return hook.setup_input_hook(args)

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            hook = waiting.pop()
            flat, spec = torch.utils._pytree.tree_flatten(output)
            made = hook.setup_output_hook(tuple(flat))
            return torch.utils._pytree.tree_unflatten(list(made), spec)

        waiting: list[Any] = []
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, prepend=True)


def _there(gradients: Any) -> list[Any]:
    return [gradient.clone() for gradient in gradients if gradient is not None]


def _fresh(name: str) -> tuple[nn.Module, Run]:
    torch.manual_seed(0)
    model, run = MODELS[name]()
    torch.manual_seed(1)
    return model, run


@pytest.mark.parametrize("name", MODELS)
def test_order_and_bits_are_those_of_full_backward_hooks(name: str) -> None:
    model, run = _fresh(name)
    judge = Judge(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        run(model)
    model, run = _fresh(name)
    watching, _ = hooked(model)
    run(model)
    assert watching.keys == [key for key, _, _ in judge.seen]
    # The judge's nodes around modules add three branches up before the fourth comes: other sums, other last bits.
    same = _close if name == "transformer" else bits_equal
    for (key, given, taken), (_, right_given, right_taken) in zip(watching.backwards, judge.seen, strict=True):
        assert all(map(same, _there(given), right_given)), key
        assert all(map(same, _there(taken), right_taken)), key
        assert (len(_there(given)), len(_there(taken))) == (len(right_given), len(right_taken)), key
    assert not watching.problems
    assert not watching.local.stack


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_sums_have_the_bits_of_a_training_without_hooks() -> None:
    model, run = _fresh("transformer")
    watching, _ = hooked(model)
    run(model)
    whole = watching.gradients("Module.0.Linear.backward.0")[0][0]
    assert bits_equal(watching.gradients("Module.1.Do.backward.0")[1][0], whole)


# --- what full backward hooks cannot do ------------------------------------------------------------------------------


def test_in_place_after_a_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(linear(), nn.ReLU(inplace=True), linear())
    x = rows()
    middle = model[0](x).detach().requires_grad_()
    (expected,) = torch.autograd.grad(weigh(model[2](torch.relu(middle))), middle)
    watching, _ = hooked(model)
    weigh(model(x)).backward()
    assert watching.keys == ["Module.2.Linear.backward.0", "Module.1.ReLU.backward.0", "Module.0.Linear.backward.0"]
    assert bits_equal(watching.gradients("Module.1.ReLU.backward.0")[1][0], expected)
    assert bits_equal(watching.gradients("Module.0.Linear.backward.0")[0][0], expected)


def test_an_output_changed_afterwards_has_the_gradient_of_what_it_was() -> None:
    torch.manual_seed(0)
    model = Do(lambda self, x: self.last(self.first(x).mul_(2)), first=linear(), last=linear())
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    given = watching.gradients("Module.first.Linear.backward.0")[0][0]
    taken = watching.gradients("Module.last.Linear.backward.0")[1][0]
    assert taken is not None
    assert bits_equal(given, taken * 2)


@pytest.mark.parametrize(
    ("wrap", "get"),
    [
        (lambda y, x: {"out": y, "rest": [x.detach(), None, 3]}, lambda r: r["out"]),
        (lambda y, x: [1, (y, {"deep": None})], lambda r: r[1][0]),
        (lambda y, x: Pair(x.detach(), y), lambda r: r.right),
        (lambda y, x: Result(y), lambda r: r.logits),
        (lambda y, x: Result(x.detach(), {"k": [y]}), lambda r: r.extra["k"][0]),
    ],
    ids=["dict", "list", "namedtuple", "dataclass", "dict in dataclass"],
)
def test_outputs_in_containers(wrap: Any, get: Any) -> None:
    torch.manual_seed(0)
    inner = Do(lambda self, x: wrap(self.fc(x), x), fc=linear())
    model = Do(lambda self, x: self.last(get(self.inner(self.first(x)))), first=linear(), inner=inner, last=linear())
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    (given,), (taken,) = watching.gradients("Module.inner.Do.backward.0")
    assert bits_equal(given, watching.gradients("Module.last.Linear.backward.0")[1][0])
    assert bits_equal(taken, watching.gradients("Module.first.Linear.backward.0")[0][0])


def test_one_tensor_as_three_inputs() -> None:
    """Identity is kept (self-attention takes another way without it), so each is given the whole gradient."""
    torch.manual_seed(0)
    model = Do(lambda self, x: self.att(y := self.first(x), y, y)[0], first=linear(), att=nn.MultiheadAttention(8, 2))
    x = rows(3, 2, 8)
    middle = model.first(x).detach().requires_grad_()  # type: ignore[operator]
    expected = torch.autograd.grad(weigh(model.att(middle, middle, middle)[0]), [middle] * 3)  # type: ignore[operator]
    watching, _ = hooked(model)
    weigh(model(x)).backward()
    taken = watching.gradients("Module.att.MultiheadAttention.backward.0")[1]
    assert len(taken) == 3
    for one, right in zip(taken, expected, strict=True):
        assert bits_equal(one, right)


def _encoder(*, use_hidden: bool) -> nn.Module:
    def encode(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.fc(x)
        return hidden, self.pool(hidden)

    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden, pooled = self.encoder(self.first(x))
        return self.last(hidden) + pooled if use_hidden else pooled  # type: ignore[no-any-return]

    return Do(work, first=linear(), encoder=Do(encode, fc=linear(), pool=linear()), last=linear())


def test_an_output_used_inside_and_outside() -> None:
    """The gradient of an output is what comes from outside."""
    torch.manual_seed(0)
    model = _encoder(use_hidden=True)
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    hidden, _ = watching.gradients("Module.encoder.Do.backward.0")[0]
    outside = watching.gradients("Module.last.Linear.backward.0")[1][0]
    torch.testing.assert_close(hidden, outside)


def test_an_output_used_inside_only_has_no_gradient() -> None:
    torch.manual_seed(0)
    model = _encoder(use_hidden=False)
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    hidden, pooled = watching.gradients("Module.encoder.Do.backward.0")[0]
    assert hidden is None
    assert pooled is not None
    assert watching.gradients("Module.encoder.fc.Linear.backward.0")[0][0] is not None


def test_an_unused_output_is_none_and_the_branch_behind_it_silent() -> None:
    torch.manual_seed(0)
    for used in (0, 1):
        pair = Do(lambda self, x: (self.a(x), self.b(x), 3, None), a=linear(), b=linear())
        model = Do(
            lambda self, x, used=used: self.last(self.pair(self.first(x))[used]),
            first=linear(),
            pair=pair,
            last=linear(),
        )
        watching, _ = hooked(model)
        weigh(model(rows())).backward()
        assert watching.keys == [
            "Module.last.Linear.backward.0",
            f"Module.pair.{'ab'[used]}.Linear.backward.0",
            "Module.pair.Do.backward.0",
            "Module.first.Linear.backward.0",
        ]
        given = watching.gradients("Module.pair.Do.backward.0")[0]
        assert given[used] is not None
        assert given[1 - used] is None
        assert not watching.local.stack


def test_an_input_without_influence() -> None:
    inner = Do(lambda self, x, y: self.fc(x), fc=linear())
    model = Do(lambda self, x: self.inner(self.a(x), self.b(x)), a=linear(), b=linear(), inner=inner)
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    taken = watching.gradients("Module.inner.Do.backward.0")[1]
    assert taken[0] is not None
    assert taken[1] is None
    assert model.b.weight.grad is None  # type: ignore[union-attr]


def test_two_backwards_through_one_graph() -> None:
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    watching, _ = hooked(model)
    loss = weigh(model(rows()))
    loss.backward(retain_graph=True)
    (loss * 2).backward()
    assert watching.keys[:3] == watching.keys[3:]
    for (_, given, _), (_, again, _) in zip(watching.backwards[:3], watching.backwards[3:], strict=True):
        assert given[0] is not None
        assert bits_equal(given[0] * 2, again[0])


def test_gradients_of_some_weights_only() -> None:
    """The engine runs a part of the graph; what it passed through is told, and nothing stays open."""
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    watching, _ = hooked(model)
    torch.autograd.grad(weigh(model(rows())), [model[2].weight])
    assert watching.keys == ["Module.2.Linear.backward.0"]
    assert watching.gradients("Module.2.Linear.backward.0")[1] == [None]
    assert not watching.local.stack


# --- forward ---------------------------------------------------------------------------------------------------------


def test_names_and_parents() -> None:
    models = [nn.Sequential(linear(), nn.Sequential(nn.ReLU())), nn.Sequential(linear())]
    watching, _ = hooked(models)
    models[1](models[0](rows()))
    assert watching.forwards == [
        "Module.0.0.Linear.forward.0",
        "Module.0.1.0.ReLU.forward.0",
        "Module.0.1.Sequential.forward.0",
        "Module.1.0.Linear.forward.0",
    ]
    assert watching.parents["Module.0.1.0.ReLU.forward.0"] == "Module.0.1.Sequential.forward.0"
    assert watching.parents["Module.1.0.Linear.forward.0"] is None


def test_a_forward_that_raises_leaves_the_stack() -> None:
    def fail(self: Any, x: Any) -> Any:
        raise ValueError("no")

    model = nn.Sequential(nn.Sequential(linear(), Do(fail)), linear())
    watching, _ = hooked(model)
    with pytest.raises(ValueError, match="no"):
        model(rows())
    assert watching.aborted == ["Module.0.1.Do.forward.0", "Module.0.Sequential.forward.0"]
    assert not watching.local.stack


def test_an_interrupt_tells_nobody_and_leaves_nothing() -> None:
    def interrupt(self: Any, x: Any) -> Any:
        raise KeyboardInterrupt

    def catch(self: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(KeyboardInterrupt):
            self.inner(x)
        return x * 2

    model = nn.Sequential(Do(catch, inner=nn.Sequential(Do(interrupt))))
    watching, hooks = hooked(model)
    model(rows())
    assert watching.forwards == ["Module.0.Do.forward.0"]
    assert not watching.local.stack
    with pytest.raises(KeyboardInterrupt):
        model[0].inner(rows())  # type: ignore[operator, union-attr]
    assert watching.local.stack
    hooks.remove()
    assert not watching.local.stack


def test_a_call_while_an_exception_is_handled_is_no_failure() -> None:
    model = nn.Sequential(linear(), Do(lambda self, x: None))
    watching, _ = hooked(model)
    try:
        raise ValueError
    except ValueError:
        model(rows())
    assert watching.forwards == ["Module.0.Linear.forward.0", "Module.1.Do.forward.0"]


def test_a_backward_that_raises_leaves_nothing_open() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 1

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise RuntimeError("in backward")

    model = nn.Sequential(linear(), Do(lambda self, x: torch.tanh(Fails.apply(x)) if self.training else x * 2))
    watching, _ = hooked(model)
    with pytest.raises(RuntimeError, match="in backward"):
        weigh(model(rows())).backward()
    assert watching.local.stack == ["Module.1.Do.backward.0"]
    model.eval()
    weigh(model(rows())).backward()
    assert not watching.local.stack
    assert watching.keys == ["Module.1.Do.backward.1", "Module.0.Linear.backward.1"]
    assert watching.parents["Module.0.Linear.forward.1"] is None


def test_a_module_whose_parts_run_in_other_threads() -> None:
    """Each thread numbers its nodes for itself: small numbers there say nothing about calls here."""

    def spread(self: Any, x: torch.Tensor) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: parts.append(self.fc(x * 2)))
        thread.start()
        thread.join()
        return self.last(parts[0]) + self.beside(x)  # type: ignore[no-any-return]

    model = nn.Sequential(linear(), Do(spread, fc=linear(), last=linear(), beside=linear()))
    for _ in range(50):
        rows().requires_grad_() * 2  # this thread has counted further
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    assert sorted(watching.keys) == sorted(set(watching.keys))
    assert len(watching.keys) == 5
    assert watching.gradients("Module.1.Do.backward.0")[1][0] is not None
    assert watching.gradients("Module.1.fc.Linear.backward.0")[1][0] is not None
    assert not watching.local.stack


def test_full_backward_hooks_of_the_user() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(linear(), nn.Sequential(linear(), nn.Tanh()), linear())
    seen: list[Any] = []
    model[1].register_full_backward_hook(lambda module, taken, given: seen.append((taken, given)) or (taken[0] * 2,))
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    given, taken = watching.gradients("Module.1.Sequential.backward.0")
    ((right_taken, right_given),) = seen
    assert bits_equal(given[0], right_given[0])
    assert bits_equal(taken[0], right_taken[0] * 2), "what goes on is what the user made of it"
