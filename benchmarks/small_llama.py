"""A small Llama in plain PyTorch, for `device_steps.py`: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from typing import Any

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

ROPE_BASE, INITIAL_DEVIATION = 10000.0, 0.02


class Attention(nn.Module):
    """Causal self-attention over (batch, sequence, hidden)."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = size.heads, size.kv_heads, size.hidden // size.heads
        self.qkv = nn.Linear(size.hidden, (size.heads + 2 * size.kv_heads) * self.width, bias=False)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        states = self.qkv(x).view(batch, length, -1, self.width).transpose(1, 2)
        query, key, value = states.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        mixed = functional.scaled_dot_product_attention(
            rotated(query, cos, sin), rotated(key, cos, sin), value, is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Layer(nn.Module):
    """Attention and a gated feed-forward network, each after a norm and around a residual."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.RMSNorm(size.hidden), nn.RMSNorm(size.hidden)
        self.attention = Attention(size)
        self.up = nn.Linear(size.hidden, 2 * size.ffn, bias=False)
        self.down = nn.Linear(size.ffn, size.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first_norm(x), cos, sin)
        gate, up = self.up(self.second_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """The whole model, with its loss. `size` has hidden, layers, heads, kv_heads, ffn, vocab and seq_len."""

    def __init__(self, size: Any, *, recompute: bool) -> None:
        super().__init__()
        self.recompute, self.width = recompute, size.hidden // size.heads
        self.embedding = nn.Embedding(size.vocab, size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocab, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=INITIAL_DEVIATION)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the next token."""
        x = self.embedding(tokens)
        cos, sin = rotations(tokens.shape[1], self.width, x)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recompute else layer(x, cos, sin)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, dims=1).flatten())


def rotations(length: int, width: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of the rotary angles, [length, width / 2]."""
    frequencies = ROPE_BASE ** (-torch.arange(0, width, 2, device=like.device) / width)
    angles = torch.arange(length, device=like.device)[:, None] * frequencies
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return queries or keys turned by their positions."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
