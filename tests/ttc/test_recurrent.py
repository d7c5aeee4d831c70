"""Models with a recurrent state: a text can be continued only where a state was kept, and every draw is the model's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ttc import tiny_model
from tests.ttc.tiny_model import RECURRENT
from ttc.core import Completion, Message, Prompt, Sampling, Usage
from ttc.engines.embedded.core.cache import PrefixTree
from ttc.engines.embedded.core.pool import PagePool
from ttc.engines.embedded.engine import EmbeddedEngine, embedded
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

STATE = 7
"""Tokens that a state counts for in the tests of the prefix tree."""
DIMS = Dims(
    hidden=1, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1, intermediate=1, vocab=10, eps=0.0, tied=True,
    qk_norm=False, max_context=1 << 20, rope_theta=1.0, rope={},
)  # fmt: skip


@dataclass(frozen=True, weakref_slot=True, slots=True)
class Known:
    """A state that tells the text it belongs to."""

    ids: tuple[int, ...]


def ask(engine: EmbeddedEngine, text: str) -> Prompt:
    return replace(engine.render((Message("user", text),), None), problem_id=text)


async def draw(engine: EmbeddedEngine, prompt: Prompt, tokens: int, count: int = 1) -> list[Completion]:
    usages: list[Usage] = []
    return await engine.generate(prompt, Sampling(temperature=0, max_tokens=tokens), range(count), usages.append)


def disagreements(model: Any, prompt: Prompt, answer: tuple[int, ...]) -> list[int]:
    """Places of an answer where the forward pass over the whole text clearly prefers another token."""
    ids = torch.tensor([[*prompt.token_ids, *answer]])
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0, len(prompt.token_ids) - 1 : -1]
    behind = logits.amax(-1) - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return (behind > 1e-3).nonzero().flatten().tolist()


@pytest.mark.parametrize("family", RECURRENT)
def test_every_draw_is_what_the_forward_pass_prefers_first_again_and_on_branches(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tiny_model.build(tmp_path, family, **RECURRENT[family])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    engine = embedded(str(tmp_path), dtype="float32", device="cpu")

    async def go() -> list[tuple[Prompt, tuple[int, ...]]]:
        prompts = [ask(engine, "short"), ask(engine, "one that is longer " * 4)]
        texts: list[tuple[Prompt, tuple[int, ...]]] = []
        for _ in range(2):
            results = await asyncio.gather(*(draw(engine, prompt, 12, 2) for prompt in prompts))
            texts += [(p, d.token_ids) for p, done in zip(prompts, results, strict=True) for d in done]
        (step,) = await draw(engine, prompts[1], 5)
        branch = prompts[1].then(step)
        texts += [(branch, d.token_ids) for d in await draw(engine, branch, 6, 3)]
        forced = replace(branch, token_ids=(*branch.token_ids, 40, 41, 42))  # as a strategy adds words of its own
        texts += [(forced, d.token_ids) for d in await draw(engine, forced, 6, 2)]
        cut = replace(branch, token_ids=branch.token_ids[:-2])  # in the middle of what was drawn
        texts += [(cut, d.token_ids) for d in await draw(engine, cut, 6)]
        await engine.close()
        return texts

    texts = asyncio.run(go())
    assert len(texts) == 14
    assert [disagreements(model, *text) for text in texts] == [[]] * 14


def test_a_branch_computes_one_token_of_its_path_and_a_prompt_asked_for_again_none(tmp_path: Path) -> None:
    tiny_model.build(tmp_path, "lfm2", **RECURRENT["lfm2"])
    engine = embedded(str(tmp_path), dtype="float32", device="cpu")

    async def go() -> list[int]:
        prompt = ask(engine, "one that is longer " * 4)
        (first,) = await draw(engine, prompt, 5)
        (again,) = await draw(engine, prompt, 5)
        (below,) = await draw(engine, prompt.then(first), 5)
        await engine.close()
        return [one.usage.prompt - one.usage.cached for one in (again, below)]

    assert asyncio.run(go()) == [0, 1]


def test_a_common_start_of_many_prompts_is_computed_twice_and_then_continued(tmp_path: Path) -> None:
    tiny_model.build(tmp_path, "lfm2", **RECURRENT["lfm2"])
    engine = embedded(str(tmp_path), dtype="float32", device="cpu")

    async def go() -> list[Usage]:
        prompts = [ask(engine, "the same examples before all of them " * 3 + word) for word in ("a", "b", "c", "d")]
        answers = await asyncio.gather(*(draw(engine, prompt, 2) for prompt in prompts))
        await engine.close()
        return [answer.usage for (answer,) in answers]

    usages = asyncio.run(go())
    shared = usages[3].cached
    assert shared > 100
    assert [usage.cached for usage in usages] == [0, 0, shared, shared]


def test_a_search_in_memory_for_a_few_states_draws_the_same_within_it(tmp_path: Path) -> None:
    tiny_model.build(tmp_path, "qwen3_5_text", **RECURRENT["qwen3_5_text"])
    roomy = embedded(str(tmp_path), dtype="float32", device="cpu")
    pool = roomy._scheduler.body.pool
    token = roomy._scheduler.body.dims.kv_bytes(4)
    most = 14 * pool.state_tokens
    tight = embedded(str(tmp_path), dtype="float32", device="cpu", kv_bytes=most * token)
    batch, held = tight._scheduler._batch, list[int]()
    tick = batch.tick

    def watched() -> None:
        tick()
        held.append(batch._body.pool.num_tokens)

    batch.tick = watched

    async def search(engine: EmbeddedEngine, problem: int) -> list[tuple[int, ...]]:
        """Three steps; the two first draws of each go on, and one that was left is drawn from again."""
        sampling = Sampling(temperature=1.0, max_tokens=6, seed=5)
        root = ask(engine, f"problem {problem} " * 3)
        frontier, seen = [root], list[tuple[int, ...]]()
        for _ in range(3):
            draws = [(p, d) for p in frontier for d in await engine.generate(p, sampling, range(3), lambda _: None)]
            seen += [d.token_ids for _, d in draws]
            frontier = [p.then(d) for p, d in draws[:2]]
        seen += [d.token_ids for d in await engine.generate(root, sampling, range(3, 5), lambda _: None)]
        engine.release(root.problem_id)
        return seen

    async def go(engine: EmbeddedEngine) -> list[list[tuple[int, ...]]]:
        drawn = await asyncio.gather(*(search(engine, problem) for problem in range(4)))
        await engine.close()
        return drawn

    assert asyncio.run(go(tight)) == asyncio.run(go(roomy))
    assert 0 < max(held) <= most


def test_a_cache_of_its_own_kind_is_refused_by_name(tmp_path: Path) -> None:
    tiny_model.build(tmp_path, "minimax", layer_types=["linear_attention", "full_attention"], num_local_experts=2)
    with pytest.raises(ConfigError, match=r"a minimax model keeps a cache of its own kind.*--engine vllm"):
        embedded(str(tmp_path), device="cpu")


def insert(tree: PrefixTree, pool: PagePool, ids: tuple[int, ...], goal: int) -> None:
    """Compute `ids` up to `goal` after the longest prefix that can be continued, as the batch does."""
    prefix, start = tree.find(ids[:goal])
    segment = pool.segment(prefix)
    assert segment.state == (Known(ids[:start]) if start else None)
    if goal > start:
        kv = torch.tensor([float(i) for i in ids[start:goal]]).view(1, 1, 1, -1, 1).repeat(1, 2, 1, 1, 1)
        pool.append(segment, kv)
        pool.keep(segment, Known(ids[:goal]))
        tree.insert(ids[:goal], segment)


TEXTS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple), st.integers(1, 9), st.integers(0, 60)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_a_text_is_found_only_up_to_a_state_which_is_its_own_whatever_was_split_and_evicted(
    texts: list[tuple[tuple[int, ...], int, int]],
) -> None:
    pool = PagePool(DIMS, torch.float32, torch.device("cpu"), 4, state_tokens=STATE)
    tree, kept = PrefixTree(pool), set[tuple[int, ...]]()
    for ids, goal, most in texts:
        goal = min(goal, len(ids))
        match = tree.find(ids)
        assert match.length == 0 or ids[: match.length] in kept
        assert match.segment is None or match.segment.state == Known(ids[: match.length])
        if match.segment is not None:
            values = pool.read_chain(match.segment, 0, match.length)[0, 0].flatten().tolist()
            assert values == list(ids[: match.length])
        insert(tree, pool, ids, goal)
        kept.add(ids[:goal])
        assert tree.length(ids[:goal]) == goal
        del match
        tree.evict(most)
        assert pool.num_tokens <= most
    tree.clear()
    assert pool.num_tokens == 0


def test_states_between_texts_go_before_texts_and_one_that_a_row_may_start_from_stays() -> None:
    pool = PagePool(DIMS, torch.float32, torch.device("cpu"), 4, state_tokens=STATE)
    tree = PrefixTree(pool)
    for ids in ((1, 2), (1, 2, 3), (1, 2, 3, 4)):
        insert(tree, pool, ids, len(ids))
    row = pool.segment(tree.find((1, 2)).segment)
    tree.evict(pool.num_tokens - 1)
    assert [tree.length(ids) for ids in ((1, 2), (1, 2, 3), (1, 2, 3, 4))] == [2, 2, 4]
    del row
    tree.evict(pool.num_tokens - 1)
    assert [tree.length(ids) for ids in ((1, 2), (1, 2, 3), (1, 2, 3, 4))] == [0, 0, 4]
