"""Families of transformers whose heads, windows or dropout are not Llama's are trained on their own forward pass."""

import asyncio

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    BertGenerationConfig,
    CohereConfig,
    CTRLConfig,
    DeepseekV32Config,
    ElectraConfig,
    FalconH1Config,
    Gemma2Config,
    GPT2Config,
    GPTNeoConfig,
    GraniteConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PhiConfig,
    PhimoeConfig,
)
from transformers.models.llama.modeling_llama import LlamaMLP

from tests.ttc import tiny_model
from train.base import models
from train.base.models import load_model, logits_of
from train.base.weights import LoraLinear, add_lora, merged_state
from train.reward_models.reward_models import new_reward_model
from train.update.logprobs import check_packing, token_logprobs, worth_sharing
from ttc.core import Message, Sampling
from ttc.engines.embedded.engine import embedded
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # so that logits are large enough for a scale to show
}


def made(config, folder):
    """The folder of a random model."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def rows(num=3, length=24, common=0):
    ids = torch.randint(3, 96, (num, length), generator=torch.Generator().manual_seed(1))
    ids[:, :common] = ids[0, :common]
    wanted = torch.zeros(num, length - 1, dtype=torch.bool)
    wanted[:, max(common - 1, 0) :] = True
    return ids, wanted


def own_logprobs(model, ids, wanted):
    """Those of the model's own forward pass, row by row."""
    logits = torch.cat([model(row[None]).logits for row in ids])[:, :-1].float()
    return torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0] * wanted


SCALED = {
    "granite": GraniteConfig(**SMALL, logits_scaling=4.0),
    "cohere": CohereConfig(**SMALL, logit_scale=0.25),
    "falcon_h1": FalconH1Config(
        **SMALL, lm_head_multiplier=0.5, mamba_d_ssm=32, mamba_n_heads=2, mamba_d_head=16, mamba_chunk_size=16
    ),
    "gemma2": Gemma2Config(**SMALL, head_dim=16, sliding_window=256, final_logit_softcapping=3.0),
}


@pytest.mark.parametrize("family", SCALED)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_head_that_scales_or_softens_is_trained_on_the_loss_of_its_own_forward_pass(tmp_path, family, frozen):
    model = load_model(made(SCALED[family], tmp_path), "cpu")
    ids, wanted = rows()
    model.get_output_embeddings().requires_grad_(not frozen)
    gradients, losses = [], []
    for score in (token_logprobs, own_logprobs):
        model.zero_grad()
        scored = score(model, ids, wanted)
        loss = -(scored if score is own_logprobs else scored.logprobs)[wanted].mean()
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (losses[0] - losses[1]).abs() < 1e-5
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


def test_a_plain_head_is_applied_as_it_is(tmp_path):
    model = load_model(made(LlamaConfig(**SMALL), tmp_path), "cpu")
    hidden = torch.randn(4, 32, generator=torch.Generator().manual_seed(2))
    assert torch.equal(logits_of(model)(hidden), model.get_output_embeddings()(hidden))


def test_weights_that_stay_in_bf16_are_loaded_though_training_rounds_attention_less(tmp_path, monkeypatch):
    plain = models._upcast

    def other(*arguments, **options):  # a difference as SmolLM2 has on its special tokens, where it is greatest
        states, weights = plain(*arguments, **options)
        return states * 1.3, weights

    monkeypatch.setattr(models, "_upcast", other)
    monkeypatch.setattr(models, "cpu_has_amx", lambda: False)
    folder = made(LlamaConfig(**SMALL), tmp_path)
    assert load_model(folder, "cpu", dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_head_that_nobody_knows_is_refused_when_it_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match="'bert' changes the output of its head"):
        load_model(made(BertConfig(**SMALL, is_decoder=True), tmp_path), "cpu")


def test_a_window_that_slides_in_every_layer_is_neither_packed_nor_shared(tmp_path):
    model = load_model(made(MistralConfig(**SMALL, sliding_window=8), tmp_path), "cpu")
    with pytest.raises(ConfigError, match="set packed = 0"):
        check_packing(model)
    ids, wanted = rows(num=4, length=60, common=50)
    assert not worth_sharing(model, ids, wanted)
    assert (token_logprobs(model, ids, wanted).logprobs - own_logprobs(model, ids, wanted)).abs().max() < 1e-5


def test_a_window_as_wide_as_the_context_slides_nowhere(tmp_path):
    model = load_model(made(MistralConfig(**SMALL, sliding_window=128), tmp_path), "cpu")
    check_packing(model)
    ids, wanted = rows(num=4, length=60, common=50)
    assert worth_sharing(model, ids, wanted)
    assert (token_logprobs(model, ids, wanted).logprobs - own_logprobs(model, ids, wanted)).abs().max() < 1e-5


def test_windows_of_a_family_that_names_them_in_its_own_way_are_not_packed(tmp_path):
    layers = {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}
    config = GPTNeoConfig(vocab_size=96, hidden_size=32, max_position_embeddings=128, window_size=8, **layers)
    with pytest.raises(ConfigError, match="set packed = 0"):
        check_packing(load_model(made(config, tmp_path), "cpu"))


DROPPING = {
    "gpt2": GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=64),  # three shares of 0.1
    "phi": PhiConfig(**SMALL, resid_pdrop=0.1, embd_pdrop=0.1, attention_dropout=0.1),
}


@pytest.mark.parametrize("family", DROPPING)
def test_two_updates_of_a_model_whose_configuration_has_dropout_are_the_same_bits(tmp_path, family):
    folder = made(DROPPING[family], tmp_path)
    ids, wanted = rows()
    gradients = []
    for _ in range(2):
        model = load_model(folder, "cpu").train()
        scored = token_logprobs(model, ids, wanted).logprobs
        assert torch.equal(scored, token_logprobs(model.eval(), ids, wanted).logprobs)
        scored.sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.equal(*gradients)
    shares = {name: value for name, value in model.config.to_dict().items() if "drop" in name and value is not None}
    assert not any(shares.values())


def test_reward_models_have_no_dropout(tmp_path):
    folder = made(DROPPING["gpt2"], tmp_path)
    network = new_reward_model(folder, 0, "cpu").train()
    ids, _ = rows()
    network.config.pad_token_id = 0
    assert torch.equal(network(input_ids=ids).logits, network(input_ids=ids).logits)


UNTRAINABLE = {
    "attends to later tokens": BertGenerationConfig(**SMALL),
    "does not run as a decoder of text": ElectraConfig(**SMALL, embedding_size=16),
    "writes with its rates of noise": PhimoeConfig(**SMALL, num_local_experts=4, router_jitter_noise=0.001),
}
"""Models that an update would train wrong, by the reason."""


@pytest.mark.parametrize("why", UNTRAINABLE)
def test_a_model_that_an_update_would_train_wrong_is_refused_by_its_family_and_the_reason(tmp_path, why):
    with pytest.raises(ConfigError, match=f"model_type '.*' {why}.*: take a model of another family"):
        load_model(made(UNTRAINABLE[why], tmp_path), "cpu")


def test_a_family_that_draws_at_random_in_training_alone_is_refused(tmp_path, monkeypatch):
    plain = LlamaMLP.forward

    def forward(self, states):
        return plain(self, states + self.training * torch.rand_like(states))

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    with pytest.raises(ConfigError, match="'llama' computes other numbers in training than when it writes"):
        load_model(made(LlamaConfig(**SMALL), tmp_path), "cpu")


def test_a_family_that_counts_positions_itself_is_neither_packed_nor_shared(tmp_path):
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 64}
    config = BartConfig(vocab_size=96, max_position_embeddings=128, init_std=0.3, **sizes)
    model = load_model(made(config, tmp_path), "cpu")
    with pytest.raises(ConfigError, match="a bart model mixes rows of one line; set packed = 0"):
        check_packing(model)
    ids, wanted = rows(num=4, length=60, common=50)
    assert (token_logprobs(model, ids, wanted).logprobs - own_logprobs(model, ids, wanted)).abs().max() < 1e-5


def test_a_family_that_attends_to_its_best_tokens_alone_does_so_in_training(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "cpu_has_amx", lambda: False)
    parts = {"kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
    sizes = SMALL | {"num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1, "first_k_dense_replace": 1}
    config = DeepseekV32Config(**sizes, **parts, index_topk=8, index_n_heads=16, index_head_dim=64)
    model = load_model(made(config, tmp_path), "cpu")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids, wanted = rows()
    assert (token_logprobs(model, ids, wanted).logprobs - own_logprobs(plain, ids, wanted)).abs().max() < 1e-5


def test_adapters_count_where_a_familys_code_multiplies_by_the_weight_of_a_layer(tmp_path):
    config = MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, initializer_range=0.3)
    model = load_model(made(config, tmp_path), "cpu")
    ids, wanted = rows()
    before = token_logprobs(model, ids, wanted).logprobs.detach()
    add_lora(model, 2, 4.0, 0)
    for layer in model.modules():
        if isinstance(layer, LoraLinear):
            torch.nn.init.normal_(layer.up, std=0.1)
    adapted = token_logprobs(model, ids, wanted).logprobs
    adapted.sum().backward()
    plain = AutoModelForCausalLM.from_config(config).eval()
    plain.load_state_dict(merged_state(model))
    assert (adapted - before).abs().max() > 1e-2
    assert (adapted - own_logprobs(plain, ids, wanted)).abs().max() < 1e-4
    assert all(layer.up.grad.any() for layer in model.modules() if isinstance(layer, LoraLinear))


class Plain(torch.nn.Linear):
    """A linear layer of a family's own."""

    def forward(self, x):
        return x @ self.weight.T


class Grouped(torch.nn.Linear):
    """One that computes in groups."""

    def forward(self, x):
        return x.view(2, *x.shape[:-1], -1).sum(0) @ self.weight.T


class Negative(torch.nn.Linear):
    """One that computes otherwise."""

    def forward(self, x):
        return -(x @ self.weight.T)


def test_adapters_go_on_layers_of_a_familys_own_class_only_where_it_computes_as_torchs_does(tmp_path):
    model = load_model(made(LlamaConfig(**SMALL), tmp_path), "cpu")
    kinds = {"q_proj": Plain(32, 32, bias=False), "k_proj": Grouped(32, 8), "v_proj": Negative(32, 16, bias=False)}
    for name, layer in kinds.items():
        setattr(model.model.layers[0].self_attn, name, layer)
    add_lora(model, 2, 4.0, 0)
    attention = model.model.layers[0].self_attn
    assert [isinstance(getattr(attention, name), LoraLinear) for name in kinds] == [True, False, False]


def test_checkpointing_is_refused_where_transformers_cannot_compute_a_family_again(tmp_path):
    config = CTRLConfig(vocab_size=96, n_embd=32, n_layer=2, n_head=2, dff=64, n_positions=64)
    with pytest.raises(ConfigError, match=r"checkpointing: .* a ctrl model's activations again: leave"):
        load_model(made(config, tmp_path), "cpu", checkpointing=True)


@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2", "granitemoehybrid"])
def test_what_an_engine_draws_of_a_hybrid_model_has_the_trainers_log_probabilities_before_and_after_a_push(
    tmp_path, family
):
    folder = tiny_model.build(tmp_path, family, **tiny_model.RECURRENT[family])
    model, engine = load_model(folder, "cpu"), embedded(str(folder), device="cpu", dtype="float32")
    prompt = engine.render((Message("user", "one that is longer " * 3),), None)

    def apart(draws) -> float:
        """The largest difference over the tokens of some draws, rows of different lengths."""
        texts = [torch.tensor([*prompt.token_ids, *draw.token_ids]) for draw in draws]
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        wanted = torch.zeros(ids.shape[0], ids.shape[1] - 1, dtype=torch.bool)
        for row, text in enumerate(texts):
            wanted[row, len(prompt.token_ids) - 1 : len(text) - 1] = True
        with torch.no_grad():
            ours = token_logprobs(model, ids, wanted).logprobs
        theirs = torch.tensor([value for draw in draws for value in draw.logprobs])
        return float((ours[wanted] - theirs).abs().max())

    async def go() -> None:
        sampling = Sampling(temperature=1.0, max_tokens=12, seed=3, logprobs=True)
        assert apart(await engine.generate(prompt, sampling, range(3), lambda _: None)) < 1e-4
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        await engine.load_weights(merged_state(model))
        assert apart(await engine.generate(prompt, sampling, range(3, 6), lambda _: None)) < 1e-4
        await engine.close()

    asyncio.run(go())
