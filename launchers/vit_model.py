"""A compact vision transformer in plain torch, in the shapes of the published ViT models with patches of 32 pixels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

IMAGE_SIZE, PATCH_SIZE, N_CHANNELS = 224, 32, 3
_N_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2


class Shape(NamedTuple):
    """What distinguishes one model from another."""

    width: int
    depth: int
    n_heads: int
    mlp_width: int
    n_classes: int


SHAPES = {
    "tiny": Shape(128, 4, 4, 512, 100),  # for CPUs and tests: 1.2 million parameters
    "small": Shape(384, 12, 6, 1536, 1000),  # ViT-S/32, 23 million
    "base": Shape(768, 12, 12, 3072, 1000),  # ViT-B/32, 88 million
    "large": Shape(1024, 24, 16, 4096, 1000),  # ViT-L/32, 306.5 million
}


class Block(nn.Module):
    """Attention and a two-layer network, each behind a layer norm and added to what went in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_heads = shape.n_heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp_in = nn.Linear(shape.width, shape.mlp_width)
        self.mlp_out = nn.Linear(shape.mlp_width, shape.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, width) to the same shape."""
        tokens = tokens + self._attend(self.attention_norm(tokens))
        return tokens + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(tokens))))

    def _attend(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, width = tokens.shape
        heads = self.queries_keys_values(tokens).view(batch, length, 3, self.n_heads, -1)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        return self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))


class VisionTransformer(nn.Module):
    """Classifies images of 8-bit channels, 224 pixels square."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.patches = nn.Conv2d(N_CHANNELS, shape.width, PATCH_SIZE, PATCH_SIZE)
        self.class_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.positions = nn.Parameter(torch.randn(1, _N_PATCHES + 1, shape.width) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.n_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (batch, 3, 224, 224) bytes to (batch, classes) scores."""
        scaled = images.to(self.patches.weight.dtype) / 127.5 - 1
        patches = self.patches(scaled).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(patches), -1, -1)
        tokens = torch.cat([first, patches], dim=1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens[:, 0]))
