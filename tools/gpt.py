"""The model that the benchmark and the demonstration train: a small GPT written the plain way, with AdamW.

Four layers, width 256, batches of 4 x 128 tokens by default; attention is spelled out, so that a dump of it shows every
step of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone writes)
from torch import nn

VOCABULARY = 1024


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over ``x`` of shape (batch, tokens, width)."""
        batch, tokens, width = x.shape
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        shape = (batch, tokens, self.heads, width // self.heads)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in (query, key, value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, tokens, width)
        return self.out(mixed)


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer over ``x`` of shape (batch, tokens, width)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a norm and the head."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, context: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, tokens, vocabulary) for ``ids`` of shape (batch, tokens)."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Training:
    """A model, its optimizer and made-up data; ``step`` trains once and returns the loss.

    Parameters
    ----------
    debugger
        Anything with ``start``, ``stop`` and ``step``, called around each training step as a user would; None for none.
    """

    def __init__(self, debugger: Any = None, *, batch: int = 4, tokens: int = 128, **model: int) -> None:
        torch.manual_seed(0)
        self.debugger = debugger
        self.model = GPT(context=tokens, **model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.ids = torch.randint(VOCABULARY, (batch, tokens + 1))

    def step(self) -> float:
        """Train one step."""
        if self.debugger is not None:
            self.debugger.start(model=self.model)
        logits = self.model(self.ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten())
        loss.backward()
        if self.debugger is not None:
            self.debugger.stop()
            self.debugger.step()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()
