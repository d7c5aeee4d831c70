"""A tiny decoder for tests of the device step: random weights, paged attention in torch, a pool of pages, an oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.rows import FIELDS, FIRST
from ttc.engines.embedded.device.shape import PAGE, fold
from ttc.engines.shared.shape import QKV, Dims, rope_tables

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
    "max_position_embeddings": 512,
}


def random_state(dims: Dims) -> dict[str, torch.Tensor]:
    """Tensors under Hugging Face names."""
    random = torch.Generator().manual_seed(0)
    queries, keys, hidden, inner = (
        *(dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim),
        *(dims.hidden, dims.intermediate),
    )
    shapes = {"embed_tokens.weight": (dims.vocab, hidden), "norm.weight": (hidden,)}
    if not dims.tied:
        shapes["lm_head.weight"] = (dims.vocab, hidden)
    for i in range(dims.num_layers):
        at = f"layers.{i}."
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
            if f"{name}_proj" in dims.biased:
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, queries)
        shapes[f"{at}mlp.gate_proj.weight"] = shapes[f"{at}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{at}mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{at}input_layernorm.weight"] = shapes[f"{at}post_attention_layernorm.weight"] = (hidden,)
        if dims.qk_norm:
            shapes[f"{at}self_attn.q_norm.weight"] = shapes[f"{at}self_attn.k_norm.weight"] = (dims.head_dim,)
    state = {f"model.{name}": torch.randn(shape, generator=random) * 0.5 for name, shape in shapes.items()}
    return {name: t + ("norm" in name) for name, t in state.items()}


class Model:
    """Weights of a step, and the family's own equations over the same tensors, one whole text at a time, in float64."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: torch.device = CPU, **changes: Any) -> None:
        self.dims = replace(Dims.from_config({**CONFIG, **changes}), biased=QKV)
        state = random_state(self.dims)
        self.weights = fold(state, self.dims, dtype, device, max_context=512)
        self.state = {name.removeprefix("model."): tensor.double() for name, tensor in state.items()}
        self.cos, self.sin = (table.double()[:, None] for table in rope_tables(self.dims, 512))

    def run(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (tokens, vocab), and keys and values (layers, 2, kv heads, tokens, head size)."""
        dims, state, states = self.dims, self.state, []
        x = state["embed_tokens.weight"][ids]
        for i in range(dims.num_layers):
            at = f"layers.{i}."
            q, k, v = self._project(_norm(x, state[f"{at}input_layernorm.weight"], dims.eps), f"{at}self_attn.")
            states.append(torch.stack((k, v)))
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + heads.transpose(0, 1).reshape(len(ids), -1) @ state[f"{at}self_attn.o_proj.weight"].t()
            y = _norm(x, state[f"{at}post_attention_layernorm.weight"], dims.eps)
            gate, up = (y @ state[f"{at}mlp.{name}_proj.weight"].t() for name in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ state[f"{at}mlp.down_proj.weight"].t()
        x = _norm(x, state["norm.weight"], dims.eps)
        return x @ state["embed_tokens.weight" if dims.tied else "lm_head.weight"].t(), torch.stack(states)

    def _project(self, x: torch.Tensor, at: str) -> list[torch.Tensor]:
        """q, k, v, each (heads, tokens, head size), normed and turned."""
        parts = []
        for name in "qkv":
            y = x @ self.state[f"{at}{name}_proj.weight"].t() + self.state[f"{at}{name}_proj.bias"]
            y = y.view(len(x), -1, self.dims.head_dim)
            if name != "v":
                if self.dims.qk_norm:
                    y = _norm(y, self.state[f"{at}{name}_norm.weight"], self.dims.eps)
                y = y * self.cos[: len(x)] + y.roll(self.dims.head_dim // 2, -1) * self.sin[: len(x)]
            parts.append(y.transpose(0, 1))
        return parts


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class PagePool:
    """Keys and values (layers, pages, kv heads, PAGE, head size), and attention over the pages of a row's record."""

    def __init__(self, dims: Dims, num_pages: int, dtype: torch.dtype = torch.float32) -> None:
        shape = (dims.num_layers, num_pages, dims.num_kv_heads, PAGE, dims.head_dim)
        self.keys, self.values = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        self.free = list(range(num_pages))[::-1]

    def grow(self, num_pages: int) -> None:
        """A larger pool, as an engine makes when it is given more memory: the old tensors are dropped."""
        old = self.keys, self.values
        shape = (old[0].shape[0], num_pages, *old[0].shape[2:])
        self.keys, self.values = (torch.full(shape, float("nan"), dtype=old[0].dtype) for _ in range(2))
        self.keys[:, : old[0].shape[1]], self.values[:, : old[1].shape[1]] = old
        for tensor in old:
            tensor.fill_(float("nan"))  # memory that is given up belongs to others
        self.free = [*range(num_pages - 1, old[0].shape[1] - 1, -1), *self.free]

    @property
    def held(self) -> tuple[torch.Tensor, ...]:
        return self.keys, self.values

    variant = None

    def send(self, parity: int) -> None:
        """There is no plan but the records."""

    def pages(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[layer], self.values[layer]

    def __call__(self, layer: int, q: torch.Tensor, buffers: StepBuffers) -> torch.Tensor:
        rows, heads, size = q.shape
        places = buffers.positions - buffers.inputs[:, FIRST]
        runs = buffers.positions >= 0
        table = torch.where(runs[:, None], buffers.inputs[:, FIELDS:], 0).long()  # (rows, width)
        keys, values = (
            pool[layer][table].transpose(2, 3).reshape(rows, -1, pool.shape[2], size)
            for pool in (self.keys, self.values)
        )  # (rows, width * PAGE, kv heads, head size)
        seen = (torch.arange(keys.shape[1])[None] <= places[:, None]) & runs[:, None]
        values = torch.where(seen[:, :, None, None], values, 0.0)
        grouped = q.view(rows, keys.shape[2], -1, size)
        scores = torch.einsum("rgqd,rkgd->rgqk", grouped, keys)
        scores = torch.where(seen[:, None, None], scores, -1e30)
        return torch.einsum("rgqk,rkgd->rgqd", torch.softmax(scores, -1), values).reshape(rows, heads, size)
