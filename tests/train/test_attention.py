"""Attention while training: fp32 inside on a CPU without AMX, with the numbers, masks and gradients of torch's own."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from train.base.models import Shape, load_model, new_model, save_model, speed_attention
from train.update.logprobs import families, laid_hidden, worth_sharing

pytestmark = pytest.mark.numeric


@pytest.fixture
def without_amx(monkeypatch):
    capabilities = {**torch.cpu.get_capabilities(), "amx_tile": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)


def test_torchs_own_is_kept_on_a_gpu_and_on_a_cpu_with_amx(nano, without_amx, monkeypatch):
    model = new_model(Shape(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24), nano, 0)
    speed_attention(model, "cuda:1")
    assert model.config._attn_implementation == "sdpa"
    speed_attention(model, "cpu")
    assert model.config._attn_implementation != "sdpa"
    model.set_attn_implementation("sdpa")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True})
    speed_attention(model, "cpu")
    assert model.config._attn_implementation == "sdpa"


LLAMA = {"num_key_value_heads": 2, "head_dim": 16}


@pytest.mark.parametrize(
    ("name", "own", "before", "after"),
    [
        ("llama", LLAMA, "sdpa", "ttc_fp32"),
        ("llama", LLAMA, "eager", "eager"),
        ("gemma2", LLAMA, "eager", "eager"),
        ("falcon", {}, "sdpa", "sdpa"),
        ("gptj", {"rotary_dim": 4}, "eager", "eager"),
    ],
)
def test_a_model_whose_own_code_names_its_attention_keeps_it(name, own, before, after, without_amx):
    sizes = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes, **own), attn_implementation=before)
    speed_attention(model, "cpu")
    assert model.config._attn_implementation == after
    with torch.autocast("cpu", torch.bfloat16):
        assert model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.isfinite().all()


def test_a_model_that_caps_the_scores_of_its_attention_is_trained_with_the_cap(tmp_path, without_amx):
    sizes = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, **LLAMA}
    config = AutoConfig.for_model("gemma2", **sizes, attn_logit_softcapping=0.01, initializer_range=1.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.save_pretrained(tmp_path)
    ids = torch.arange(12)[None]
    assert torch.allclose(load_model(tmp_path, "cpu")(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)


def models(nano, folder):
    model = new_model(Shape(hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, mlp=64), nano, 0)
    save_model(model, nano, folder, torch.float32)
    ours = load_model(folder, "cpu")
    own = copy.deepcopy(ours)
    own.set_attn_implementation("sdpa")
    return ours, own


def passed(model, ids, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    hidden.float().square().sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return hidden.detach().float(), gradient


def test_in_fp32_every_bit_is_that_of_torchs_own(nano, tmp_path, without_amx):
    ours, own = models(nano, tmp_path / "model")
    ids = torch.randint(1, len(nano), (3, 20), generator=torch.Generator().manual_seed(1))
    (hidden, gradient), (expected, slope) = (passed(model, ids, False) for model in (ours, own))
    assert torch.equal(hidden, expected) and torch.equal(gradient, slope)


def test_under_autocast_it_is_no_further_from_fp32_than_torchs_own(nano, tmp_path, without_amx):
    ours, own = models(nano, tmp_path / "model")
    ids = torch.randint(1, len(nano), (3, 20), generator=torch.Generator().manual_seed(1))
    exact, gradient = passed(own, ids, False)
    for number, truth in enumerate((exact, gradient)):
        errors = [(passed(model, ids, True)[number] - truth).norm() / truth.norm() for model in (ours, own)]
        assert errors[0] < 1.1 * errors[1] < 0.05


def test_beginnings_are_computed_once_under_it_too(nano, tmp_path, without_amx):
    ours, _ = models(nano, tmp_path / "model")
    maker = torch.Generator().manual_seed(2)
    ids = torch.randint(1, len(nano), (4, 60), generator=maker)
    ids[:, :50] = ids[0, :50]
    wanted = torch.arange(59).expand(4, 59) >= 49
    groups = worth_sharing(ours, ids, wanted)
    assert len(groups) == 1 and groups == families(ids, wanted)
    with torch.no_grad():
        whole = ours.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[wanted]
        laid = laid_hidden(ours, ids, wanted, groups, groups[0].size)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = laid_hidden(ours, ids, wanted, groups, groups[0].size)
    assert (whole - laid).abs().max() < 1e-5
    assert (whole - rounded).norm() < 0.02 * whole.norm()
