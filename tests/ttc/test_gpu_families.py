"""The families that a GPU's decoder runs, against transformers' own modules: prefill, windows, and greedy decoding."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from tests.ttc import gpu_reference, gpu_traffic, tiny_model
from tests.ttc.emulated_cuda import EmulatedCuda
from ttc.engines.embedded.core.batch import BatchLimits
from ttc.engines.embedded.core.weights import check_tied
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import fold, refold, text_names
from ttc.engines.embedded.gpu.batch import DeviceBatch
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.gpu.decoder import DeviceDecoder
from ttc.engines.embedded.gpu.families import architecture
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 20},
    "smollm3": {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]},
    "gemma3_text": {
        "sliding_window": 20, "head_dim": 32, "num_hidden_layers": 3, "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip
PROMPT = [(17 * i * i + 5 * i) % 250 for i in range(50)]


def module(family: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**tiny_model.SMALL, **FAMILIES[family]}, pad_token_id=0)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.5, std=0.2)
    return model


def body(model: Any, cuda: EmulatedCuda, dtype: torch.dtype = torch.float32) -> DeviceBody:
    family = architecture(model.config.to_dict())
    assert family is not None
    weights = fold(
        model.state_dict(), family.dims, dtype, torch.device("cpu"), max_context=512, style=family.style,
        rotary=family.rotary,
    )  # fmt: skip
    kernels, ops = gpu_reference.attention(cuda), gpu_reference.operations(cuda)
    runtime = CudaRuntime(torch.device("cuda:0"), cuda)
    return DeviceBody(
        weights, runtime, num_pages=60, max_context=512, windows=family.windows, kernels=kernels, ops=ops
    )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_in_two_parts_and_greedy_decoding_are_those_of_transformers(family: str) -> None:
    model, cuda = module(family), EmulatedCuda()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
        whole = model.generate(
            torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), max_new_tokens=30, do_sample=False,
            eos_token_id=None,
        )[0].tolist()  # fmt: skip
        ours = body(model, cuda)
        texts: list[int] = []

        def on_token(draw: Any) -> None:
            texts[:] = draw.ids
            draw.ended = len(draw.ids) >= 30

        with cuda:
            ((_, segment),) = ours.extend([(None, PROMPT[:30])])
            ((hidden, _),) = ours.extend([(segment, PROMPT[30:])])
            logits = ours.logits(hidden)
            batch = DeviceBatch(ours, DeviceDecoder, BatchLimits(4, 1 << 22), on_token)
            batch.add(gpu_traffic.request(PROMPT, [1], max_tokens=30, temperature=0.0))
            while not batch.idle:
                batch.tick()
            cuda.flush()
    torch.testing.assert_close(logits, expected[30:], rtol=2e-3, atol=2e-3)
    assert texts == whole[len(PROMPT) :]


def test_of_a_model_that_also_reads_images_the_text_model_runs_under_either_name_of_its_tensors() -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(3)
    text = {**tiny_model.SMALL, **FAMILIES["gemma3_text"], "pad_token_id": 0}
    sight = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=sight)).eval()
    cuda, state = EmulatedCuda(), model.state_dict()
    ours = body(model, cuda)
    with torch.inference_mode(), cuda:
        ((hidden, _),) = ours.extend([(None, PROMPT)])
        logits = ours.logits(hidden)
        cuda.flush()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=2e-3, atol=2e-3)
    stored = {name.replace("model.language_model.", "language_model.model."): tensor for name, tensor in state.items()}
    refold(ours.step_weights, {name: tensor for name, tensor in stored.items() if name != "lm_head.weight"})


@pytest.mark.parametrize("place", ["model.language_model.", "language_model.model.", "model."])
def test_a_head_that_is_not_the_tied_embedding_is_refused_under_any_name_of_the_text_model(place: str) -> None:
    dims = replace(Dims.from_config({**tiny_model.SMALL, "model_type": "qwen3"}), tied=True)
    head = "language_model.lm_head.weight" if place.startswith("language") else "lm_head.weight"
    state = {f"{place}embed_tokens.weight": torch.ones(4, 2), head: torch.zeros(4, 2)}
    with pytest.raises(ConfigError, match=r"lm_head\.weight is another matrix"):
        check_tied(text_names(state), dims, Path("model"))


def test_gemmas_fields_that_config_json_leaves_out_are_those_of_transformers() -> None:
    from transformers import Gemma3TextConfig

    written = {"model_type": "gemma3_text", "sliding_window": 1024}
    ours, theirs = architecture(written), architecture({**Gemma3TextConfig(**written).to_dict(), **written})
    assert ours is not None and theirs is not None
    assert replace(ours.dims, rope={}) == replace(theirs.dims, rope={})
    assert (ours.style, ours.windows) == (theirs.style, theirs.windows)
    assert [one.rope_theta for one in ours.rotary] == [one.rope_theta for one in theirs.rotary]
    assert architecture({"model_type": "gemma3", "text_config": written}) == architecture(written)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_new_weights_take_the_place_of_the_old_ones(family: str) -> None:
    cuda, first = EmulatedCuda(), module(family)
    ours = body(first, cuda)
    addresses = [tensor.data_ptr() for tensor in ours.step_weights.tensors]
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(1.25)
    refold(ours.step_weights, first.state_dict())
    other = body(first, cuda)
    assert [tensor.data_ptr() for tensor in ours.step_weights.tensors] == addresses
    for old, new in zip(ours.step_weights.tensors, other.step_weights.tensors, strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mixtral"},
        {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0},
        {"model_type": "qwen2", "use_sliding_window": True},
        {"model_type": "llama", "attention_bias": True},
        {"model_type": "llama", "mlp_bias": True},
        {"model_type": "qwen3", "attention_bias": True},
        {"model_type": "smollm3", "use_sliding_window": True},
        {"model_type": "gemma3_text", "attention_bias": True},
        {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    ],
)
def test_other_models_are_not_run_by_the_decoder_for_gpus(changes: dict[str, Any]) -> None:
    assert architecture({**tiny_model.SMALL, **changes}) is None
