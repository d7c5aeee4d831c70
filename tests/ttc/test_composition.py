"""Strategies of strategies: one budget, one ledger, one text; what cannot be is refused by the option's name."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evals.experiment import settings_of
from tests.ttc import conformance as suite
from tests.ttc.questions import ask
from tests.ttc.test_options import parsed
from ttc.cli.parts import resolve_strategies, without_seeds
from ttc.cli.rehearsal import refuse_early
from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.registry import ENGINES, STRATEGIES
from ttc.core import Answer, Budget, Sampling, Scorer, Strategy
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError
from ttc.identity.digests import strategy_contents
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.session import Session
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.aggregate import aggregate
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.direct import direct
from ttc.strategies.majority import majority
from ttc.strategies.refine import refine

PAGE = Path(__file__).parents[2] / "ttc" / "strategies" / "README.md"


def answer_of(strategy: Strategy, engine: ScriptedEngine | None = None, **options: Any) -> Answer:
    work = solve(ask("12+30*2"), engine=engine or suite.talkative(), strategy=strategy, seed=3, **options)
    return asyncio.run(work)


def block(kind: str) -> str:
    (text,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(text)


def test_the_example_of_the_page_gives_one_answer_in_python_and_as_text() -> None:
    names: dict[str, Any] = {}
    exec(block("python"), names)
    answer, same = names["answer"], names["same"]
    assert (answer.final, len(answer.candidates), answer.usage.generated) == (same.final, 3, same.usage.generated)
    assert {candidate.path[0] for candidate in answer.candidates} == {0, 1, 2}


def test_the_recipe_of_the_page_names_an_inner_strategy_with_its_parameters(tmp_path: Path) -> None:
    recipe = tmp_path / "run.toml"
    recipe.write_text(block("toml"))
    (choice,) = resolve_strategies(parsed("--config", str(recipe)))
    assert choice.inner["of"].function is refine
    params = choice.all_params()
    assert (params["n"], params["of"], params["of.rounds"], params["of.feedback"]) == (4, "refine", 1, "sums")
    assert json.loads(json.dumps(params)) == params


def test_parameters_of_an_inner_strategy_are_set_with_it() -> None:
    arguments = ("--strategy", "majority,direct", "--set", "of=refine", "--set", "of.rounds=1")
    vote, single = resolve_strategies(parsed(*arguments))
    (same,) = resolve_strategies(parsed("--strategy", "majority:of=refine,of.rounds=1"))
    assert (vote.params, vote.inner) == (same.params, same.inner) and not single.params
    with pytest.raises(ConfigError, match=r"direct has no parameter 'of.rounds'"):
        resolve_strategies(parsed("--strategy", "direct", "--set", "of.rounds=1"))


def test_a_vote_of_single_draws_is_the_vote_of_the_inner_draws() -> None:
    """Run i of `direct` is draw 0 below i: another draw than i, so only counts agree."""
    plain, composed = answer_of(partial(majority, n=5)), answer_of(partial(majority, n=5, of=direct))
    assert [candidate.path for candidate in composed.candidates] == [(i, 0) for i in range(5)]
    assert len(plain.candidates) == len(composed.candidates) == 5
    assert (plain.usage.calls, composed.usage.calls) == (5, 5)


def test_each_run_refines_its_own_draw_and_is_scored_as_an_answer_to_the_problem() -> None:
    class Watching(Scorer):
        def __init__(self) -> None:
            self.prompts: list[Any] = []

        async def score(self, prompts: Any, on_usage: Any) -> Any:
            self.prompts += prompts
            return await simulated_scorer(noise=1.0).score(prompts, on_usage)

    scorer = Watching()
    answer = answer_of(partial(best_of_n, n=3, scorer=scorer, of=partial(refine, rounds=2, feedback="self")))
    assert [candidate.path[0] for candidate in answer.candidates] == [0, 1, 2]
    assert all(len(candidate.path) > 1 for candidate in answer.candidates)
    assert answer.usage.calls == 9
    assert {prompt.messages for prompt in scorer.prompts} == {ask("12+30*2").messages}
    assert {prompt.token_ids[: prompt.rendered_len] for prompt in scorer.prompts} == {
        tuple(suite.talkative().render(ask("12+30*2").messages, None).token_ids or ())
    }
    assert all(prompt.generated_text for prompt in scorer.prompts)
    assert [candidate.score is not None for candidate in answer.candidates] == [True] * 3


def test_leaves_of_a_tree_are_what_is_aggregated() -> None:
    leaves = answer_of(suite.noisy_tree(n=4)).candidates
    answer = answer_of(partial(aggregate, n=3, k=2, rounds=1, of=suite.noisy_tree(n=4)))
    shown = [c.path for c in answer.candidates if len(c.path) > 1]
    assert len(answer.candidates) == len(leaves) + 3
    assert all(path[0] == 0 for path in shown)


@pytest.mark.parametrize("name", STRATEGIES.names())
def test_what_any_strategy_considered_is_aggregated_and_no_draw_is_asked_for_twice(name: str) -> None:
    answer = answer_of(partial(aggregate, n=4, k=2, rounds=2, of=suite.case_of(name).make()))
    paths = [candidate.path for candidate in answer.candidates]
    assert len(set(paths)) == len(paths) >= 9  # one at least of the strategy, and four of each round


@pytest.mark.parametrize("name", suite.COMPOSITIONS)
def test_a_composition_holds_its_budget_and_answers_from_the_price_of_one_answer(name: str) -> None:
    def engine() -> ScriptedEngine:
        return simulated(p=0.9, steps=3)

    strategy = suite.COMPOSITIONS[name].make()
    price = answer_of(direct, engine()).usage
    for multiple in (1, 2, 5, 13):
        for budget in (Budget(tokens=multiple * price.tokens), Budget(calls=multiple * price.calls)):
            made = engine()
            answer = answer_of(strategy, made, budget=budget)
            assert answer.final is not None, (multiple, budget)
            assert answer.usage.tokens <= (budget.tokens or answer.usage.tokens)
            assert answer.usage.calls <= (budget.calls or answer.usage.calls)
            assert made.counters().generated == answer.usage.generated + answer.usage.overrun


def test_under_a_budget_the_first_run_is_finished_before_the_second_begins() -> None:
    free = answer_of(direct).usage.tokens
    answer = answer_of(partial(majority, n=8, of=direct), budget=Budget(tokens=2 * free + 3))
    assert answer.stop_cause == "budget"
    assert next(c.path for c in answer.candidates if c.final is not None) == (0, 0)
    assert len(answer.candidates) < 8


def test_what_runs_of_a_plan_note_stands_at_their_own_place_whatever_the_schedule() -> None:
    strategy = partial(majority, n=3, of=suite.case_of("auto").make())
    answers = [answer_of(strategy, suite.talkative(jitter)) for jitter in (1, 5)]
    notes = [[(event.path, event.data) for event in suite.events_of(answer, "note")] for answer in answers]
    assert notes[0] == notes[1] and [path for path, _ in notes[0]] == [(0,), (1,), (2,)]


async def silent(problem: Any, session: Session) -> Answer:
    return Answer(text="4", final="4")


def test_an_inner_strategy_without_candidates_is_refused_by_the_name_of_the_option() -> None:
    for outer, option in ((majority, "majority.of"), (aggregate, "aggregate.of")):
        with pytest.raises(ConfigError, match=f"{option}: this strategy returned no candidates"):
            answer_of(partial(outer, of=silent))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("majority:of=refin", "majority.of: unknown strategy 'refin'; did you mean 'refine'"),
        ("majority:of=refine,of.round=1", "majority.of: refine has no parameter 'round'; did you mean 'rounds'"),
        ("majority:of=refine,of.rounds=x", "majority.of: refine: rounds must be int, got 'x'"),
        ("majority:of.rounds=1", "majority.of: rounds without a strategy: name it, as in of=refine"),
        ("direct:of=refine", "direct has no parameter 'of'"),
        ("majority:of=best_of_n,of.of=tre", "majority.of: best_of_n.of: unknown strategy 'tre'"),
    ],
)
def test_what_is_wrong_inside_is_told_with_the_option(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        resolve_strategies(parsed("--strategy", text))


def test_what_an_inner_strategy_refuses_is_refused_before_anything_is_loaded() -> None:
    (choice,) = resolve_strategies(parsed("--strategy", "majority:of=refine,of.rounds=-1"))
    with pytest.raises(ConfigError, match=r"majority\.of: refine: rounds must be at least 0"):
        refuse_early([choice], has_scorer=False, sampling=Sampling(), thinking=Thinking())


def test_what_an_inner_strategy_needs_the_outer_one_asks_for(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("async def mine(problem, session, *, n: int = 2):\n    ...\n")
    vote = StrategyChoice.of("majority", {"of": {"strategy": "tree", "n": 4}})
    assert vote.needs_scorer and vote.takes_scorer
    assert not StrategyChoice.of("majority", {}).takes_scorer
    assert settings_of(vote, 0.8, 0.8) == {"of": "tree", "of.n": 4}
    assert list(strategy_contents(StrategyChoice.of("majority", {"of": f"{file}:mine"}))) == ["strategy file mine.py"]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_log_probabilities_are_asked_for_where_an_inner_strategy_reads_them(name: str) -> None:
    engine = PartChoice.of(ENGINES, name, {}, "org/model")
    plain, reading = StrategyChoice.of("majority", {}), StrategyChoice.of("majority", {"of": "confidence"})
    assert without_seeds(engine, {}, plain.functions).params["logprobs"] is False
    assert "logprobs" not in without_seeds(engine, {}, reading.functions).params


def test_a_question_outside_a_runs_own_tree_is_refused() -> None:
    async def stray(problem: Any, session: Session) -> Answer:
        session.ask(problem.messages, (7,))
        raise AssertionError("not reached")

    with pytest.raises(ConfigError, match=r"path \[7\] is not below \[0\]: begin it with session.root"):
        answer_of(partial(majority, n=2, of=stray))
