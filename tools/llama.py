"""A Llama written the plain way (RMSNorm, rotary positions, grouped SwiGLU feed-forward), for questions of scale.

Nothing is loaded: only shapes and the order of calls matter, so the 7B model fits on the ``meta`` device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone writes)
from torch import nn


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a model and of the batch of one rank; the defaults are Llama-2-7B's (Touvron et al., 2023)."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    hidden: int = 11008
    vocabulary: int = 32000
    batch: int = 1
    tokens: int = 4096


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise in float32, as Llama does."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(config.width, config.width, bias=False))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``x``: (batch, tokens, width); ``cos``, ``sin``: (tokens, width / heads)."""
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        query, key, value = (part(x).view(shape).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        found: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return found


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions on the last axis."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: (batch, tokens, width)."""
        found: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width)
        self.mlp = FeedForward(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``x``: (batch, tokens, width)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.norm = RMSNorm(config.width)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Logits for ``ids`` of shape (batch, tokens)."""
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits: torch.Tensor = self.lm_head(self.norm(x))
        return logits


def make_step(config: LlamaConfig, device: str) -> tuple[Llama, tuple[torch.Tensor, ...]]:
    """A bfloat16 model and its inputs (ids, cos, sin, targets), always the same."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Llama(config).to(torch.bfloat16)
        ids = torch.randint(config.vocabulary, (config.batch, config.tokens))
        targets = torch.randint(config.vocabulary, (config.batch * config.tokens,))
        half = config.width // config.heads // 2
        angles = torch.outer(torch.arange(config.tokens), 10000.0 ** (-torch.arange(half) / half)).repeat(1, 2)
        return model, (ids, angles.cos().bfloat16(), angles.sin().bfloat16(), targets)


def train_step(model: Llama, inputs: tuple[torch.Tensor, ...]) -> None:
    """A forward and a backward."""
    *arguments, targets = inputs
    logits = model(*arguments)
    F.cross_entropy(logits.float().flatten(0, 1), targets).backward()
