"""Models on which PyTorch's own full backward hooks are right, so that they can judge ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.pytorch.watching import Do, Scale, linear, rows, weigh

Run = Callable[[nn.Module], None]


def _block() -> nn.Module:
    mlp = nn.Sequential(linear(), nn.GELU(), linear())
    return Do(lambda self, x: x + self.mlp(self.norm(x)), norm=nn.LayerNorm(8), mlp=mlp)


def _run(model: nn.Module) -> None:
    weigh(model(rows())).backward()


def _run_sequence(model: nn.Module) -> None:
    weigh(model(rows(3, 2, 8))).backward()


def residual() -> tuple[nn.Module, Run]:
    return nn.Sequential(linear(), _block(), _block()), _run


def nested() -> tuple[nn.Module, Run]:
    return nn.Sequential(nn.Sequential(linear(), nn.Sequential(nn.ReLU(), linear())), nn.Sequential(linear())), _run


def lstm() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(self.first(x))[0])  # type: ignore[no-any-return]

    return Do(work, first=linear(), lstm=nn.LSTM(8, 8, 2), last=linear()), _run_sequence


def gru_with_state() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        output, state = self.gru(self.first(x))
        return self.last(output) + state.sum()  # type: ignore[no-any-return]

    return Do(work, first=linear(), gru=nn.GRU(8, 4, bidirectional=True), last=linear()), _run_sequence


def called_twice() -> tuple[nn.Module, Run]:
    return Do(lambda self, x: self.shared(self.act(self.shared(x))), shared=linear(), act=nn.Tanh()), _run


def two_outputs() -> tuple[nn.Module, Run]:
    pair = Do(lambda self, x: (self.a(x), self.b(x)), a=linear(), b=linear())
    return Do(
        lambda self, x: sum(self.last(y) for y in self.pair(self.first(x))), first=linear(), pair=pair, last=linear()
    ), _run


def chunks() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        left, right = self.split(self.first(x))
        return torch.cat([left * 2, right], -1)

    return Do(work, first=linear(), split=Do(lambda self, x: torch.chunk(x, 2, -1))), _run


def second_chunk() -> tuple[nn.Module, Run]:
    split = Do(lambda self, x: torch.chunk(x, 2, -1)[1])
    return Do(lambda self, x: self.split(self.first(x)), first=linear(), split=split), _run


def positions() -> tuple[nn.Module, Run]:
    """The short way to the input is done before the branch that needs no input has begun."""
    add = Do(lambda self, x: x + self.table(torch.arange(4)), table=nn.Embedding(4, 8))
    return nn.Sequential(linear(), add), _run


def keywords() -> tuple[nn.Module, Run]:
    inner = Do(lambda self, x: self.fc(x) * 2, fc=linear())
    return Do(lambda self, x: self.inner(x=self.first(x)), first=linear(), inner=inner), _run


def custom_function() -> tuple[nn.Module, Run]:
    inner = Do(lambda self, x: Scale.apply(x, 3.0) + x)
    return nn.Sequential(linear(), inner, linear()), _run


def broadcast() -> tuple[nn.Module, Run]:
    inner = Do(lambda self, x, y: x * y)
    return Do(lambda self, x: self.inner(self.a(x), self.b(x)), a=nn.Linear(8, 1), b=linear(), inner=inner), _run


def branches() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.a(x) + self.b(x) * self.c(x)  # type: ignore[no-any-return]

    a, b = nn.Sequential(linear(), nn.ReLU()), nn.Sequential(linear(), nn.Tanh())
    return Do(work, first=linear(), a=a, b=b, c=linear()), _run


def experts() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        scores = self.gate(x).softmax(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = scores.argmax(-1) == number
            if chosen.any():
                y = y.index_add(0, chosen.nonzero()[:, 0], expert(x[chosen]) * scores[chosen][:, number : number + 1])
        return y

    return Do(work, first=linear(), gate=nn.Linear(8, 3), experts=nn.ModuleList(linear() for _ in range(3))), _run


def frozen() -> tuple[nn.Module, Run]:
    model = nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(), linear())
    model[0].requires_grad_(requires_grad=False)
    return model, _run


def no_grad_part() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            still = self.a(x)
        return self.last(still) + self.a(self.first(x))  # type: ignore[no-any-return]

    return Do(work, first=linear(), a=linear(), last=linear()), _run


def transformer() -> tuple[nn.Module, Run]:
    """Its attention takes ``x, x, x``: judged without, see test_one_tensor_as_three_inputs."""
    layer = Do(
        lambda self, x: self.norm2((h := self.norm1(x + self.att(x))) + self.mlp(h)),
        norm1=nn.LayerNorm(8),
        norm2=nn.LayerNorm(8),
        att=Do(
            lambda self, x: torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x), q=linear(), k=linear(), v=linear()
        ),
        mlp=nn.Sequential(linear(), nn.GELU(), linear()),
    )
    return nn.Sequential(linear(), layer), _run_sequence


def tied() -> tuple[nn.Module, Run]:
    model = nn.Sequential(nn.Embedding(8, 8), linear(), nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    return model, lambda model: weigh(model(torch.arange(4))).backward()


def recomputed() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=False))  # type: ignore[no-any-return]

    return Do(work, first=linear(), block=nn.Sequential(linear(), nn.GELU(), linear()), last=linear()), _run


def recomputed_reentrant() -> tuple[nn.Module, Run]:
    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=True))  # type: ignore[no-any-return]

    return Do(work, first=linear(), block=nn.Sequential(linear(), nn.GELU(), linear()), last=linear()), _run


def user_hook() -> tuple[nn.Module, Run]:
    """The user scales a gradient: what is recorded is what goes on."""

    def work(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.first(x))
        y.register_hook(lambda gradient: gradient * 3)
        return self.last(y)  # type: ignore[no-any-return]

    return Do(work, first=linear(), a=linear(), last=linear()), _run


def leaf_input() -> tuple[nn.Module, Run]:
    return nn.Sequential(nn.Identity(), linear()), lambda model: weigh(model(rows().requires_grad_())).backward()


def pass_through() -> tuple[nn.Module, Run]:
    return nn.Sequential(linear(), nn.Sequential(linear(), nn.Dropout(0.0)), nn.Identity(), linear()), _run


MODELS: dict[str, Callable[[], tuple[nn.Module, Run]]] = {
    make.__name__: make
    for make in (
        residual, nested, lstm, gru_with_state, called_twice, two_outputs, chunks, second_chunk, positions, keywords,
        custom_function, broadcast, branches, experts, frozen, no_grad_part, transformer, tied, recomputed,
        recomputed_reentrant, user_hook, leaf_input, pass_through,
    )
}  # fmt: skip
