"""The forward pass, the prefix tree, the decoders and the sampler of the embedded core."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ttc import tiny_model
from ttc import seeds
from ttc.engines.embedded.cache import PrefixTree, Segment
from ttc.engines.embedded.invariant import PAD_ROWS, InvariantDecoder, blocked_attention, check
from ttc.engines.embedded.model import load_body
from ttc.engines.embedded.sampler import Rows, sample
from ttc.engines.embedded.shared import SharedDecoder
from ttc.engines.shared.tokens import make_rule
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


def test_a_fork_computes_only_the_new_tokens_and_copies_nothing(folder) -> None:
    body, _ = load_body(folder, dtype="float32")
    ids = list(range(90))
    ((whole, _),) = body.extend([(None, ids)])
    ((_, trunk),) = body.extend([(None, ids[:40])])
    forks = body.extend([(trunk, ids[40:]), (trunk, [7, 8]), (trunk, ids[40:43])])
    torch.testing.assert_close(forks[0][0], whole[40:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(forks[2][0], whole[40:43], atol=1e-5, rtol=1e-4)
    for hidden, handle in forks:
        assert handle.parent is trunk and handle.kv.shape[3] == hidden.shape[0] == handle.end - trunk.end


def test_a_body_returns_the_tensors_that_are_not_its_own(tmp_path) -> None:
    tiny_model.build(tmp_path, tie_word_embeddings=False)
    _, rest = load_body(tmp_path)
    assert list(rest) == ["lm_head.weight"]


def test_too_many_tokens_for_the_context_are_refused(folder) -> None:
    body, _ = load_body(folder, max_context=16)
    with pytest.raises(PromptTooLong, match="17 tokens exceed the context of 16"):
        body.extend([(None, list(range(17)))])


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
    with pytest.raises(ConfigError, match="safetensors"):
        load_body(tmp_path)


@pytest.mark.parametrize("kind", [SharedDecoder, InvariantDecoder])
@pytest.mark.parametrize("seed", range(3))
def test_decoding_any_mixture_of_branches_equals_a_full_forward_pass(folder, kind, seed: int) -> None:
    """Groups of all sizes and lengths come and go; every hidden state and every kept key must be the right one."""
    body, _ = load_body(folder, dtype="float32", kernel=blocked_attention, pad_rows=PAD_ROWS)
    rng = random.Random(seed)
    decoder = kind(body)
    rows: list[dict] = []

    def drop(row: int) -> None:
        decoder.remove(row)
        last = rows.pop()
        if row < len(rows):
            rows[row] = last

    for _ in range(70):
        if rng.random() < 0.3 and len(rows) < 40:
            ids = [rng.randrange(200) for _ in range(rng.choice([0, 1, 5, 40, 70]))]
            segment = body.extend([(None, ids)])[0][1] if ids else None
            draws = rng.choice([1, 2, 5, 40 if len(rows) < 6 else 3])
            group = decoder.open(segment, draws)
            decoder.add(group)
            rows.append({"ids": ids, "group": group, "draws": draws})
        if not rows:
            continue
        for row in rows:
            row["ids"].append(rng.randrange(200))
        hidden = decoder.step([row["ids"][-1] for row in rows], [len(row["ids"]) - 1 for row in rows])
        i = rng.randrange(len(rows))
        ((whole, segment),) = body.extend([(None, rows[i]["ids"])])
        torch.testing.assert_close(hidden[i], whole[-1], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(decoder.taken(i, 1), segment.kv[:, :, :, -1:], atol=1e-4, rtol=1e-3)
        for i in range(len(rows) - 1, -1, -1):
            draws = rows[i].pop("draws", 0)
            if draws:
                leader = rows[i]
                decoder.absorb(i)
                drop(i)
                for _ in range(draws):
                    assert decoder.add(leader["group"]) == len(rows)
                    rows.append({"ids": list(leader["ids"]), "group": leader["group"]})
        for i in range(len(rows) - 1, -1, -1):
            if rng.random() < 0.06:
                group = rows[i]["group"]
                drop(i)
                if not any(row["group"] is group for row in rows):
                    decoder.close(group)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_invariance_holds_here_and_is_refused_where_it_does_not(folder, dtype: str) -> None:
    from ttc.errors import EngineError

    body, _ = load_body(folder, dtype=dtype, head=True, kernel=blocked_attention, pad_rows=PAD_ROWS)
    check(body)

    def whimsical(q, k, v, hidden):
        return blocked_attention(q, k, v, hidden) * (1 + 1e-2 * q.shape[2])

    body.kernel = whimsical
    with pytest.raises(EngineError, match="batch_invariant"):
        check(body)


ids_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(ids_lists, st.lists(st.integers(0, 2), max_size=14))
def test_the_prefix_tree_finds_the_longest_prefix_ever_inserted(inserted, query) -> None:
    def value(ids) -> torch.Tensor:  # keys that tell the whole prefix of every position
        codes = [float(int("1" + "".join(map(str, ids[: i + 1])))) for i in range(len(ids))]
        return torch.tensor(codes, dtype=torch.float64).view(1, 1, 1, -1, 1).expand(1, 2, 1, -1, 1)

    tree = PrefixTree(10_000)
    for ids in inserted:
        known = tree.find(ids)
        tree.insert(ids, Segment(known.segment, value(ids)[:, :, :, known.length :]))
    segment, length = tree.find(query)

    def shared(ids) -> int:
        return next((i for i, (a, b) in enumerate(zip(ids, query, strict=False)) if a != b), min(len(ids), len(query)))

    assert length == max(shared(ids) for ids in inserted)
    assert (segment.end if segment else 0) == length
    if segment:
        keys, values = torch.zeros(2, 1, 1, length, 1, dtype=torch.float64)
        segment.write_to(keys, values)
        assert torch.equal(keys.flatten(), value(query[:length])[0, 0].flatten()) and torch.equal(keys, values)


def test_the_prefix_tree_forgets_the_least_recently_used_first() -> None:
    tree = PrefixTree(100)
    for i in range(12):
        tree.insert([i] * 10, Segment(None, torch.zeros(1, 2, 1, 10, 1)))
        tree.find([0] * 10)
    assert tree.num_tokens <= 100
    assert tree.find([0] * 10).length == 10 and tree.find([1] * 10).length == 0 and tree.find([11] * 10).length == 10


def settings_rows(count: int, temperature=1.0, top_p=1.0, top_k=0, seed=0) -> Rows:
    return Rows(
        temperature=np.full(count, temperature, np.float32),
        top_p=np.full(count, top_p, np.float32),
        top_k=np.full(count, top_k, np.int64),
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
@given(st.integers(0, 10_000), st.sampled_from([0, 1, 3, 40]), st.sampled_from([0.05, 0.5, 0.9, 1.0]))
def test_top_k_and_top_p_keep_exactly_the_tokens_of_their_definition(seed, top_k, top_p) -> None:
    vocab = 1000
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(seed)) * 2
    tokens = sample(logits, settings_rows(8, top_k=top_k, top_p=top_p, seed=seed)).tokens
    for i, token in enumerate(tokens):
        probs, order = torch.softmax(logits[i].double(), -1).sort(descending=True)
        probs, order = probs[: top_k or vocab], order[: top_k or vocab]
        before = (probs.cumsum(-1) - probs) / (probs.sum() if top_k else 1.0)
        assert token in order[before < top_p + 1e-6].tolist()


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

    rule = make_rule(("bca",), (25,), (24,), pieces, decode)
    assert rule.watch == {0, 26, 27, 25, 24}
    assert rule.reason([26, 2, 0]) == "bca"  # ab c a
    assert rule.reason([1, 27]) == "bca"  # b cab
    assert rule.reason([0, 0]) is None
    assert (rule.reason([25]), rule.reason([24])) == (25, "eos")


@pytest.mark.gpu
def test_captured_graphs_decode_like_a_full_forward_pass_on_a_gpu(folder) -> None:
    from ttc.engines.embedded.cuda import CudaDecoder

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    body, _ = load_body(folder, dtype="float32", device="cuda")
    decoder = CudaDecoder(body)
    rng = random.Random(0)
    rows: list[list[int]] = []
    for step in range(60):
        if step % 7 == 0:
            ids = [rng.randrange(200) for _ in range(1 + step)]
            ((_, segment),) = body.extend([(None, ids)])
            for _ in range(1 + step % 3):
                decoder.add(decoder.open(segment, 1))
                rows.append(list(ids))
        for row in rows:
            row.append(rng.randrange(200))
        hidden = decoder.step([row[-1] for row in rows], [len(row) - 1 for row in rows])
        i = rng.randrange(len(rows))
        ((whole, segment),) = body.extend([(None, rows[i])])
        torch.testing.assert_close(hidden[i], whole[-1], atol=1e-3, rtol=1e-2)
        torch.testing.assert_close(decoder.taken(i, 1), segment.kv[:, :, :, -1:], atol=1e-3, rtol=1e-2)
