"""Listening to gradients of tensors. Autograd itself is the judge."""

from __future__ import annotations

import copy
import gc
import io
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch.func import vmap

from capture.pytorch.gradients import GradientGroups
from tests.capture.pytorch.watching import Watching, bits_equal, weigh
from tests.judges import torch_is_before


def _groups() -> tuple[GradientGroups, Watching]:
    watching = Watching()
    return GradientGroups(watching), watching


def test_a_gradient_is_autograd_s() -> None:
    groups, _ = _groups()
    x = torch.randn(3, 4, requires_grad=True)
    y = x * 2
    seen: list[Any] = []
    assert groups.watch(y, seen.append)
    loss = weigh(y.sin() + y)
    (expected,) = torch.autograd.grad(loss, y, retain_graph=True)
    assert not seen, "the node behind y did not run"
    loss.backward()
    assert len(seen) == 1
    assert bits_equal(seen[0], expected)


def test_last_come_first_served() -> None:
    groups, _ = _groups()
    left, right = torch.chunk(torch.randn(4, requires_grad=True) * 2, 2)
    order: list[str] = []
    for name, tensor in (("inner left", left), ("right", right), ("outer left", left)):
        groups.watch(tensor, lambda _, name=name: order.append(name))
    (left.sum() + right.sum()).backward()
    assert order == ["outer left", "right", "inner left"]


def test_an_unused_output_of_a_node_is_not_told() -> None:
    groups, _ = _groups()
    left, right = torch.chunk(torch.randn(4, requires_grad=True) * 2, 2)
    seen: list[Any] = []
    groups.watch(left, seen.append)
    right.sum().backward()
    assert not seen


@pytest.mark.parametrize("value", [torch.ones(2), 3, None, "x"])
def test_what_has_no_gradient(value: object) -> None:
    assert not _groups()[0].watch(value, pytest.fail)


def test_inside_transforms() -> None:
    groups, watching = _groups()
    told: list[bool] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        told.append(groups.watch(y, pytest.fail))
        return y.sum()

    vmap(work)(torch.randn(2, 3, requires_grad=True))
    torch.func.grad(work)(torch.randn(3))
    assert told == [False, False]
    assert not watching.problems


def test_hooks_of_the_user_come_first() -> None:
    groups, _ = _groups()
    y = torch.ones(2, requires_grad=True) * 1
    seen: list[Any] = []
    groups.watch(y, seen.append)
    y.register_hook(lambda gradient: gradient * 5)  # type: ignore[no-untyped-call]
    y.sum().backward()
    assert seen[0].tolist() == [5, 5]


def test_the_tensor_as_it_was() -> None:
    groups, _ = _groups()
    y = torch.ones(2, requires_grad=True) * 1
    seen: list[Any] = []
    groups.watch(y, seen.append)
    y.mul_(7)
    y.sum().backward()
    assert seen[0].tolist() == [7, 7]


def test_leaves() -> None:
    groups, _ = _groups()
    x = torch.ones(2, requires_grad=True)
    seen: list[Any] = []
    assert groups.watch(x, lambda gradient: seen.append(("a", gradient)))
    assert groups.watch(x, lambda gradient: seen.append(("b", gradient)))
    (x * 3).sum().backward()
    (x * 3).sum().backward()
    assert [(name, gradient.tolist()) for name, gradient in seen] == [("b", [3, 3]), ("a", [3, 3])]
    copy.deepcopy(x)
    with warnings.catch_warnings():
        if torch_is_before("2.2"):
            warnings.simplefilter("ignore")  # 2.1 asks the key of a hook, and not the hook, whether it is for saving
        torch.save(x, io.BytesIO())  # warns about hooks that are not for saving: warnings are errors here
    groups.reset()
    assert not x._backward_hooks


def test_dead_leaves_leave_nothing() -> None:
    groups, _ = _groups()
    for _ in range(20):
        x = torch.ones(2, requires_grad=True)
        groups.watch(x, id)
        x.sum().backward()
    assert len(groups._leaves) <= 1


def test_what_a_watcher_raises_goes_no_further() -> None:
    groups, watching = _groups()
    x = torch.ones(2, requires_grad=True)
    y = x * 1
    seen: list[Any] = []
    groups.watch(y, seen.append)
    groups.watch(y, lambda gradient: 1 / 0)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1]
    assert len(seen) == 1
    assert [kind for kind, _, _ in watching.problems] == ["gradient hook ZeroDivisionError"]


def test_paused() -> None:
    groups, watching = _groups()
    y = torch.ones(2, requires_grad=True) * 1
    groups.watch(y, pytest.fail)
    watching.running = False
    y.sum().backward()


def test_listeners_hear_of_a_node_before_its_watchers() -> None:
    groups, _ = _groups()
    heard: list[Any] = []
    groups.before_events(lambda *event: heard.append(event))
    y = torch.ones(2, requires_grad=True) * 1
    groups.watch(y, lambda _: heard.append("gradient"))
    y.sum().backward()
    assert y.grad_fn is not None
    assert heard == [(y.grad_fn._sequence_nr(), threading.get_ident()), "gradient"]


def test_nothing_outlives_the_graph() -> None:
    groups, _ = _groups()
    gc.collect()
    gc.disable()
    try:
        y = torch.ones(2, requires_grad=True) * 1
        group = groups._group(y.grad_fn)
        watcher = _Watcher()
        groups.watch(y, watcher)
        gone = weakref.ref(watcher)
        del watcher, group, y
        assert gone() is None
    finally:
        gc.enable()


class _Watcher:
    def __call__(self, gradient: Any) -> None:
        """Only its life matters."""
