"""The rules of strategies that ask again: aggregation, refinement, escalation; and the small print of the others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.oracles.tools import answers, ballots, say
from tests.ttc.questions import ask
from ttc.answers import kind_of
from ttc.choosing.selection import choose
from ttc.core import Answer, Budget, Prompt, Score, Scorer, Usage
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError
from ttc.scorers.constant import constant
from ttc.search.policies.beam import beam
from ttc.search.policies.entropic import entropic
from ttc.search.policies.particle import particle
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.aggregate import aggregate
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.no_think_then_think import no_think_then_think
from ttc.strategies.refine import refine, wrong_sums
from ttc.strategies.tools import tools
from ttc.strategies.tree import tree


def scripted(script, strategy, *, thinking: bool = False, control: Thinking | None = None) -> Answer:
    engine = ScriptedEngine(script, thinking=thinking)
    return asyncio.run(solve(ask("q"), engine=engine, strategy=strategy, seed=2, thinking=control))


def attempts(prompt: Prompt) -> list[str]:
    asked = prompt.messages[-1].content
    return [part.split("\n", 1)[1].strip() for part in asked.split("Attempt ")[1:] if "\n" in part]


def test_each_aggregation_sees_k_different_members_of_the_last_round_and_the_last_round_votes() -> None:
    seen: list[list[str]] = []

    def script(prompt: Prompt, path, key) -> str:
        shown = [text for text in attempts(prompt) if "boxed" in text]
        if not shown:
            return f"first {path[0]} \\boxed{{{path[0]}}}"
        seen.append(shown)
        return f"round {len(path)} {path[-1]} \\boxed{{{90 + len(path)}}}"

    answer = scripted(script, partial(aggregate, n=5, k=3, rounds=2))
    assert answer.final == "93" and len(answer.candidates) == 15 and len(seen) == 10
    assert all(len(shown) == len(set(shown)) == 3 for shown in seen)
    assert sum(all(text.startswith("first") for text in shown) for shown in seen) == 5
    assert sum(all(text.startswith("round 2") for text in shown) for shown in seen) == 5
    assert len({candidate.path for candidate in answer.candidates}) == 15
    assert len({tuple(sorted(shown)) for shown in seen}) > 2


def test_of_equal_classes_in_the_last_round_that_wins_which_more_answers_of_all_rounds_gave() -> None:
    """The last round says 1 and 2, and the shorter is 1; of the first, two said 2."""

    def script(prompt, path, key):
        if len(path) == 1:
            return [r"\boxed{2}", r"\boxed{2}", r"\boxed{3}"][path[0]]
        return [r"\boxed{1}", r"at length \boxed{2}", "no idea"][path[-1]]

    assert scripted(script, partial(aggregate, n=3, k=1, rounds=1)).final == "2"


def test_aggregation_lifts_a_population_that_can_tell_right_from_wrong() -> None:
    def script(prompt: Prompt, path, key) -> str:
        shown = "\n".join(attempts(prompt))
        if not shown:
            return f"\\boxed{{{11 if path[0] == 3 else 50 + path[0]}}}"
        return "\\boxed{11}" if "{11}" in shown else f"\\boxed{{{60 + path[-1]}}}"

    assert scripted(script, partial(aggregate, n=6, k=3, rounds=4)).final == "11"
    assert scripted(script, partial(aggregate, n=6, k=3, rounds=0)).final == "50"


def test_refinement_goes_on_while_a_sum_is_wrong_and_stops_when_none_is() -> None:
    complaints: list[str] = []

    def script(prompt: Prompt, path, key) -> str:
        if len(path) > 1:
            complaints.append(prompt.messages[-1].content)
            assert prompt.messages[-2].role == "assistant"
        return ["2+2=5 so \\boxed{5}", "2+2=6 so \\boxed{6}", "2+2=4 so \\boxed{4}", "never \\boxed{0}"][len(path) - 1]

    answer = scripted(script, partial(refine, rounds=5))
    assert answer.final == "4" and len(answer.candidates) == 3 and answer.stop_cause == "no complaint"
    assert "2+2=5" in complaints[0] and "2+2=6" in complaints[1]
    assert scripted(script, partial(refine, rounds=1)).final == "6"
    assert scripted(script, partial(refine, rounds=0)).final == "5"


def test_refinement_by_a_scorer_quotes_the_step_it_doubts_most() -> None:
    class Steps(Scorer):
        async def score(self, prompts, on_usage):
            return [Score(0.9, (0.9, 0.2, 0.4)) if "bad" in p.generated_text else Score(0.9, (0.9,)) for p in prompts]

    said: list[str] = []

    def script(prompt: Prompt, path, key) -> str:
        said.append(prompt.messages[-1].content)
        return "good\n\nbad one\n\nso \\boxed{1}" if len(path) == 1 else "right \\boxed{2}"

    answer = scripted(script, partial(refine, feedback="scorer", scorer=Steps()))
    assert answer.final == "2" and "step 2: bad one" in said[1] and len(said) == 2
    assert scripted(script, partial(refine, feedback="scorer", threshold=0.1, scorer=Steps())).final == "1"


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_the_last_revision_is_not_judged_as_nothing_would_come_of_it(rounds: int) -> None:
    class Doubtful(Scorer):
        judged = 0

        async def score(self, prompts, on_usage):
            self.judged += len(prompts)
            return [Score(0.1, (0.1,)) for _ in prompts]

    critic = Doubtful()
    answer = scripted(lambda *_: r"so \boxed{1}", partial(refine, feedback="scorer", scorer=critic, rounds=rounds))
    assert (len(answer.candidates), critic.judged) == (rounds + 1, rounds)


def test_an_answer_that_was_lost_in_a_revision_does_not_replace_one_that_was_found() -> None:
    def script(prompt: Prompt, path, key) -> str:
        return "1+1=3 \\boxed{3}" if len(path) == 1 else "I cannot say more about it, sorry."

    assert scripted(script, partial(refine, rounds=1)).final == "3"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("12+30*2=72, so 72/3=25", ["72/3=25"]),
        ("Step 1. 3+4=8", ["3+4=8"]),
        ("2x + 3*4 = 20 and x+3*4=20", []),
        ("10/3=3.5 and 10/3=3.38", ["10/3=3.5", "10/3=3.38"]),
        ("10/3=3.33 and 10/3 = 3.3 and 10/3=3", ["10/3=3"]),
        ("(1+2)*3=10; 7-(-2)=9", ["(1+2)*3=10"]),
        ("2+3=5+1=6", []),
        ("431/125=3.4", []),
        ("1/0=5", []),
    ],
)
def test_only_plain_equalities_that_do_not_hold_are_complained_about(text: str, wrong: list[str]) -> None:
    assert wrong_sums(text) == wrong


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("1,200 / 4 = 300", "1,200 / 4 = 301"),
        ("1,500 * 3 = 4,500", "1,500 * 3 = 4,600"),
        ("2,500 + 1 = 2,501", "2,500 + 1 = 2,502"),
        ("7/2 = 3 1/2", "7/2 = 4 1/2"),
        ("2 1/2 + 1 = 3 1/2", "2 1/2 + 1 = 4"),
        ("-7 1/2 - 1 = -8 1/2", "-7 1/2 - 1 = -7 1/2"),
        ("3 x 4 + 2 = 14", "3 x 4 + 2 = 18"),
        ("3x4=12", "3x4=13"),
        ("4 × 5 = 20", "4 × 5 = 21"),
    ],
)
def test_sums_are_recomputed_in_the_forms_that_people_write(right: str, wrong: str) -> None:
    assert wrong_sums(f"so {right}, or {wrong}.") == [wrong]


@pytest.mark.parametrize(
    "text",
    ["5 x $2 + 3 = 13", "x 2 + 3 = 7", "2x-3=5", "0x10 + 1 = 17", "5 / 2 = 2 remainder 1", "5/2 = 2 r 1", "3/6 = 50%"],
)
def test_a_part_of_a_longer_sum_is_not_complained_about(text: str) -> None:
    assert wrong_sums(text) == []


def thinker(cheap: list[str], careful: list[str]):
    def script(prompt: Prompt, path, key) -> str:
        if prompt.think_state == "open":
            return f"hm</think>{careful[path[0] % len(careful)]}"
        return cheap[path[0] % len(cheap)]

    return script


def test_agreement_without_thinking_is_kept_and_disagreement_escalates() -> None:
    strategy = partial(no_think_then_think, n=4, m=3, agreement=0.75)
    one, two, five = r"\boxed{1}", r"\boxed{2}", r"\boxed{5}"
    agreed = scripted(thinker([one, one, two, one], [five]), strategy, thinking=True)
    assert agreed.final == "1" and len(agreed.candidates) == 4 and agreed.stop_cause == "agreed"
    split = scripted(thinker([one, one, two, two], [five]), strategy, thinking=True)
    assert split.final == "5" and len(split.candidates) == 7 and split.stop_cause == "escalated"
    assert split.usage.thinking == 6 and agreed.usage.thinking == 0
    assert split.usage.generated == sum(c.num_tokens + 1 for c in split.candidates)
    lost = scripted(thinker([one, two, one, two], ["I cannot say anything, sorry."]), strategy, thinking=True)
    assert lost.final == "1"


@pytest.mark.parametrize("off", [Thinking(mode="off"), Thinking(max_tokens=0)])
def test_what_escalates_to_thought_is_refused_where_thinking_is_off(off: Thinking) -> None:
    with pytest.raises(ConfigError, match="thinking is off"):
        scripted(thinker(["a"], ["b"]), partial(no_think_then_think, n=1, m=1), thinking=True, control=off)


@pytest.mark.parametrize(
    ("tokens", "final", "num_thoughts"), [(60, "7", 1), (100, "7", 1), (400, "7", 2), (22, "0", 0)]
)
def test_of_few_tokens_a_thought_keeps_what_its_answer_takes(tokens: int, final: str, num_thoughts: int) -> None:
    """Two answers of ten tokens disagree; a thought of a hundred would leave nothing for its own."""

    def script(prompt: Prompt, path, key) -> str:
        if prompt.think_state == "closed":
            return rf"\boxed{{{path[0]}}}"
        thought, closed, answer = prompt.generated_text.partition("</think>")
        return r"\boxed{7}"[len(answer.strip()) :] if closed else "t" * 100 + r"</think>\boxed{7}"

    engine = ScriptedEngine(script, thinking=True)
    strategy = partial(no_think_then_think, n=2, m=2)
    answer = asyncio.run(solve(ask("q"), engine=engine, strategy=strategy, seed=2, budget=Budget(tokens=tokens)))
    assert answer.final == final and answer.usage.tokens <= tokens
    assert sum(candidate.path[0] >= 1000 for candidate in answer.candidates) == num_thoughts


def test_abstentions_do_not_agree() -> None:
    silent = "I cannot find a way to do this at all."
    strategy = partial(no_think_then_think, n=4, m=1, agreement=0.75)
    script = thinker([silent, silent, silent, r"\boxed{1}"], [r"\boxed{5}"])
    assert scripted(script, strategy, thinking=True).final == "5"


class Fixed(Scorer):
    """Step scores by the draw's own words."""

    async def score(self, prompts, on_usage):
        table = {"a": (0.9, 0.1), "b": (0.2, 0.8), "c": (0.6, 0.6)}
        for prompt in prompts:
            on_usage(Usage(scored=len(prompt.generated_ids)))
        return [Score(table[p.generated_text[0]][-1], table[p.generated_text[0]]) for p in prompts]


@pytest.mark.parametrize(
    ("more", "final"),
    [
        ({}, "2"),
        ({"aggregation": "min"}, "3"),
        ({"aggregation": "prod"}, "3"),
        ({"aggregation": "min", "window": 1}, "2"),
    ],
)
def test_best_of_n_and_tree_aggregate_steps_as_they_are_told(more, final: str) -> None:
    options = [r"a \boxed{1}", r"b \boxed{2}", r"c \boxed{3}"]
    assert say(options, partial(best_of_n, scorer=Fixed(), n=3, **more)).final == final
    assert say(options, partial(tree, scorer=Fixed(), n=3, select="argmax", **more)).final == final


@pytest.mark.parametrize("policy", ["dvts", "puct", "gibbs:rounds=1"])
def test_a_path_may_have_max_depth_steps_and_no_more(policy: str) -> None:
    text = "a \\boxed{1}\n\n" * 3 + r"\boxed{1}"
    assert say([text], partial(tree, scorer=Fixed(), n=2, max_depth=4, policy=policy)).final == "1"
    cut = say([text], partial(tree, scorer=Fixed(), n=2, max_depth=3, policy=policy))
    assert cut.final is None and {len(c.path) for c in cut.candidates} == {3}


def test_beam_uses_a_width_that_m_does_not_divide_in_full() -> None:
    assert beam(beam_width=3).allocate([0.5, 0.9, 0.1, 0.7], 7) == [2, 3, 0, 2]
    assert beam(beam_width=4).allocate([0.5, 0.9], 2) == [0, 2]


def test_tempering_is_strongest_at_the_start_and_gone_at_the_horizon() -> None:
    logs = [0.0, -3.0, -3.0, -3.0, -3.0, -3.0]
    dice = lambda i: 0.5  # noqa: E731
    plain = particle().resample(logs, 6, 1, dice).counts
    early = entropic(floor=0.95, horizon=4).resample(logs, 6, 1, dice).counts
    assert max(early) < max(plain)
    assert entropic(floor=0.95, horizon=4).resample(logs, 6, 4, dice).counts == plain


def test_a_higher_temperature_trusts_the_scorer_less() -> None:
    for made in (particle(temperature=2.0), entropic(temperature=2.0)):
        assert made.increment(0.25) == pytest.approx(particle().increment(0.5))


def test_population_weights_decide_where_scores_would_not() -> None:
    class Early(Scorer):
        """Likes the first step of one path ten times better, and both leaves alike."""

        async def score(self, prompts, on_usage):
            return [
                Score(0.5 if "boxed" in p.generated_text else 0.9 if p.generated_text[0] == "a" else 0.09)
                for p in prompts
            ]

    options = ["a\n\n\\boxed{1}", "b\n\n\\boxed{2}", "b\n\n\\boxed{2}"]
    chosen = {
        select: say(options, partial(tree, scorer=Early(), n=3, policy="particle:ess=0", select=select)).final
        for select in ("weighted", "population")
    }
    assert chosen == {"weighted": "2", "population": "1"}


def test_paths_that_nobody_resampled_weigh_the_same() -> None:
    options = [r"a \boxed{1}", r"b \boxed{2}", r"a \boxed{1}"]
    answer = say(options, partial(tree, scorer=Fixed(), n=3, policy="beam", beam_width=3, select="population"))
    assert answer.final == "1" and len(answer.candidates) == 3

    class Hopeless(Fixed):
        async def score(self, prompts, on_usage):
            return [Score(0.0) for _ in prompts]

    lost = partial(tree, scorer=Hopeless(), n=3, policy="particle", select="population")
    longer = [r"at length \boxed{1}", r"\boxed{2}", r"at length \boxed{1}"]
    assert say(longer, lost).final == "1"  # two votes count more than the shorter answer


def test_the_dice_of_a_selection_are_keyed_by_seed_and_problem_and_not_by_time() -> None:
    strategy = partial(best_of_n, scorer=Fixed(), n=3, select="soft", beta=1.0)
    options = [r"a \boxed{1}", r"b \boxed{2}", r"c \boxed{3}"]
    assert len({say(options, strategy).final for _ in range(5)}) == 1
    drawn = answers(partial(best_of_n, scorer=constant(), n=4, select="soft"), 40, p=0.0, steps=1)
    places = {next(c.path for c in answer.candidates if c.final == answer.final) for answer in drawn}
    assert len(places) > 1


def test_tools_take_one_episode_unless_told_otherwise() -> None:
    assert [len(say([r"\boxed{4}"], partial(tools, **more)).candidates) for more in ({}, {"n": 3})] == [1, 3]


def test_a_call_is_answered_by_the_tool_and_what_the_model_would_have_said_of_it_is_not_drawn() -> None:
    def script(prompt: Prompt, path, key) -> str:
        return r"so \boxed{42}" if "<result>42</result>" in prompt.text else "<calculator>6*7</calculator> is 41"

    answer = scripted(script, tools)
    assert answer.final == "42" and "41" not in answer.text


def test_a_candidate_without_a_score_is_never_argmax() -> None:
    assert choose(ballots(["1", "2"], [None, -5.0]), kind_of("math").key, "argmax").final == "2"  # type: ignore[union-attr]
    for lost in (None, float("inf"), float("nan")):
        assert choose(ballots(["1", "2"], [lost, -5.0]), kind_of("math").key, "soft").final == "2"  # type: ignore[union-attr]
