"""Gradients of parameters. ``parameter.grad`` is the judge."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.pytorch.watching import Do, bits_equal, hooked, linear, rows, weigh


def test_what_is_recorded_is_grad() -> None:
    model = nn.Sequential(linear(), nn.LayerNorm(8), linear())
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    assert len(watching.parameters) == 6
    for prefix, name, gradient in watching.parameters:
        parameter = model[int(prefix.split(".")[1])].get_parameter(name)
        assert bits_equal(gradient, parameter.grad)


def test_each_accumulation_is_the_sum_so_far() -> None:
    model = nn.Sequential(nn.Linear(8, 1, bias=False))
    watching, _ = hooked(model)
    sums = []
    for _ in range(3):
        weigh(model(rows())).backward()
        sums.append(model[0].weight.grad.clone())  # type: ignore[union-attr, operator]
    assert [prefix for prefix, _, _ in watching.parameters] == ["Module.0.Linear"] * 3
    assert all(bits_equal(gradient, right) for (_, _, gradient), right in zip(watching.parameters, sums, strict=True))


def test_a_shared_parameter_is_told_to_every_owner() -> None:
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    watching, _ = hooked(model)
    weigh(model(torch.arange(4))).backward()
    assert [prefix for prefix, _, _ in watching.parameters] == ["Module.0.Embedding", "Module.1.Linear"]
    assert all(bits_equal(gradient, model[0].weight.grad) for _, _, gradient in watching.parameters)


def test_a_shared_parameter_in_a_reentrant_checkpoint_ends_whole() -> None:
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    second.weight = first.weight
    model = Do(lambda self, x: checkpoint(self.b, self.a(x), use_reentrant=True), a=first, b=second)
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    _, _, last = watching.parameters[-1]
    assert bits_equal(last, first.weight.grad)


def test_frozen_parameters_and_ones_trained_later() -> None:
    model = nn.Sequential(linear(), linear())
    model[0].requires_grad_(requires_grad=False)
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    assert {prefix for prefix, _, _ in watching.parameters} == {"Module.1.Linear"}
    model[0].requires_grad_()
    model(rows())
    weigh(model(rows())).backward()
    assert {prefix for prefix, _, _ in watching.parameters} == {"Module.0.Linear", "Module.1.Linear"}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_parameters() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    assert {name for _, name, _ in watching.parameters} == {"weight", "bias"}


def test_gradients_written_by_a_framework_are_found_at_the_end() -> None:
    """As FSDP2 does it: parameters in forward are others, gradients are assigned."""
    module = linear()
    shards = list(module.parameters())
    module.bias.grad = torch.ones(8)
    model = nn.Sequential(module)
    watching, hooks = hooked(model)
    whole = [nn.Parameter(shard.detach().clone()) for shard in shards]
    module._parameters.update(weight=whole[0], bias=whole[1])
    weigh(model(rows())).backward()
    module._parameters.update(weight=shards[0], bias=shards[1])
    shards[0].grad = whole[0].grad
    hooks.finish()
    assert [name for _, name, _ in watching.parameters] == ["weight"], "the bias has the gradient it had before"
    assert bits_equal(watching.parameters[0][2], whole[0].grad)
    assert not watching.problems


def test_no_gradient_at_all_is_said() -> None:
    model = nn.Sequential(linear())
    watching, hooks = hooked(model)
    hooks.finish()
    assert not watching.problems, "there was no backward"
    torch.autograd.grad(weigh(model(rows().requires_grad_())), list(model.parameters()))
    hooks.finish()
    ((kind, _, text),) = watching.problems
    assert kind == "no parameter gradients"
    assert "0 of 2" in text


def test_a_class_of_its_own_mind_costs_itself_only() -> None:
    class Stubborn(nn.Parameter):
        def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> Any:
            raise RuntimeError("no hooks here")

    model = nn.Sequential(linear(), linear())
    model[0].weight = Stubborn(rows(8, 8))
    watching, hooks = hooked(model)
    weigh(model(rows())).backward()
    assert [where for _, where, _ in watching.problems] == ["Module.0.Linear.weight"]
    hooks.finish()
    assert len(watching.parameters) == 4, "the one without a hook is found at the end"


@pytest.mark.parametrize("work", [copy.deepcopy, lambda parameter: torch.save(parameter, io.BytesIO())])
def test_parameters_are_copied_and_saved_as_ever(work: Callable[[Any], Any]) -> None:
    model = nn.Sequential(linear())
    hooked(model)
    work(model[0].weight)
    work(model)
