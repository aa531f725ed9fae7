"""Setting hooks on modules and taking them off again; what cannot be hooked is named."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from capture.config import load_config
from capture.observer import Observer
from capture.pytorch.hooks import TorchHooks
from capture.pytorch.tensors import TorchFramework
from tests.capture.pytorch.watching import Do, Watching, hooked, linear, rows, weigh


def test_never_fired() -> None:
    model = Do(
        lambda self, x: self.by_forward.forward(self.called(x)),
        called=linear(), by_forward=linear(), unused=linear(), listed=nn.ModuleList([linear()]),
    )  # fmt: skip
    _, hooks = hooked(model)
    model(rows())
    assert hooks.never_fired() == ["by_forward", "unused", "listed.0"]


def test_remove_leaves_no_hook() -> None:
    model = nn.Sequential(linear(), nn.Sequential(nn.Identity(), linear()))
    before = [_hook_counts(module) for module in model.modules()]
    watching, hooks = hooked(model)
    hooks.install(model)
    x = rows().requires_grad_()
    model(x)
    assert len(watching.forwards) == 4
    hooks.remove()
    assert [_hook_counts(module) for module in model.modules()] == before
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    model(x).sum().backward()
    assert (len(watching.forwards), watching.backwards, hooks.never_fired()) == (4, [], [])


def _hook_counts(module: nn.Module) -> list[int]:
    return [len(getattr(module, name)) for name in vars(module) if name.startswith(("_forward", "_backward"))]


def test_paused_hooks_record_nothing() -> None:
    model = nn.Sequential(linear(), linear())
    watching, _ = hooked(model)
    loss = weigh(model(rows()))
    watching.running = False
    loss.backward()
    model(rows())
    assert (len(watching.forwards), watching.backwards, watching.parameters) == (2, [], [])
    assert not watching.local.stack


def test_one_module_alone() -> None:
    model = nn.Sequential(linear(), nn.Sequential(linear()))
    watching = Watching()
    _, hooks = hooked([], watching)
    assert hooks.install_one(model[1], "mine")
    assert not hooks.install_one(model[1], "again")
    weigh(model(rows())).backward()
    assert (watching.forwards, watching.keys) == (
        ["Module.mine.Sequential.forward.0"],
        ["Module.mine.Sequential.backward.0"],
    )
    hooks.remove_one()
    model(rows())
    assert len(watching.forwards) == 1
    assert [kind for kind, _, _ in watching.problems] == ["not hooked"]


def test_what_is_no_module_is_named() -> None:
    watching, _ = hooked([nn.Sequential(linear()), "model"])
    assert watching.problems == [("not hooked", "1.", "a str is no module")]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_modules_are_named() -> None:
    model = nn.Sequential(linear(), nn.Sequential(linear()), linear())
    model[1].compile(backend="eager")
    model[2] = torch.compile(model[2], backend="eager")
    watching, hooks = hooked(model)
    model(rows())
    assert watching.forwards == ["Module.0.Linear.forward.0"]
    assert [where for _, where, _ in watching.problems] == ["1", "2"]
    assert all("torch.compile" in text for _, _, text in watching.problems)
    assert hooks.never_fired() == []
    watching, _ = hooked(torch.compile(nn.Sequential(linear()), backend="eager"))
    assert [where for _, where, _ in watching.problems] == ["OptimizedModule"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_named() -> None:
    model = nn.Sequential(linear(), torch.jit.script(nn.Sequential(linear(), nn.ReLU())))
    watching, _ = hooked(model)
    weigh(model(rows())).backward()
    assert [where for _, where, _ in watching.problems] == ["1"]
    assert watching.keys == ["Module.0.Linear.backward.0"]


def test_the_wrapper_of_fsdp_is_not_recorded_its_content_is() -> None:
    wrapper = type("FullyShardedDataParallel", (nn.Sequential,), {})
    model = nn.Sequential(wrapper(linear()))
    watching, _ = hooked(model)
    model(rows())
    assert watching.forwards == ["Module.0.0.Linear.forward.0"]


def test_a_module_with_a_mind_of_its_own_costs_only_itself() -> None:
    class Refusing(nn.Module):
        @property
        def __class__(self) -> type:
            raise RuntimeError("no class")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = nn.Sequential(linear())
    model._modules["refusing"] = Refusing()
    model._modules["last"] = linear()
    watching, _ = hooked(model)
    model(rows())
    assert len(watching.forwards) == 2


def test_a_model_that_does_not_name_its_modules_stops_nothing() -> None:
    class Hiding(nn.Sequential):
        def named_modules(self, *_: object, **__: object) -> NoReturn:
            raise RuntimeError("none of your business")

    model = Hiding(linear())
    watching, _ = hooked(model)
    model(rows())
    assert watching.forwards == []


def test_a_mode_of_the_user_is_told_of_no_hook() -> None:
    seen: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    observer = Observer(load_config(dump_path="unused", level="L0"), TorchFramework(), None, lambda *_: None)  # type: ignore[arg-type]
    hooks = TorchHooks(observer, TorchFramework(), level="L0")
    model = nn.Sequential(linear())
    with Mode():
        hooks.install(model)
        hooks.finish()
        hooks.remove()
    assert seen == []
