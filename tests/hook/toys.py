"""Small models with FLOPs that are worked out by hand beside them.

A product of (M, K) and (K, N) is 2·M·K·N. In training, each product costs that once more for each
operand that needs a gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import flopwatch
from flopwatch.wire import Report

BATCH, LENGTH, WIDTH, LAYERS, HEADS, VOCABULARY, RANK = 2, 16, 32, 2, 4, 50, 4
TOKENS = BATCH * LENGTH

# Forward products of one GPT block, by what they are.
QKV = 2 * TOKENS * WIDTH * 3 * WIDTH
SCORES = VALUES = 2 * BATCH * LENGTH * LENGTH * WIDTH
PROJECTION = 2 * TOKENS * WIDTH * WIDTH
UP = DOWN = 2 * TOKENS * WIDTH * 4 * WIDTH
HEAD = 2 * TOKENS * WIDTH * VOCABULARY
BLOCK = QKV + SCORES + VALUES + PROJECTION + UP + DOWN
GPT_FORWARD = LAYERS * BLOCK + HEAD
# Every weight is trained and every activation needs a gradient, as the embedding is trained.
GPT_TRAINING = 3 * GPT_FORWARD


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    """Pre-norm attention and MLP, without biases in nothing but name."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.dropout(self.projection(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


class GPT(nn.Module):
    """Untied head; `recompute` is None, "reentrant" or "non-reentrant"."""

    def __init__(self, recompute: str | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recompute is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
        return self.head(x)


def lora_gpt(recompute: str | None = None) -> GPT:
    """Only the thin matrices beside qkv are trained, and the embedding where reentrant
    checkpointing needs an input with a gradient."""
    model = GPT(recompute).requires_grad_(False)
    for block in model.blocks:
        block.qkv = LoRALinear(block.qkv)
        block.qkv.down.requires_grad_(True)
        block.qkv.up.requires_grad_(True)
    model.embedding.requires_grad_(recompute == "reentrant")
    return model


def lora_training(trained_embedding: bool) -> int:
    """FLOPs of a step of `lora_gpt`: no weight gradients but the thin ones; no input gradient of
    the first block's qkv and `down` unless the embedding is trained."""
    down, up = 2 * TOKENS * WIDTH * RANK, 2 * TOKENS * RANK * 3 * WIDTH
    frozen_after_attention = 2 * (PROJECTION + UP + DOWN)
    attention = 3 * (SCORES + VALUES)
    thin_up = 3 * up
    first = (2 if trained_embedding else 1) * QKV + (3 if trained_embedding else 2) * down
    others = 2 * QKV + 3 * down
    blocks = LAYERS * (frozen_after_attention + attention + thin_up)
    return blocks + first + (LAYERS - 1) * others + 2 * HEAD


def tokens(batch: int = BATCH, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, length))


def train(
    model: nn.Module, steps: int, make_input: Callable[[], Any], accumulate: int = 1
) -> list[float]:
    """A plain training loop; return the losses."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(steps):
        for _ in range(accumulate):
            loss = model(make_input()).float().square().mean()
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def report() -> Report:
    """The report as it would be sent now."""
    found = flopwatch.status().report
    assert found is not None
    return found


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time
