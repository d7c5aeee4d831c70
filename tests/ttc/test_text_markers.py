"""Thinking markers of several tokens, in a tokenizer of Qwen2.5's form: found, counted, budgeted, adapted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.qwen_like import model
from train.recipe.adapt import FORMS, Adaptation, adapt
from ttc.core import Completion, Message, Problem, Sampling, Usage
from ttc.engines.embedded.engine import embedded
from ttc.engines.shared.text import Text
from ttc.engines.shared.wrapped import with_markers
from ttc.errors import ConfigError
from ttc.session.solve import solve
from ttc.session.thinking import Thinking, find_marker, split
from ttc.strategies.direct import direct

ASKED = (Message("user", "what is 3 + 4? write <think> and </think>"),)
NAMED = Thinking(open="<think>", close="</think>")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def thinker(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thinker") / "model"
    assert adapt(plain, folder, Adaptation()) == ("<think>", "</think>")
    return folder


def test_a_model_without_markers_has_none_until_they_are_declared(plain: Path, thinker: Path) -> None:
    assert Text(plain).markers is None and Text(plain).think_open == ()
    text = Text(thinker)
    assert text.markers == ("<think>", "</think>") and len(text.think_close) > 1
    assert (thinker / "model.safetensors").stat().st_ino == (plain / "model.safetensors").stat().st_ino


@pytest.mark.parametrize("said", ["so 7.</think>\n\nThe", "so 7</think>The", "so\n</think>.", "</think>\n"])
def test_a_marker_is_found_however_it_merges_with_what_stands_beside_it(thinker: Path, said: str) -> None:
    text = Text(thinker)
    assert text.think_texts is not None
    ids = text.encode(said)
    span = text.think_texts[1].find(ids)
    assert span is not None
    assert "</think>" in text.decode(ids[slice(*span)])
    assert "</think>" not in text.decode(ids[span[0] + 1 : span[1]])
    assert "</think>" not in text.decode(ids[span[0] : span[1] - 1])
    assert text.think_texts[1].find(ids, span[1]) is None


def test_the_template_opens_or_closes_a_thought_and_the_users_markers_move_nothing(plain: Path, thinker: Path) -> None:
    text = Text(thinker)
    auto, on, off = (text.render(ASKED, mode) for mode in (None, True, False))
    assert [prompt.think_state for prompt in (auto, on, off)] == ["none", "open", "closed"]
    assert auto.text == Text(plain).render(ASKED, None).text
    assert on.text == auto.text + "<think>\n" and off.text == auto.text + "<think>\n\n</think>\n\n"
    engine = with_markers(embedded(str(plain)), NAMED)
    try:
        assert [engine.render(ASKED, mode).text for mode in (None, True, False)] == [auto.text, on.text, off.text]
        assert engine.render(ASKED, True).token_ids == on.token_ids
    finally:
        asyncio.run(engine.close())


def answered(engine: Any, thinking: Thinking, seed: int) -> Any:
    problem = Problem("p", ASKED)
    sampling = Sampling(temperature=1.0, max_tokens=60)
    return solve(problem, engine=engine, strategy=direct, seed=seed, sampling=sampling, thinking=thinking)


@pytest.mark.parametrize("cap", [1, 7, 20])
@pytest.mark.parametrize("declared", [True, False])
def test_budgets_hold_to_the_token(plain: Path, thinker: Path, cap: int, declared: bool) -> None:
    control = Thinking(max_tokens=cap) if declared else Thinking(max_tokens=cap, open="<think>", close="</think>")

    async def work() -> None:
        engine = with_markers(embedded(str(thinker if declared else plain), batch_invariant=True), control)
        try:
            for seed in range(4):
                answer = await answered(engine, control, seed)
                assert answer.usage.thinking == cap  # random weights never end a thought by themselves
                assert answer.enforced == "ids" and "</think>" not in answer.text
                assert "<think>" not in answer.thinking
        finally:
            await engine.close()

    asyncio.run(work())


class Ending:
    """The engine inside, with a model that thinks `length` tokens, ends the text, and after a hand-over says 7."""

    def __init__(self, engine: Any, length: int) -> None:
        self._engine, self._thought = engine, engine.encode("so " * length)[:length]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, prompt: Any, sampling: Sampling, draws: range, on_usage: Any) -> list[Completion]:
        said = self._thought[len(prompt.generated_ids) :] if "</think>" not in prompt.generated_text else ()
        ids = ((*said, 0) if said else (*self.encode("7"), 0))[: sampling.max_tokens]
        ended = ids[-1] == 0
        usage = Usage(generated=len(ids), calls=1)
        on_usage(usage)
        reason = ("stop", "eos") if ended else ("length", None)
        text = self.decode(ids[:-1] if ended else ids)
        return [Completion((*prompt.path, draws[0]), text, ids, *reason, usage=usage)]


@pytest.mark.parametrize("longer", [-1, 0, 1, 2, 3])
def test_a_thought_that_ends_the_text_within_the_look_past_its_cap_is_cut_to_it(thinker: Path, longer: int) -> None:
    async def work() -> Any:
        inner = embedded(str(thinker))
        assert len(inner.capabilities.think_close) > 2
        try:
            return await answered(Ending(inner, 8 + longer), Thinking(max_tokens=8), 0)
        finally:
            await inner.close()

    answer = asyncio.run(work())
    assert answer.usage.thinking == min(8 + longer, 8)
    assert (answer.text.strip() == "7") == (longer > 0)


def test_without_markers_a_budget_is_refused_with_both_ways_out(plain: Path) -> None:
    async def work() -> None:
        engine = embedded(str(plain))
        try:
            await answered(engine, Thinking(max_tokens=5), 0)
        finally:
            await engine.close()

    with pytest.raises(ConfigError, match=r"thinking\.open=.*ttc train adapt"):
        asyncio.run(work())


def test_tokens_of_their_own_start_as_the_mean_of_their_pieces(plain: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    adapt(plain, tmp_path / "m", Adaptation(tokens=True))
    text, before = Text(tmp_path / "m"), Text(plain)
    assert text.markers == ("<think>", "</think>") and len(text.think_open) == 1 and text.think_texts is None
    tables = [AutoModelForCausalLM.from_pretrained(p).get_input_embeddings().weight for p in (plain, tmp_path / "m")]
    pieces = tables[0][list(before.encode("</think>"))]
    assert (tables[1][text.think_close[0]] - pieces.mean(0)).abs().max() < 1e-6
    assert (tables[1][: len(tables[0])] == tables[0]).all()
    assert find_marker(text.encode("a</think>b"), _capabilities(text), inside=True) == (1, 2)


def _capabilities(text: Text) -> Any:
    from ttc.core import Capabilities

    return Capabilities("m", 64, think_open=text.think_open, think_close=text.think_close)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_asked_by_the_template_and_has_the_switch(plain: Path, tmp_path: Path, form: str) -> None:
    adapt(plain, tmp_path / "m", Adaptation(form=form))
    text = Text(tmp_path / "m")
    prompt = text.render((Message("user", "What is 2 + 2?"),), None)
    wanted = FORMS[form].system.replace("{open}", "<think>").replace("{close}", "</think>")
    assert wanted in prompt.text and "What is 2 + 2?" in prompt.text
    assert text.render((Message("user", "2?"),), True).think_state == "open"
    stops = json.loads((tmp_path / "m" / "generation_config.json").read_text())["eos_token_id"]
    assert stops == [text.tokenizer.eos_token_id]


def test_other_markers_than_a_models_own_tokens_are_refused(tmp_path: Path) -> None:
    from ttc import nano

    with pytest.raises(ConfigError, match="tokens of its own"):
        adapt(nano.path("teacher"), tmp_path / "m", Adaptation("[t]", "[/t]"))
    with pytest.raises(ConfigError, match=r"thinking\.open and thinking\.close go together"):
        Adaptation("[t]")


def test_a_thought_and_its_answer_lose_no_character_at_the_seam(thinker: Path) -> None:
    text = Text(thinker)
    from ttc.core import Capabilities

    capabilities = Capabilities("m", 64, think_texts=text.think_texts, think_open=(1, 2), think_close=(3, 4))
    ids = text.encode("so 7.</think>\n\n7")
    assert not split(ids, True, capabilities).inside
