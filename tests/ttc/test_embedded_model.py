"""The forward pass, the prefix tree, the decoders and the sampler of the embedded core."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ttc import tiny_model
from ttc import seeds
from ttc.engines.embedded.core import invariant, model, paged
from ttc.engines.embedded.core.invariant import PAD_ROWS, BlockedPrefix, InvariantDecoder, blocked_attention, check
from ttc.engines.embedded.core.model import load_body
from ttc.engines.embedded.core.paged import PagedDecoder
from ttc.engines.embedded.core.sampler import Penalty, Rows, heat, sample
from ttc.engines.embedded.core.weights import Linear, read_tensors
from ttc.engines.embedded.gpu.budget import stored_numbers
from ttc.engines.shared import compute
from ttc.engines.shared.compute import native
from ttc.engines.shared.shape import full_attention
from ttc.engines.shared.tokens import StopRule
from ttc.errors import ConfigError, PromptTooLong

pytestmark = pytest.mark.numeric

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
CASES = {
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
    "qwen2": ("qwen2", {"tie_word_embeddings": False}),
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "yarn rope": ("llama", {"rope_parameters": YARN}),
    "yarn rope with two scales": ("llama", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    "yarn rope without a rounded range": ("llama", {"rope_parameters": YARN | {"truncate": False}}),
    "layers without rope": ("smollm3", {"no_rope_layers": [0, 1], "pad_token_id": 0}),
    "each fourth layer without rope": ("smollm3", {"num_hidden_layers": 5, "pad_token_id": 0}),
    "linear rope": ("qwen2", {"rope_parameters": LINEAR}),
}


@pytest.fixture(autouse=True, scope="module")
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return tiny_model.build(tmp_path_factory.mktemp("qwen3"))


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    family, changes = CASES[case]
    tiny_model.build(tmp_path, family, **changes)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    body, _ = load_body(tmp_path, dtype="float32", head=True)
    ids = torch.randint(tiny_model.VOCAB, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    ((hidden, _),) = body.extend([(None, ids)])
    torch.testing.assert_close(body.logits(hidden), reference(torch.tensor([ids])).logits[0], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
@pytest.mark.parametrize("outside", [{}, {"original_max_position_embeddings": 128}])
def test_a_stretched_context_that_is_left_out_or_told_outside_is_taken_as_by_transformers(
    kind: str, outside: dict[str, int], tmp_path
) -> None:
    from transformers import AutoModelForCausalLM

    tiny_model.build(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    stretch = {name: value for name, value in LLAMA3.items() if name != "original_max_position_embeddings"}
    config |= {"rope_theta": 10000.0, "rope_scaling": stretch | {"rope_type": kind}} | outside
    (tmp_path / "config.json").write_text(json.dumps(config))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    body, _ = load_body(tmp_path, dtype="float32", head=True)
    ids = list(range(200))
    ((hidden, _),) = body.extend([(None, ids)])
    torch.testing.assert_close(body.logits(hidden), reference(torch.tensor([ids])).logits[0], atol=2e-4, rtol=1e-3)


def test_yarn_reads_as_far_as_it_stretches(tmp_path) -> None:
    tiny_model.build(tmp_path, "llama", rope_parameters=YARN, max_position_embeddings=64)
    body, _ = load_body(tmp_path, dtype="float32")
    assert body.max_context == 8 * 64


def test_mistral_without_a_word_of_its_window_has_that_of_transformers() -> None:
    config = {**tiny_model.SMALL, "model_type": "mistral", "max_position_embeddings": 8192}
    assert not full_attention(config, None) and full_attention(config, 4096)
    assert full_attention({**config, "sliding_window": None}, None)


def test_a_fork_computes_only_the_new_tokens_and_copies_nothing(folder) -> None:
    body, _ = load_body(folder, dtype="float32")
    ids = list(range(90))
    ((whole, _),) = body.extend([(None, ids)])
    ((_, trunk),) = body.extend([(None, ids[:40])])
    forks = body.extend([(trunk, ids[40:]), (trunk, [7, 8]), (trunk, ids[40:43])])
    torch.testing.assert_close(forks[0][0], whole[40:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(forks[2][0], whole[40:43], atol=1e-5, rtol=1e-4)
    for hidden, handle in forks:
        assert handle.parent is trunk and handle.length == hidden.shape[0] == handle.end - trunk.end


def test_a_body_returns_the_tensors_that_are_not_its_own(tmp_path) -> None:
    tiny_model.build(tmp_path, tie_word_embeddings=False)
    _, rest = load_body(tmp_path)
    assert list(rest) == ["lm_head.weight"]


def rewritten(folder, change) -> None:
    """Let `change` edit the tensors of a model folder."""
    from safetensors.torch import load_file, save_file

    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_bias_that_config_json_names_must_be_there_and_another_is_left_out_as_by_transformers(tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    tiny_model.build(tmp_path / "named", "llama", attention_bias=True)
    rewritten(tmp_path / "named", lambda tensors: tensors.pop("model.layers.1.self_attn.o_proj.bias"))
    with pytest.raises(ConfigError, match=r"hold no tensor model\.layers\.1\.self_attn\.o_proj\.bias"):
        load_body(tmp_path / "named", dtype="float32")
    other = tiny_model.build(tmp_path / "other", "llama")
    rewritten(other, lambda tensors: tensors.update({"model.layers.0.mlp.down_proj.bias": torch.ones(64)}))
    reference = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32).eval()
    body, _ = load_body(other, dtype="float32", head=True)
    ((hidden, _),) = body.extend([(None, [1, 2, 3])])
    torch.testing.assert_close(body.logits(hidden), reference(torch.tensor([[1, 2, 3]])).logits[0], atol=2e-4, rtol=0)


def test_too_many_tokens_for_the_context_are_refused(folder) -> None:
    body, _ = load_body(folder, max_context=16)
    with pytest.raises(PromptTooLong, match="17 tokens exceed the context of 16"):
        body.extend([(None, list(range(17)))])


def test_only_the_files_of_the_model_are_read(tmp_path) -> None:
    """A folder may hold others: an earlier state, another layout, shards of before."""
    from safetensors.torch import load_file, save_file

    tiny_model.build(tmp_path, "llama")
    expected = load_file(tmp_path / "model.safetensors")
    other = {name: tensor * 2 for name, tensor in expected.items()}
    save_file(other, tmp_path / "z.safetensors")
    assert stored_numbers(tmp_path) == sum(tensor.numel() for tensor in expected.values())
    for name, tensor in read_tensors(tmp_path).items():
        assert torch.equal(tensor, expected[name])
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(expected, "a.safetensors")}))
    assert torch.equal(read_tensors(tmp_path)["model.norm.weight"], expected["model.norm.weight"])
    for text in ("{}", "{broken", "[]", '{"weight_map": []}'):
        index.write_text(text)
        with pytest.raises(ConfigError, match=r"model\.safetensors\.index\.json is no index of weights"):
            read_tensors(tmp_path)


def test_a_missing_shard_and_a_missing_tensor_are_named(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        load_body(tmp_path)
    tiny_model.build(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    state.pop("model.layers.1.mlp.up_proj.weight")
    save_file(state, file)
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_body(tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match=r"holds no \*\.safetensors file$"):
        load_body(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ConfigError, match=r"file, but pytorch_model\.bin: .*from_pretrained\(.*\)\.save_pretrained\("):
        load_body(tmp_path)


def test_a_head_that_is_not_the_embedding_it_is_tied_to_is_refused(tmp_path) -> None:
    tiny_model.build(tmp_path, "qwen2", tie_word_embeddings=True)
    rewritten(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 0}))
    load_body(tmp_path, dtype="float32", head=True)  # the same numbers
    rewritten(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] * 2}))
    with pytest.raises(ConfigError, match=r"lm_head\.weight is another matrix: set tie_word_embeddings to false"):
        load_body(tmp_path, dtype="float32", head=True)
    load_body(tmp_path, dtype="float32")  # a scorer needs no head


def keys_of(body, segment) -> torch.Tensor:
    """Keys and values of the last token of a chain."""
    return body.pool.read_chain(segment, segment.end - 1, segment.end)


class Branches:
    """Random branches of a growing forest, decoded by `decoder` and checked against `fresh`, which shares nothing."""

    def __init__(self, body, fresh, decoder, rng: random.Random) -> None:
        self.body, self.fresh, self.decoder, self.rng = body, fresh, decoder, rng
        self.rows: list[tuple[list[int], object]] = []
        self.ended: list[tuple[list[int], object]] = [([], None)]

    def fork(self) -> None:
        ids, parent = self.rng.choice(self.ended[-4:])
        if self.rng.random() < 0.5:
            new = [self.rng.randrange(200) for _ in range(self.rng.choice([1, 5, 40, 70]))]
            ids, parent = ids + new, self.body.extend([(parent, new)])[0][1]
        for _ in range(self.rng.choice([1, 1, 2, 5, 40 if len(self.rows) < 6 else 3])):
            segment = self.body.pool.segment(parent)
            assert self.decoder.add(segment) == len(self.rows)
            self.rows.append((list(ids), segment))

    def step(self) -> None:
        for ids, _ in self.rows:
            ids.append(self.rng.randrange(200))
        hidden = self.decoder.step([ids[-1] for ids, _ in self.rows])
        i = self.rng.randrange(len(self.rows))
        ((whole, _),) = self.fresh.extend([(None, self.rows[i][0])])
        torch.testing.assert_close(hidden[i], whole[-1], atol=1e-4, rtol=1e-3)

    def end(self, row: int) -> None:
        ids, segment = self.rows[row]
        self.decoder.remove(row)
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last
        assert segment.end == len(ids)
        ((_, reference),) = self.fresh.extend([(None, ids)])
        torch.testing.assert_close(keys_of(self.body, segment), keys_of(self.fresh, reference), atol=1e-4, rtol=1e-3)
        self.ended.append((ids, segment))


paged_decoder = partial(PagedDecoder, kernels=native(torch.device("cpu"), torch.float32))


@pytest.mark.long
@pytest.mark.parametrize("kind", [InvariantDecoder, PagedDecoder, "all shared", "all shared and fused", "short pages"])
@pytest.mark.parametrize("seed", range(2))
def test_decoding_any_mixture_of_branches_equals_a_full_forward_pass(folder, kind, seed: int, monkeypatch) -> None:
    """Every hidden state and every kept key must be the right one, and every page comes back at the end."""
    monkeypatch.setattr(model, "fuses_attention", lambda _: kind == "all shared and fused")
    if kind in ("all shared", "all shared and fused"):
        monkeypatch.setattr(paged, "_WORTH", 0)
        monkeypatch.setattr(paged, "_FEW", 2)
    body, _ = load_body(folder, dtype="float32", steps=kind == "short pages")
    if kind is not InvariantDecoder:
        kind = paged_decoder
    fresh, _ = load_body(folder, dtype="float32", attention=BlockedPrefix, pad_rows=PAD_ROWS)
    rng = random.Random(seed)
    branches = Branches(body, fresh, kind(body), rng)
    for _ in range(50):
        if rng.random() < 0.35 and len(branches.rows) < 50:
            branches.fork()
        if branches.rows:
            branches.step()
        for row in range(len(branches.rows) - 1, -1, -1):
            if rng.random() < 0.08:
                branches.end(row)
    del branches
    assert body.pool.num_tokens == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_long_rows_among_short_ones_get_the_bits_that_they_get_alone(folder, dtype: str) -> None:
    body, _ = load_body(folder, dtype=dtype, attention=BlockedPrefix, pad_rows=PAD_ROWS)
    check(body)
    texts = [[i * 7 % 200 for i in range(length)] for length in (5, 150, *range(6, 60, 4), 64, 63)]

    def step(some: list[list[int]]) -> torch.Tensor:
        decoder = InvariantDecoder(body)
        for _, segment in body.extend([(None, ids) for ids in some]):
            decoder.add(body.pool.segment(segment))
        return torch.stack([decoder.step([len(ids) % 50 for ids in some]) for _ in range(2)], 1)

    assert torch.equal(step(texts), torch.cat([step([ids]) for ids in texts]))


def test_rows_that_open_many_pages_and_branches_of_them_say_the_same(folder) -> None:
    """Rows of different age that fill more pages than a plan has room for, some forked from others in the middle."""
    body, _ = load_body(folder, dtype="float32")
    fresh, _ = load_body(folder, dtype="float32", attention=BlockedPrefix, pad_rows=PAD_ROWS)
    branches = Branches(body, fresh, paged_decoder(body), random.Random(0))
    for count in range(200):
        if count in (0, 30, 150):
            branches.fork()
        if count == 120:
            branches.end(0)
        branches.step()
    assert max(segment.length for _, segment in branches.rows) >= 128
    for row in range(len(branches.rows) - 1, -1, -1):
        branches.end(row)
    tokens = body.pool.num_tokens
    assert tokens <= 1.3 * sum(
        part.length for part in {part for _, last in branches.ended[1:] for part in last.chain()}
    )
    del branches
    assert body.pool.num_tokens == 0


@pytest.mark.parametrize("has_amx", [True, False])
def test_torchs_attention_is_taken_in_bf16_where_the_processor_multiplies_tiles(monkeypatch, has_amx: bool) -> None:
    monkeypatch.setattr(compute, "_cpu_flags", lambda: {"amx_tile": has_amx, "avx512_bf16": True})
    assert [compute.fuses_attention(dtype) for dtype in (torch.bfloat16, torch.float32)] == [has_amx, False]


@pytest.mark.parametrize(("steps", "fuses"), [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("seed", range(2))
def test_a_batch_that_shares_prefixes_equals_each_item_alone(
    folder, seed: int, steps: bool, fuses: bool, monkeypatch
) -> None:
    """Runs that all, some or one item has, of all lengths: exactly what no sharing gives."""
    monkeypatch.setattr(model, "fuses_attention", lambda _: fuses)
    body, _ = load_body(folder, dtype="float32", steps=steps)
    is_compiled = native(body.device, body.dtype) is not None
    assert (body._in_place is not None) == ((steps or not fuses) and is_compiled)
    assert body.fuses == (fuses or not is_compiled)
    fresh, _ = load_body(folder, dtype="float32", attention=BlockedPrefix)
    rng = random.Random(seed)
    known: list[tuple[list[int], object]] = [([], None)]
    for _ in range(12):
        chosen = [rng.choice(known) for _ in range(rng.choice([1, 3, 9]))]
        items = [
            (ids, handle, [rng.randrange(200) for _ in range(rng.choice([1, 2, 9, 30, 45, 60]))])
            for ids, handle in chosen
        ]
        outputs = body.extend([(handle, new) for _, handle, new in items])
        for (ids, _, new), (hidden, handle) in zip(items, outputs, strict=True):
            ((whole, _),) = fresh.extend([(None, ids + new)])
            torch.testing.assert_close(hidden, whole[len(ids) :], atol=1e-4, rtol=1e-3)
            if len(ids) < 250:
                known.append((ids + new, handle))


def test_a_long_text_is_computed_in_parts_that_bound_the_scratch_memory(folder, monkeypatch) -> None:
    body, _ = load_body(folder, dtype="float32")
    ids = [i * 7 % 200 for i in range(150)]
    ((whole, _),) = body.extend([(None, ids)])
    monkeypatch.setattr("ttc.engines.embedded.core.model._TOKENS", 40)
    ((short, parts),) = [body.extend([(None, ids[:9]), (None, ids)])]
    torch.testing.assert_close(parts[0], whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(short[0], whole[:9], atol=1e-5, rtol=1e-4)
    assert parts[1].length == 150 and parts[1].parent is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_invariance_holds_here_and_is_refused_where_it_does_not(folder, monkeypatch, dtype: str) -> None:
    from ttc.errors import EngineError

    body, _ = load_body(folder, dtype=dtype, head=True, attention=BlockedPrefix, pad_rows=PAD_ROWS)
    check(body)

    def whimsical(q, k, v, hidden):
        return blocked_attention(q, k, v, hidden) * (1 + 1e-2 * q.shape[2])

    monkeypatch.setattr(invariant, "blocked_attention", whimsical)
    with pytest.raises(EngineError, match="batch_invariant"):
        check(body)


def settings_rows(count: int, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=0) -> Rows:
    return Rows(
        temperature=np.full(count, temperature, np.float32),
        top_p=np.full(count, top_p, np.float32),
        top_k=np.full(count, top_k, np.int64),
        min_p=np.full(count, min_p, np.float32),
        keys=np.array([seeds.derive(seed, (i,)) for i in range(count)], np.uint64),
        positions=np.full(count, 9, np.uint64),
        wants_logprobs=True,
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([5, 256, 257, 1000]), st.sampled_from([0.3, 1.0, 2.0]))
def test_sampling_inverts_the_cumulative_distribution_at_the_uniform_of_key_and_position(seed, vocab, heat) -> None:
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    result = sample(logits, settings_rows(6, temperature=heat, seed=seed))
    exact = torch.softmax(logits.double() / heat, -1)
    edges = exact.cumsum(-1)
    for i, token in enumerate(result.tokens):
        u = seeds.uniform(seeds.derive(seed, (i,)), 9)
        low = float(edges[i, token - 1]) if token else 0.0
        assert low - 1e-5 <= u <= float(edges[i, token]) + 1e-5 and exact[i, token] > 0
        logprobs = torch.log_softmax(logits[i].double(), -1)
        assert result.logprobs[i] == pytest.approx(float(logprobs[token]), abs=1e-3)
        assert result.certainty[i] == pytest.approx(float(-logprobs.mean() - np.log(vocab)), abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0, 1, 3, 40]),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
def test_top_k_top_p_and_min_p_keep_the_tokens_of_their_definition(seed, top_k, top_p, min_p) -> None:
    vocab = 1000
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(seed)) * 2
    tokens = sample(logits, settings_rows(8, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)).tokens
    for i, token in enumerate(tokens):
        probs, order = torch.softmax(logits[i].double(), -1).sort(descending=True)
        probs, order = probs[: top_k or vocab], order[: top_k or vocab]
        before = (probs.cumsum(-1) - probs) / (probs.sum() if top_k else 1.0)
        kept = (before < top_p + 1e-6) & (probs >= (min_p - 1e-6) * probs[0])
        assert token in order[kept].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("temperature", [1e-30, 1e-39, 1e-45, 1e-60])
@pytest.mark.parametrize("top_k", [0, 3])
def test_the_coldest_draws_are_greedy(dtype: torch.dtype, temperature: float, top_k: int) -> None:
    """The reciprocal of such a temperature, or its product with a logit, is infinite in fp32."""
    logits = torch.tensor([[1.0, 30.0, 29.0, -5.0]], dtype=dtype)
    row = Rows(
        temperature=np.array([heat(temperature)], np.float32),
        top_p=np.array([1.0], np.float32),
        top_k=np.array([top_k], np.int64),
        min_p=np.array([0.0], np.float32),
        keys=np.array([1], np.uint64),
        positions=np.array([5], np.uint64),
        wants_logprobs=False,
    )
    assert sample(logits, row).tokens.tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("factor", "once", "each", "lowered"),
    [
        (2.0, 0.0, 0.0, [2.0, -2.0, 1.5, 3.0]),  # of prompt and draw: below 0 it multiplies
        (1.0, 0.5, 0.0, [4.0, -1.5, 2.5, 3.0]),  # of the draw alone
        (1.0, 0.0, 0.25, [4.0, -1.5, 2.75, 3.0]),
        (2.0, 0.5, 0.25, [2.0, -3.0, 0.75, 3.0]),
    ],
)
def test_penalties_are_those_of_their_definition_and_of_their_row_alone(
    dtype: torch.dtype, factor: float, once: float, each: float, lowered: list[float]
) -> None:
    logits = torch.tensor([[4.0, -1.0, 3.0, 3.0]] * 2, dtype=dtype)
    penalty = Penalty(prompt=(0, 0, 2), drawn=(1, 2, 1), factor=factor, once=once, each=each)
    row = logits[0].clone()
    penalty.lower(row)
    assert row.tolist() == lowered
    rows = replace(settings_rows(2), penalties=(penalty, None), temperature=np.zeros(2, np.float32))
    drawn = sample(logits, rows)
    assert drawn.tokens.tolist() == [int(np.argmax(lowered)), 0]
    plain = torch.log_softmax(logits[0].double(), -1)
    assert drawn.logprobs[0] == pytest.approx(float(plain[drawn.tokens[0]]), abs=1e-3), "the model's own"


def test_a_bias_is_added_to_the_tokens_it_names_before_penalties_and_to_no_other_row() -> None:
    logits = torch.tensor([[4.0, -1.0, 3.0, 3.0]] * 2)
    penalty = Penalty((), (2,), 1.0, 0.5, 0.0, bias=((0, -100.0), (2, 2.0), (9, 50.0)))
    row = logits[0].clone()
    penalty.lower(row)
    assert row.tolist() == [-96.0, -1.0, 4.5, 3.0]
    rows = replace(settings_rows(2), penalties=(penalty, None), temperature=np.zeros(2, np.float32))
    assert sample(logits, rows).tokens.tolist() == [2, 0]


def test_greedy_takes_the_lowest_id_of_equal_maxima_also_beside_sampled_rows() -> None:
    logits = torch.zeros(2, 700)
    logits[:, [300, 40, 650]] = 5.0
    rows = settings_rows(2)
    rows.temperature[0] = 0
    assert sample(logits, rows).tokens[0] == 40


def test_a_stop_string_is_found_across_tokens_and_only_then() -> None:
    pieces = [chr(97 + i) for i in range(26)] + ["ab", "cab"]

    def decode(ids) -> str:
        return "".join(pieces[i] for i in ids)

    rule = StopRule(("bca",), (25,), (24,), pieces, decode)
    assert rule.watch == {0, 26, 27, 25, 24}
    assert rule.reason([26, 2, 0]) == "bca"  # ab c a
    assert rule.reason([1, 27]) == "bca"  # b cab
    assert rule.reason([0, 0]) is None
    assert (rule.reason([25]), rule.reason([24])) == (25, "eos")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 70, 300])
def test_a_packed_matrix_multiplies_as_the_plain_one(rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(1024, 704, generator=generator)
    offset = torch.randn(1024, generator=generator) if bias else None
    x, residual = torch.randn(rows, 704, generator=generator), torch.randn(rows, 1024, generator=generator)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    for alike, both in ((False, False), (False, True), (True, False)):
        linear = Linear(weight, offset, invariant=alike, both=both)
        assert linear.out_features == 1024
        torch.testing.assert_close(linear(x).double(), exact, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(linear.add_to(residual, x).double(), residual + exact, rtol=1e-4, atol=1e-3)
