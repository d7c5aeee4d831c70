"""The rules of strategies on the scripted engine; `tests.oracles` holds them to their laws."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from functools import partial

import pytest

from tests.ttc.questions import ask
from ttc.core import Answer, Path, Prompt, Sampling, Score, Scorer, Usage
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.engines.simulated import simulated
from ttc.scorers.constant import constant
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.adaptive import adaptive
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.budget_forcing import budget_forcing
from ttc.strategies.confidence import confidence
from ttc.strategies.first_finished import first_finished
from ttc.strategies.knockout import knockout
from ttc.strategies.majority import majority
from ttc.strategies.no_think_then_think import no_think_then_think
from ttc.strategies.tree import tree


def say(options: list[str], strategy, **kwargs) -> Answer:
    engine = ScriptedEngine(replies({"q": options}))
    return asyncio.run(solve(ask("q"), engine=engine, strategy=strategy, seed=0, **kwargs))


def test_majority_counts_classes_not_strings() -> None:
    answer = say([r"\boxed{1/2}", r"\boxed{7}", r"\boxed{\frac{1}{2}}", r"\boxed{0.5}"], partial(majority, n=4))
    assert answer.final == "1/2" and len(answer.candidates) == 4


def test_abstentions_never_win_even_when_they_are_most() -> None:
    answer = say(["I cannot find a way to do this at all."] * 6 + [r"\boxed{4}", r"\boxed{4}"], partial(majority, n=8))
    assert answer.final == "4"


def test_a_vote_of_abstentions_only_has_no_final_answer() -> None:
    assert say(["I cannot do it, sorry.", "This is beyond me, sadly."], partial(majority, n=2)).final is None


def test_a_completion_cut_by_length_cannot_win_a_vote() -> None:
    options = [r"\boxed{1} " + "x" * 100] * 3 + [r"\boxed{2}"]
    answer = say(options, partial(majority, n=4), sampling=Sampling(max_tokens=40))
    assert answer.final == "2"
    assert [c.finish_reason for c in answer.candidates] == ["length"] * 3 + ["stop"]


class Table(Scorer):
    """Scores a text by what it contains."""

    def __init__(self, table: dict[str, float | None]) -> None:
        self.table = table

    async def score(self, prompts, on_usage):
        for prompt in prompts:
            on_usage(Usage(scored=len(prompt.generated_ids)))
        return [Score(next((v for k, v in self.table.items() if k in p.generated_text), 0.0)) for p in prompts]


def test_best_of_n_takes_the_highest_score_and_weighted_the_largest_sum() -> None:
    options = [r"\boxed{1}", r"\boxed{2} a", r"\boxed{2} b"]
    scorer = Table({"{1}": 0.9, "{2}": 0.6})
    assert say(options, partial(best_of_n, scorer=scorer, n=3)).final == "1"
    assert say(options, partial(best_of_n, scorer=scorer, n=3, select="weighted")).final == "2"


def test_a_missing_score_is_not_zero_and_cannot_be_chosen() -> None:
    options = [r"\boxed{1}", r"\boxed{2}"]
    scorer = Table({"{1}": None, "{2}": -5.0})
    assert say(options, partial(best_of_n, scorer=scorer, n=2)).final == "2"


def test_tree_keeps_finished_paths_and_prunes_the_rest() -> None:
    options = [r"good\n\n\boxed{1}".replace(r"\n", "\n"), "bad\n\nworse\n\n\\boxed{2}"]
    scorer = Table({"bad": 0.1, "good": 0.9})
    answer = say(options, partial(tree, scorer=scorer, n=2, beam_width=2, select="argmax"))
    assert answer.final == "1"
    assert [event.path for event in answer.trace if event.kind == "prune"] == [(1,)]


def test_a_path_cut_by_depth_is_not_finished() -> None:
    answer = say(["a\n\n" * 9 + r"\boxed{1}"], partial(tree, scorer=constant(), n=2, max_depth=3))
    assert answer.final is None and {c.finish_reason for c in answer.candidates} == {"length"}


def test_budget_forcing_reports_how_the_budget_was_held() -> None:
    def script(prompt, path, key):
        said = prompt.generated_text
        return "A" if "</think>" in said else ("t" * 20 + "</think>A")[len(said) :]

    engine = ScriptedEngine(script, thinking=True)
    answer = asyncio.run(
        solve(ask("q", "exact"), engine=engine, strategy=partial(budget_forcing, max_thinking=5), seed=0)
    )
    assert answer.thinking.startswith("ttttt") and answer.enforced == "ids" and answer.text.strip() == "A"


@pytest.mark.parametrize(("own", "used"), [({}, 5), ({"max_thinking": 3}, 3), ({"max_thinking": 9}, 5)])
def test_budget_forcing_keeps_the_cap_of_the_run(own: dict[str, int], used: int) -> None:
    def script(prompt, path, key):
        said = prompt.generated_text
        return "A" if "</think>" in said else ("t" * 20 + "</think>A")[len(said) :]

    engine = ScriptedEngine(script, thinking=True)
    strategy = partial(budget_forcing, **own)
    control = Thinking(max_tokens=5)
    answer = asyncio.run(solve(ask("q", "exact"), engine=engine, strategy=strategy, seed=0, thinking=control))
    assert answer.usage.thinking == used
    off = Thinking(mode="off")
    silent = asyncio.run(solve(ask("q", "exact"), engine=engine, strategy=strategy, seed=0, thinking=off))
    assert silent.usage.thinking == 0, "thinking that is off is a cap of 0"


def test_a_knockout_reads_no_verdict_in_a_thought_under_marks_of_the_models_own() -> None:
    class Own(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__(self._say)
            self._capabilities = replace(self._capabilities, think_open=self.encode("«"), think_close=self.encode("»"))

        def _say(self, prompt: Prompt, path: Path, key: int) -> str:
            if "<answer_a>" in prompt.text:  # in its thought it is for 11, of which it then says nothing
                return f"«Verdict: {'B' if '7' in prompt.text.split('<answer_b>')[0] else 'A'}»I cannot say."
            return rf"\boxed{{{7 if path[-1] else 11}}}"

    answer = asyncio.run(solve(ask("q"), engine=Own(), strategy=partial(knockout, n=2), seed=0))
    assert answer.final == "7", "no verdict, so the shorter answer goes on"


DEEPER = {
    "majority": [majority, {"n": 4}, {"n": 9}],
    "adaptive": [adaptive, {"n": 4}, {"n": 9}],
    "confidence": [partial(confidence, warmup=2, keep=1, consensus=2), {"n": 4}, {"n": 9}],
    "first_finished": [partial(first_finished, m=2), {"n": 4}, {"n": 9}],
    "best_of_n": [partial(best_of_n, scorer=simulated_scorer(noise=1.0)), {"n": 4}, {"n": 9}],
    "knockout": [knockout, {"n": 4}, {"n": 9}],
    "no_think_then_think, cheap": [partial(no_think_then_think, agreement=1), {"n": 3}, {"n": 6}],
    "no_think_then_think, careful": [partial(no_think_then_think, agreement=1), {"m": 3}, {"m": 6}],
    "tree": [partial(tree, scorer=simulated_scorer(noise=1.0)), {"n": 4}, {"n": 8}],
}


@pytest.mark.parametrize("strategy", DEEPER)
def test_a_larger_n_only_adds_to_what_was_drawn(strategy: str) -> None:
    function, fewer, more = DEEPER[strategy]

    def drawn(parameters) -> dict[Path, str]:
        engine, texts = simulated(p=0.8, confidence=1.0), defaultdict(str)
        answer = asyncio.run(solve(ask("q"), engine=engine, strategy=partial(function, **parameters), seed=3))
        for event in answer.trace:
            texts[event.path] += event.data["text"] if event.kind == "generate" else ""
        return texts

    few, many = drawn(fewer), drawn(more)
    shared = [path for path in few if path in many]
    assert len(shared) >= 3 and len(many) > len(few)
    assert all(few[path].startswith(many[path]) or many[path].startswith(few[path]) for path in shared)
