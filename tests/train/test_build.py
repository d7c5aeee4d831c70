"""Adapters, gradient checkpointing and bf16: how a model is held does not change what is computed."""

import json
import shutil
import weakref

import pytest
import torch

from tests import qwen_like
from tests.train.cipher_base import STEPS, SYMBOLS
from tests.train.stages import make_stage, metrics_of, setting
from train.base.models import Shape, load_model, load_tokenizer, loaded, new_model, save_model
from train.base.weights import LoraLinear, add_lora, layers_of, merged_state
from train.update.batch import pad
from train.update.logprobs import token_logprobs
from train.update.update import Build
from ttc.engines.shared.compute import cpu_prefers_bf16
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"
IDS = pad([(5, 18, 21, 3, 9, 8, 1), (6, 19, 21, 10, 1)], 0)
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0]], dtype=torch.bool)


def scored(model):
    return token_logprobs(model, IDS, MASK).logprobs


def loss_of(model):
    model.zero_grad()
    loss = -scored(model.train()).sum()
    loss.backward()
    return loss


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_an_adapted_model_starts_as_the_model_and_trains_its_adapters_alone(cipher_model):
    plain, model = load_model(cipher_model, "cpu"), Build(lora=2).load(cipher_model, "cpu", 1)
    assert torch.equal(scored(model.eval()), scored(plain.eval()))
    loss_of(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {n for n, p in model.named_parameters() if p.grad is not None}
    assert all(name.endswith((".up", ".down")) for name in trained)
    assert sum(isinstance(module, LoraLinear) for module in model.modules()) == 14  # 7 in each of 2 layers, no head


def test_a_merged_folder_is_a_plain_model_that_says_the_same(cipher_model, tmp_path):
    model = load_model(cipher_model, "cpu").eval()
    names = set(model.state_dict())
    add_lora(model, 3, 5.0, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    assert set(merged_state(model)) == names
    save_model(model, load_tokenizer(cipher_model), tmp_path)
    merged = load_model(tmp_path, "cpu").eval()
    assert not torch.allclose(scored(merged), scored(load_model(cipher_model, "cpu").eval()), atol=1e-2)
    assert torch.allclose(scored(merged), scored(model), atol=1e-5)


def test_a_trained_folder_generates_and_stops_as_the_one_it_was_made_of(cipher_model, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(cipher_model, source)
    end = load_tokenizer(source).eos_token_id
    # temperature without do_sample: transformers reads that and refuses to write it
    own = {"eos_token_id": [end + 3, end + 1], "temperature": 0.6, "top_p": 0.9, "pad_token_id": end + 3}
    (source / "generation_config.json").write_text(json.dumps(own))
    for dtype in (torch.float32, torch.bfloat16):
        save_model(load_model(source, "cpu"), load_tokenizer(source), out, dtype)
        written = json.loads((out / "generation_config.json").read_text())
        del written["transformers_version"]
        assert written == {**own, "eos_token_id": [end, end + 1, end + 3]}
        assert Text(out).eos_ids == (end, end + 1, end + 3)


def test_a_new_folder_stops_at_the_tokenizers_end_alone(nano, tmp_path):
    save_model(new_model(Shape(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24), nano, 0), nano, tmp_path)
    written = json.loads((tmp_path / "generation_config.json").read_text())
    assert written.keys() == {"eos_token_id", "pad_token_id", "transformers_version"}
    assert written["eos_token_id"] == nano.eos_token_id


def test_a_model_without_adapters_has_its_own_state(cipher_model):
    model = load_model(cipher_model, "cpu")
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in merged_state(model).items())


def test_checkpointing_gives_the_same_gradient(cipher_model):
    plain, again = (Build(checkpointing=on).load(cipher_model, "cpu", 1) for on in (False, True))
    layers = [[part.gradient_checkpointing for part in one.model.layers] for one in (again, plain)]
    assert all(layers[0]) and not any(layers[1])
    assert torch.equal(loss_of(plain), loss_of(again))
    assert torch.allclose(gradient(plain), gradient(again), atol=1e-6)


def test_a_run_with_adapters_checkpointing_and_bf16_pushes_merged_weights_and_leaves_a_plain_folder(
    cipher_model, tmp_path
):
    place = setting(tmp_path / "1-grpo", cipher_model)
    fields = {"steps": 3, "lr": 5e-3, "prompts": 12, "eval_every": 3, "held_out_limit": 4, "save_every": 2}
    stage = make_stage(
        "grpo",
        task=f"{TASK},split=train",
        held_out=TASK,
        lora=4,
        checkpointing=True,
        autocast=True,
        kl_weight=0.01,
        **fields,
    )
    stage.run(place)
    rows = metrics_of(place.folder)
    assert max(row["parity"] for row in rows) < 1e-4
    least = 1e-5 if cpu_prefers_bf16() else 0  # where the trainer computes in bf16, the engine in fp32
    assert least < max(row["mismatch"] for row in rows) < 0.05
    before, after = load_model(cipher_model, "cpu"), load_model(place.folder / "model", "cpu")
    changed = {
        name
        for (name, one), two in zip(before.named_parameters(), after.parameters(), strict=True)
        if not torch.equal(one, two)
    }
    assert changed and all(name.endswith("_proj.weight") for name in changed)


def test_autocast_computes_in_fp32_where_the_processor_does_not_multiply_bf16():
    assert Build(autocast=True).casts("cpu") == cpu_prefers_bf16()
    assert not Build().casts("cpu")
    with Build(autocast=True).computing(torch.device("cpu")):
        product = torch.ones(1, 1) @ torch.ones(1, 1)
    assert product.dtype == (torch.bfloat16 if cpu_prefers_bf16() else torch.float32)


def test_a_model_under_adapters_is_written_in_the_type_it_names_and_a_tied_weight_once(cipher_model, tmp_path):
    from safetensors.torch import load_file

    model = load_model(cipher_model, "cpu", dtype=torch.bfloat16)  # as `Build` holds it with autocast
    add_lora(model, 2, 4.0, 0)
    assert model.config.tie_word_embeddings
    for dtype in (torch.float32, torch.bfloat16):
        save_model(model, load_tokenizer(cipher_model), tmp_path, dtype)
        weights = load_file(tmp_path / "model.safetensors")
        assert {weight.dtype for weight in weights.values()} == {dtype}
        assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
        assert "lm_head.weight" not in weights


@pytest.mark.parametrize(("family", "sizes"), [
    ("Qwen3", {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 8}),
    ("GPT2", {"n_embd": 16, "n_layer": 3, "n_head": 2}),
    ("OPT", {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
             "word_embed_proj_dim": 16}),
    ("Mixtral", {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2,
                 "num_key_value_heads": 2}),
])  # fmt: skip
def test_a_model_is_split_by_its_layers_whatever_its_family_calls_them(family, sizes):
    import transformers

    config = getattr(transformers, f"{family}Config")(**sizes, vocab_size=32)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert len(layers_of(model)) == 3


@pytest.mark.parametrize("kind", ["sft", "preference", "reward_model"])
def test_no_second_model_is_held_beside_the_one_that_is_trained(tmp_path, kind, monkeypatch):
    base = qwen_like.model(tmp_path / "base")
    rows = [{"prompt": word, "chosen": f"{word} is it", "rejected": "no"} for word in ("one", "two", "three")]
    if kind == "sft":
        rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models, counts = weakref.WeakSet(), []

    def counted(*arguments, **options):
        model = loaded(*arguments, **options)
        models.add(model)
        counts.append(len(models))
        return model

    for module in ("train.base.models", "train.reward_models.reward_models"):
        monkeypatch.setattr(f"{module}.loaded", counted)
    stage = make_stage(kind, data=str(tmp_path / "rows.jsonl"), steps=2, rows=2, lr=1e-3, lora=2)
    stage.run(setting(tmp_path / kind, base))
    assert set(counts) == {1}


def test_fine_tuning_with_adapters_learns_and_resumes_bit_for_bit(cipher_model, tmp_path):
    whole, halves = (setting(tmp_path / name, cipher_model) for name in ("whole", "halves"))
    fields = {"corpus": f"{TASK},thinking_share=1", "corpus_rows": 64, "lr": 1e-2, "rows": 8, "lora": 2}
    pace = {"eval_every": 10, "save_every": 5, "decay": False}
    result = make_stage("sft", **fields, **pace, steps=10).run(whole)
    make_stage("sft", **fields, **pace, steps=5).run(halves)
    make_stage("sft", **fields, **pace, steps=10).run(halves)
    assert result.metrics["likelihood_gain"] > 0
    a, b = (load_model(place.folder / "model", "cpu").parameters() for place in (whole, halves))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("given", [{"lora": -1}, {"lora_alpha": 2.0}, {"lora": 2, "lora_alpha": 0.0}])
def test_adapters_that_cannot_be_are_refused(given):
    with pytest.raises(ConfigError, match="lora"):
        make_stage("grpo", task=TASK, held_out=TASK, steps=1, lr=1e-3, **given)


def test_a_pass_counts_tokens_where_rows_are_counted_too_and_takes_one_row_at_least():
    assert Build().rows(100, "cpu") == 20  # 2,048 tokens
    assert Build().rows(100, "cuda") == 163  # 16,384
    assert Build(micro_tokens=400).rows(100, "cpu") == 4
    assert Build().rows(5000, "cpu") == 1
