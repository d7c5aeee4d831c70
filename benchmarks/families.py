"""Which model families the embedded engine runs, and whether it draws what transformers draws.

    python -m benchmarks.families [--only llama qwen3_moe ...] [--json benchmarks/results/families.json]

Every causal language model that transformers knows, and every model that also reads images, is made tiny, with random
weights (times 2.5, so that predictions differ from token to token), and loaded by the embedded engine on a CPU in fp32.
Three prompts of 5, 40 and 130 tokens are decoded together and greedily, twice (the second time from cached keys), and
one of the answers is continued as a branch of a search would be. Each token is compared with the largest logit of
transformers' forward pass over the whole text, without a cache; a difference where its two largest logits are closer
than 1e-4 is rounding.

`core` is what runs the model: the engine's own code, transformers' modules with the engine's attention
(`ttc.engines.embedded.core.transformers_body`), or those alone (`fallback`). A family that the engine refuses is listed
with its error. `on_a_gpu` is what would run it on a GPU.
Encoders with a language-model head are listed by transformers, too. Left out: families whose configuration these few
sizes do not fit (`not_made`), and what a model of images or speech reads besides text. The last
lines that are printed are the table of benchmarks/README.md. Cost: 15 minutes of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import copy
from typing import Any, NamedTuple

import torch

from benchmarks.beside_trl import facts
from benchmarks.machine import machine
from ttc.core import Engine, Message, Prompt, Sampling
from ttc.engines.embedded.core.fallback import FallbackBody
from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.transformers_body import TransformersBody
from ttc.engines.embedded.engine import embedded
from ttc.engines.embedded.gpu.families import architecture
from ttc.engines.shared.folder import generator_folder
from ttc.engines.shared.shape import read_config
from ttc.errors import ConfigError

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
TOKENS, BRANCH, CLOSE = 12, 5, 1e-4
LENGTHS = (5, 40, 130)
SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 1024),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 8),
    **{"num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"sliding_window": 48, "index_topk": 24, "depth": 2, "out_hidden_size": 64},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "tie_word_embeddings": False},
}
"""Sizes under the names that families give them; a family takes those that its configuration has.

Where a family mixes kinds of layers, the small model has one of each.
"""

TURNING: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_ocr_text", "glmga_text"), (2, 3, 3)),
    **dict.fromkeys(("paddleocr_vl_text", "hunyuan_vl_text"), (2, 3, 3)),
    "glm4v_moe_text": (2, 1, 1),
}
"""How many of a head's angles turn with time, height and width, in families where they do."""

LATENT: Mapping[str, Any] = {"num_key_value_heads": 4, "head_dim": 8}
"""Of families with latent attention: as many key heads as query heads; `head_dim` is the rotated part's."""

_STATES: Mapping[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_chunk_size": 32}
_LINEAR: Mapping[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
_SHARING: Mapping[str, Any] = {
    **{"num_hidden_layers": 4, "num_kv_shared_layers": 2, "intermediate_size": 96},
    **{"layer_types": ["sliding_attention", "full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 4},
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**_STATES, "attn_layer_indices": [1]},
    "falcon_h1": {**_STATES, "mamba_d_ssm": 128, "lm_head_multiplier": 0.5},
    "gemma3n": _SHARING,
    "gemma3n_text": _SHARING,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 48},
    "granitemoehybrid": {**_STATES, **_LINEAR},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {**_LINEAR, "num_experts_per_token": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "chunk_size": 32},
    "nemotron_h": {
        "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 1, "chunk_size": 32
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 48},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "linear_attention"]},
    "zamba2": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
        "n_mamba_heads": 4, "mamba_headdim": 32, "mamba_d_state": 16, "chunk_size": 32,
    },
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid"]},
}  # fmt: skip
"""Settings of single families, most of them so that a small model holds every kind of layer."""


CORES: Mapping[type[Body], str] = {Body: "own", TransformersBody: "attention", FallbackBody: "transformers"}
"""What the engine computes itself: everything, attention, or nothing."""


class Difference(NamedTuple):
    """The first token that differs: of which text, and by how much transformers preferred its own."""

    text: str
    token: int
    margin: float


def families(*, seeing: bool) -> frozenset[str]:
    """The families that transformers lists as models of text alone, or as models that also read images."""
    from transformers.models.auto import modeling_auto as auto

    lists = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return frozenset(lists[seeing]) - {"t5gemma2"}  # reads with an encoder, whose sizes fill all memory


def fitted(names: Mapping[str, Any], vocab: int) -> dict[str, Any]:
    """The sizes for a configuration with these fields, and for the parts of one that also reads images or speech."""
    known = {**SIZES, **(LATENT if "kv_lora_rank" in names else {}), "vocab_size": vocab}
    sizes = {name: size for name, size in known.items() if name in names}
    if len(set(names.get("layer_types") or ())) > 1:
        sizes["layer_types"] = list(dict.fromkeys(names["layer_types"]))
    parts = {name: fitted(part, vocab) for name, part in names.items() if isinstance(part, dict) and "config" in name}
    if (angles := TURNING.get(names.get("model_type", ""))) is not None:
        sizes["rope_parameters"] = {**names["rope_parameters"], "mrope_section": list(angles)}
    return sizes | parts


def tiny(family: str, folder: Path, head: str = "", **settings: Any) -> Any:
    """A random model of a family, saved with the tokenizer of the packaged teacher.

    Its head is transformers' for text, with eyes where the family has them, unless it is named.
    """
    import transformers
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    names = kind().to_dict()
    teacher = generator_folder(None)
    vocab = json.loads((teacher / "config.json").read_text("utf-8"))["vocab_size"]
    config = kind(**{**fitted(names, vocab), **KINDS.get(family, {}), **settings})
    torch.manual_seed(0)
    head = head or ("ImageTextToText" if family in families(seeing=True) else "CausalLM")
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.5)
    if model.can_generate():
        model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    for name in TOKENIZER:
        copy(teacher / name, folder / name)
    return model


async def drawn(engine: Engine, ids: tuple[int, ...], tokens: int, path: tuple[int, ...]) -> tuple[int, ...]:
    """Draw greedily."""
    prompt = Prompt("", ids, path, rendered_len=len(ids), messages=(Message("user", ""),), problem_id=str(len(ids)))
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    (completion,) = await engine.generate(prompt, sampling, range(1), lambda usage: None)
    return completion.token_ids


@torch.inference_mode()
def difference(model: Any, name: str, ids: Sequence[int], answer: Sequence[int]) -> Difference | None:
    """Where `answer` after `ids` is not what transformers prefers, beyond rounding."""
    logits = model(torch.tensor([[*ids, *answer]]), use_cache=False).logits[0, len(ids) - 1 : -1]
    for at, (row, token) in enumerate(zip(logits, answer, strict=True)):
        margin = float(row.max() - row[token])
        if margin > CLOSE:
            return Difference(name, at, margin)
    return None


async def compare(folder: Path, model: Any, vocab: int) -> dict[str, Any]:
    """Load the folder into the engine and compare all texts; raises ConfigError where the engine refuses it."""
    generator = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(3, vocab, (length,), generator=generator).tolist()) for length in LENGTHS]
    engine: Any = embedded(str(folder), device="cpu", dtype="float32", threads=1)
    try:
        texts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for turn in ("anew", "from the cache"):
            answers = await asyncio.gather(*(drawn(engine, ids, TOKENS, ()) for ids in prompts))
            texts |= {f"{len(ids)} {turn}": (ids, answer) for ids, answer in zip(prompts, answers, strict=True)}
        path = (*prompts[1], *answers[1][:BRANCH])
        texts["branch"] = path, await drawn(engine, path, TOKENS - BRANCH, (0,))
        core = CORES[type(engine._scheduler.body)]
    finally:
        await engine.close()
    differences = [difference(model, name, *text) for name, text in texts.items()]
    return {"core": core, "texts": len(texts), "different": [one._asdict() for one in differences if one]}


def row(family: str, scratch: Path) -> dict[str, Any]:
    """One family: what runs it, and where it differs; or why it is refused, or was not made."""
    folder = scratch / family
    try:
        model = tiny(family, folder)
        vocab = int(model.config.get_text_config().vocab_size)  # robots' models have none
    except Exception as exc:  # whatever a family asks of its sizes: it is reported as not made
        return {"family": family, "not_made": f"{type(exc).__name__}: {exc}"[:300]}
    config = read_config(folder)
    on_a_gpu = "own" if architecture(config) else "transformers"
    try:
        return {"family": family, "on_a_gpu": on_a_gpu, **asyncio.run(compare(folder, model, vocab))}
    except ConfigError as exc:
        return {"family": family, "refused": str(exc).replace(f"{folder}: ", "")}


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The families by what came of them, as rows of a table."""
    seeing, refusals = families(seeing=True), [one for one in rows if "refused" in one]
    apart = [one for one in refusals if re.search("different lengths|later tokens", one["refused"])]
    own = [one for one in refusals if "cache of its own kind" in one["refused"]]
    through = [one for one in rows if one.get("core") == "transformers"]
    attention = [one for one in rows if one.get("core") == "attention"]
    kinds = {
        "the engine's own code": [one for one in rows if one.get("core") == "own"],
        "the same on a GPU": [one for one in rows if one.get("on_a_gpu") == "own"],
        "transformers' modules with the engine's attention": [one for one in attention if one["family"] not in seeing],
        "these, texts of models that also read images": [one for one in attention if one["family"] in seeing],
        "transformers' modules": [one for one in through if one["family"] not in seeing],
        "the same, texts of models that also read images": [one for one in through if one["family"] in seeing],
        "different": [one for one in rows if one.get("different")],
        "refused: attends to later tokens, or cannot decode texts of different lengths together": apart,
        "refused: a cache of its own kind": own,
        "refused: other reasons": [one for one in refusals if one not in apart + own],
        "not made: these few sizes do not fit": [one for one in rows if "not_made" in one],
    }
    for kind, members in kinds.items():
        yield f"| {kind} ({len(members)}) | {', '.join(one['family'] for one in members)} |"


def sweep(
    text: str | None,
    names: Collection[str],
    one: Callable[[str, Path], dict[str, Any]],
    lines: Callable[[Sequence[Mapping[str, Any]]], Iterator[str]],
) -> None:
    """Print the report of each family, and a table of all; those in --only replace their rows of --json."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="FAMILY")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {"machine": machine(), **facts()}
    if args.only and args.json and args.json.is_file():
        report = json.loads(args.json.read_text("utf-8"))
        rows = {row["family"]: row for row in report["rows"]}
    for family in args.only or sorted(names):
        with tempfile.TemporaryDirectory() as scratch:
            rows[family] = one(family, Path(scratch))
        rows[family] |= {"commit": facts()["commit"]} if args.only else {}
        print(json.dumps(rows[family]), flush=True)
        if args.json:
            report["rows"] = list(rows.values())
            args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for line in lines(list(rows.values())):
        print(line)


if __name__ == "__main__":
    sweep(__doc__, families(seeing=False) | families(seeing=True), row, table)
