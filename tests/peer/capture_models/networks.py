"""Models of the suite: the layers and ways of calling them that programs are made of."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone writes)
from torch import nn
from torch.utils.checkpoint import checkpoint

Built = tuple[Any, Callable[[int], None]]


def data(*shape: int, step: int = 0) -> torch.Tensor:
    """Normal numbers that depend on shape and step alone."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(*shape, generator=generator)


class Cnn(nn.Module):
    """Convolutions, batch norm with its running statistics, an activation in place, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(4, 8, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.25)
        self.none = nn.Dropout(0.0)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = F.leaky_relu(self.bn2(self.conv2(x)), negative_slope=0.1)
        x = x + F.interpolate(x, scale_factor=1.0, mode="nearest")
        return self.head(self.none(self.drop(x)))


def build_cnn() -> Built:
    model = Cnn()

    def run_step(step: int) -> None:
        logits = model(data(3, 1, 10, 10, step=step))
        F.cross_entropy(logits, torch.tensor([0, 4, 2])).backward()

    return model, run_step


class Attention(nn.Module):
    """Causal self-attention, spelled out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / 2.0
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, tokens, width)
        return self.out(mixed)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Blocks; those before the last are recomputed in backward when ``reentrant`` is not None."""

    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks[:-1]:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(self.blocks[-1](x)))


def build_transformer(*, reentrant: bool | None = None) -> Built:
    model = Transformer(reentrant=reentrant)

    def run_step(step: int) -> None:
        ids = (torch.arange(10).reshape(2, 5) * 3 + step) % 16
        loss = F.cross_entropy(model(ids).flatten(0, 1), ((ids + 1) % 16).flatten())
        loss.backward()

    return model, run_step


def build_checkpoint() -> Built:
    return build_transformer(reentrant=False)


def build_checkpoint_reentrant() -> Built:
    return build_transformer(reentrant=True)


class Recurrent(nn.Module):
    """Recurrent modules and cells; their outputs are nested tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5, batch_first=True)
        self.cell = nn.LSTMCell(5, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, (hidden, _) = self.lstm(x)
        x, last = self.gru(x)
        state = None
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
        return self.head(state[0]) + hidden.mean() + last.sum()


def build_lstm() -> Built:
    model = Recurrent()

    def run_step(step: int) -> None:
        model(data(2, 3, 4, step=step)).pow(2).mean().backward()

    return model, run_step


class Tied(nn.Module):
    """A head that shares the embedding's weight, a module used three times, a module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.shared = nn.Linear(8, 8)
        self.alias = self.shared
        self.stack = nn.Sequential(self.shared, nn.Tanh(), self.shared)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.shared(self.embed(ids))
        return self.head(self.stack(self.alias(x)))


def build_tied() -> Built:
    """Two forward and backward passes a step: gradients accumulate, counters go on."""
    model = Tied()

    def run_step(step: int) -> None:
        for part in range(2):
            ids = (torch.arange(6).reshape(2, 3) + step + part) % 16
            F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()

    return model, run_step


Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    """What a module of a library returns."""

    logits: torch.Tensor
    hidden: torch.Tensor
    note: str = "note"


class ToDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"out": self.fc(x), "extra": [x.detach(), 3, (x * 2, True)]}


class ToList(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x + 1, x - 1]


class ToPair(nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        left, right = torch.chunk(x, 2, dim=-1)
        return Pair(left, right)


class ToDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Output:
        return Output(self.fc(x), x)


class ToTuple(nn.Module):
    """Tensors among values that are none; one output is never used."""

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        return x.sin(), None, 2.5, "text", x.cos()


class TakesDict(nn.Module):
    def forward(self, parts: dict[str, torch.Tensor], more: list[torch.Tensor]) -> torch.Tensor:
        return parts["a"] * parts["b"] + more[0]


class Outputs(nn.Module):
    """Every kind of output, and nested inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.to_dict = ToDict()
        self.to_list = ToList()
        self.to_pair = ToPair()
        self.to_tuple = ToTuple()
        self.takes_dict = TakesDict()
        self.to_dataclass = ToDataclass()

    def forward(self, x: torch.Tensor) -> Output:
        x = self.to_dict(x)["out"]
        one, two = self.to_list(x)
        pair = self.to_pair(one * two)
        x = torch.cat([pair.right, pair.left], dim=-1)
        x = self.to_tuple(x)[0]
        x = self.takes_dict({"a": x, "b": two}, [one])
        return self.to_dataclass(x)


def build_outputs() -> Built:
    model = Outputs()

    def run_step(step: int) -> None:
        out = model(data(3, 4, step=step))
        (out.logits.mean() + out.hidden.mean()).backward()

    return model, run_step


class Keywords(nn.Module):
    """Called by keyword alone, with defaults and None."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features=4, out_features=4)

    def forward(self, *, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        x = F.linear(input=x, weight=self.fc.weight, bias=self.fc.bias) * scale
        return x if mask is None else x.masked_fill(mask=mask, value=0.0)


class KeywordsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Keywords()
        self.two = Keywords()
        self.norm = nn.LayerNorm(4)

    def forward(self, *, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.one(x=x, mask=mask, scale=0.5)
        return self.norm(input=self.two(x=x))


def build_keywords() -> Built:
    model = KeywordsOnly()

    def run_step(step: int) -> None:
        x = data(3, 4, step=step)
        model(x=x, mask=x > 1).square().sum(dim=(0, 1), keepdim=False).backward()

    return model, run_step


class Small(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, width)
        self.act = nn.SiLU()
        self.fc2 = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


def build_two_models() -> Built:
    """Two models in a list: the path of a module starts with the model's index."""
    models = [Small(6), Small(3)]

    def run_step(step: int) -> None:
        x = data(2, 4, step=step)
        (models[0](x) * models[1](x).detach()).mean().backward()
        models[1](models[0](x)).mean().backward()

    return models, run_step


def build_tuple_of_models() -> Built:
    models, run_step = build_two_models()
    return tuple(models), run_step
