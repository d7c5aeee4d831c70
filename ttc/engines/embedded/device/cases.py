"""The kernels of this folder as cases for an ahead-of-time compiler: one of each common shape.

(name, kernel, signature, constexprs, options): `triton.compile(ASTSource(kernel, signature, constexprs), ...)`. Shapes
are those of Qwen2.5-0.5B and 7B and Qwen3-8B; the vocabulary's blocks are those of 152k entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttc.engines.embedded.device import rows as record
from ttc.engines.embedded.device.activate import activate_block
from ttc.engines.embedded.device.buffers import BLOCK, NUM_STATS, WARPS
from ttc.engines.embedded.device.draw import LAUNCH, draw_row
from ttc.engines.embedded.device.embed import embed_row
from ttc.engines.embedded.device.norm import norm_row
from ttc.engines.embedded.device.project import project_group
from ttc.engines.embedded.device.shape import PAGE
from ttc.engines.embedded.device.survey import survey_block

Case = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]


_PLAIN: Mapping[str, int] = {"num_warps": 4}


def _types(**names: str) -> dict[str, str]:
    """Map each type's names to the type; `_case` sorts them in the order of the kernel's parameters."""
    return {name: kind.replace("_", "*") for kind, joined in names.items() for name in joined.split()}


def _case(
    name: str, kernel: Any, types: dict[str, str], constexprs: dict[str, Any], options: Mapping[str, int] = _PLAIN
) -> Case:
    kinds = types | dict.fromkeys(constexprs, "constexpr")
    return name, kernel, {parameter: kinds[parameter] for parameter in kernel.arg_names}, constexprs, dict(options)


def _project(
    name: str, dtype: str, group: int, kv_heads: int, half: int, *, bias: bool, norm: bool, folded: bool
) -> Case:
    types = _types(
        fp32="eps scale",
        _fp32="bias q_norm k_norm cos sin",
        i32="hidden",
        _i32="positions slots",
        **{f"_{dtype}": "qkv x q keys values"},
    )
    pad = 1 << (group - 1).bit_length()
    sizes = {"GROUP": group, "KV_HEADS": kv_heads, "HALF": half, "HEADS_PAD": pad, "HALF_PAD": half, "PAGE": PAGE}
    return _case(name, project_group, types, sizes | {"BIAS": bias, "NORM": norm, "FOLDED": folded})


def _embed(name: str) -> Case:
    types = _types(_i32="inputs state positions slots turn", _bf16="table x", fp32="scale", i32="stride hidden")
    return _case(name, embed_row, types, {"FIELDS": record.FIELDS, "SLOT": record.SLOT, "PAGE": PAGE, "BLOCK": 1024})


def _norm(name: str, place: int) -> Case:
    types = _types(_bf16="x y out", _fp32="weight", i32="hidden", fp32="eps")
    return _case(name, norm_row, types, {"PLACE": place, "BLOCK": 1024})


def _activate(name: str, *, gelu: bool, folded: bool) -> Case:
    types = _types(_bf16="gate_up x out", i32="hidden intermediate", fp32="eps")
    return _case(name, activate_block, types, {"GELU": gelu, "FOLDED": folded, "BLOCK": 1024})


def _survey(name: str) -> Case:
    types = _types(_bf16="logits", _i32="masks presence inputs positions", _fp32="stats", i32="stride words vocab")
    sizes = {"INVERSE": record.INVERSE, "PENALTY": record.PENALTY, "WANTS": record.WANTS, "MASK": record.MASK}
    return _case(name, survey_block, types, sizes | {"NUM_STATS": NUM_STATS, "BLOCK": BLOCK}, {"num_warps": WARPS})


def _draw(name: str) -> Case:
    types = _types(
        _bf16="logits",
        _fp32="stats",
        _i32="masks presence inputs state positions turn output",
        i32="stride words vocab ahead all_rows num_blocks",
    )
    names = ("INVERSE", "TOP_P", "TOP_K", "MIN_P", "PENALTY", "KEY", "WANTS", "MASK", "STOPS", "NUM_STOPS")
    sizes = {name: getattr(record, name) for name in names}
    sizes |= {"NUM_STATS": NUM_STATS, "BLOCK": BLOCK, "BLOCKS": 128, "PIVOTS": 8}
    return _case(name, draw_row, types, sizes, LAUNCH)


KERNELS: list[Case] = [
    _embed("embed"),
    _project("project 0.5B bf16", "bf16", 7, 2, 32, bias=True, norm=False, folded=True),
    _project("project 7B bf16", "bf16", 7, 4, 64, bias=True, norm=False, folded=True),
    _project("project 7B fp16", "fp16", 7, 4, 64, bias=True, norm=False, folded=False),
    _project("project Qwen3-8B bf16", "bf16", 4, 8, 64, bias=False, norm=True, folded=True),
    _activate("activate SiLU", gelu=False, folded=True),
    _activate("activate GELU", gelu=True, folded=True),
    _norm("norm plain", 0),
    _norm("norm before", 1),
    _norm("norm behind", 2),
    _survey("survey 152k"),
    _draw("draw 152k"),
]
