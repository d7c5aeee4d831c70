"""Families that transformers computes with the engine's attention: each draw is the model's; branches share keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ttc import tiny_model
from tests.ttc.test_recurrent import ask, disagreements, draw
from ttc.engines.embedded.core import transformers_module, weights
from ttc.engines.embedded.core.fallback import FallbackBody
from ttc.engines.embedded.core.transformers_body import TransformersBody
from ttc.engines.embedded.core.transformers_module import PackedLinear, load_state, pack
from ttc.engines.embedded.engine import EmbeddedEngine, embedded
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 8}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 24},
    "gemma3_text": {
        **{"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "granite": {"attention_multiplier": 0.2, "logits_scaling": 4.0, "residual_multiplier": 0.7},
    "cohere": {"logit_scale": 0.25},
    "phi": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "gpt2": {"n_embd": 40, "n_head": 4, "n_layer": 2, "n_positions": 512},
    "qwen3_moe": {"num_experts": 4, "head_dim": 16, **_EXPERTS},
    "deepseek_v3": {
        **{"num_key_value_heads": 4, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
        **_LATENT, **_EXPERTS,
    },
}  # fmt: skip
"""Windows in all layers, and in some; scales; unrotated parts; learned positions, and heads of ten numbers; experts;
values smaller than keys."""


def body_of(engine: EmbeddedEngine) -> Any:
    return engine._scheduler.body


@pytest.mark.parametrize("family", FAMILIES)
def test_every_draw_is_what_the_forward_pass_prefers_first_again_and_on_branches(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tiny_model.build(tmp_path, family, **FAMILIES[family])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    engine = embedded(str(tmp_path), dtype="float32", device="cpu")
    assert isinstance(body_of(engine), TransformersBody)

    async def go() -> list[tuple[Any, tuple[int, ...]]]:
        prompts = [ask(engine, "short"), ask(engine, "one that is longer " * 6)]
        texts: list[tuple[Any, tuple[int, ...]]] = []
        for _ in range(2):
            results = await asyncio.gather(*(draw(engine, prompt, 20, 2) for prompt in prompts))
            texts += [(p, d.token_ids) for p, done in zip(prompts, results, strict=True) for d in done]
        (step,) = await draw(engine, prompts[1], 5)
        branch = prompts[1].then(step)
        texts += [(branch, d.token_ids) for d in await draw(engine, branch, 40, 6)]
        forced = replace(branch, token_ids=(*branch.token_ids, 40, 41, 42))  # as a strategy adds words of its own
        texts += [(forced, d.token_ids) for d in await draw(engine, forced, 6, 2)]
        await engine.close()
        return texts

    assert not [wrong for text in asyncio.run(go()) if (wrong := disagreements(model, *text))]


def test_branches_share_the_keys_of_their_prompt(tmp_path: Path) -> None:
    engine = embedded(str(tiny_model.build(tmp_path, "phi")), dtype="float32", device="cpu")
    prompt = ask(engine, "a prompt that all branches read " * 12)

    async def go() -> int:
        drawn = asyncio.ensure_future(draw(engine, prompt, 40, 16))
        most = 0
        while not drawn.done():
            most = max(most, await asyncio.wrap_future(engine._scheduler.call(lambda: body_of(engine).pool.num_tokens)))
        await engine.close()
        return most

    assert len(prompt.token_ids) < asyncio.run(go()) < 2 * len(prompt.token_ids) + 16 * (40 + 3 * 16)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "llama4_text", "lfm2"])
def test_a_model_with_another_kind_of_attention_keeps_that_of_transformers(family: str, tmp_path: Path) -> None:
    """Caps of scores, sinks, chunks, convolutions."""
    changes = {
        "gemma2": {"head_dim": 16, "attn_logit_softcapping": 5.0},
        "gpt_oss": {"head_dim": 16, "num_local_experts": 4},
        "llama4_text": {
            "head_dim": 16,
            "num_local_experts": 2,
            "intermediate_size_mlp": 64,
            "attention_chunk_size": 32,
        },
        "lfm2": tiny_model.RECURRENT["lfm2"],
    }
    tiny_model.build(tmp_path, family, **changes[family])
    engine = embedded(str(tmp_path), dtype="float32", device="cpu")
    body = body_of(engine)
    asyncio.run(engine.close())
    assert isinstance(body, FallbackBody)
    assert body.module.config._attn_implementation in {"eager", "sdpa"}


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("family", [*FAMILIES, *tiny_model.RECURRENT])
def test_a_model_computes_the_same_with_matrices_in_the_layout_of_the_cpu(
    family: str, both: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(weights, "_LARGE", 0)
    monkeypatch.setattr(transformers_module, "is_small", lambda *_: both)
    tiny_model.build(tmp_path, family, **{**FAMILIES, **tiny_model.RECURRENT}[family])
    module = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.arange(40).view(2, 20)
    with torch.inference_mode():
        before = module(ids, use_cache=False).logits
        pack(module)
        assert any(isinstance(part, PackedLinear) for part in module.modules())
        assert torch.allclose(module(ids, use_cache=False).logits, before, atol=1e-3)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_model_that_reads_ahead_is_refused_in_16_bits_too(family: str, tmp_path: Path) -> None:
    tiny_model.build(tmp_path, family)
    with pytest.raises(ConfigError, match=f"a {family} model attends to later tokens"):
        embedded(str(tmp_path), dtype="bfloat16", device="cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_new_weights_reach_matrices_in_the_layout_of_the_cpu(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(weights, "_LARGE", 1000)
    tiny_model.build(tmp_path, "phi", tie_word_embeddings=tied)
    module, other = (AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval() for _ in range(2))
    ids = torch.arange(40).view(4, 10)
    with torch.inference_mode():
        before = module(ids).logits
        pack(module)
        assert isinstance(module.lm_head, PackedLinear)
        assert torch.allclose(module(ids).logits, before, atol=1e-4)
        for parameter in other.parameters():
            parameter.mul_(1.1)
        state = {name: tensor for name, tensor in other.state_dict().items() if not (tied and name == "lm_head.weight")}
        load_state(module, state)
        assert torch.allclose(module(ids).logits, other(ids).logits, atol=1e-4)
    del state["model.layers.1.mlp.fc1.weight"]
    with pytest.raises(ConfigError, match=r"the new weights lack \['model\.layers\.1\.mlp\.fc1\.weight'\]"):
        load_state(module, state)
