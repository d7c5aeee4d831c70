"""A model that revises and compares its own answers: what is written serves the stages that imitate and prefer."""

import pytest

from tests.train.cipher_base import STEPS, SYMBOLS
from train.base.rollout import read_rollouts
from train.base.stage import Setting
from train.examples.pairs import pairs_of_rollouts
from train.registries import make_task
from train.rl.policy_stage import remaining
from train.shaping.language import language, script_share
from train.stages.feedback import feedback
from train.stages.revise import revise
from train.stages.sample import sample
from ttc.errors import ConfigError

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS},split=train"


@pytest.fixture(scope="module")
def sampled(cipher_model, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    stage_setting = setting(run, "1-sample", cipher_model)
    sample(task=TASK, n=4, limit=8).run(stage_setting)
    return run


def setting(run, name, model):
    (run / name).mkdir(parents=True, exist_ok=True)
    return Setting(run / name, model, 1, "cpu", 1, lambda text: None)


def test_preferences_are_probabilities_that_do_not_depend_on_the_order(sampled, cipher_model):
    stage = feedback(task=TASK, rollouts="1-sample", ask="{prompt}{first}{second}", labels=("s0", "s1"))
    found = stage.run(setting(sampled, "2-feedback", cipher_model))
    rows = list(read_rollouts(sampled / "2-feedback" / "rollouts.jsonl"))
    assert all(0 <= row.reward <= 1 and row.parts == {"feedback": row.reward} for row in rows)
    by_problem = {}
    for row in rows:
        by_problem.setdefault(row.problem_id, []).append(row.reward)
    # with every pair of a problem compared, what one answer wins another loses
    assert all(sum(rewards) == pytest.approx(len(rewards) / 2) for rewards in by_problem.values())
    assert found.metrics["agreement_before"] == 0.5 and 0 <= found.metrics["agreement_after"] <= 1
    assert pairs_of_rollouts(sampled / "2-feedback" / "rollouts.jsonl")


def test_equal_labels_and_questions_without_their_parts_are_refused(sampled, cipher_model):
    for fields, message in [
        ({"labels": ("A", "A")}, "two different labels"),
        ({"ask": "{prompt} {first}"}, "{second}"),
        ({"ask": "{prompt} {first} {second} {third}"}, r"ask: its braces are no field \('third'\)"),
        ({"pairs": 0}, "pairs"),
    ]:
        with pytest.raises(ConfigError, match=message):
            feedback(task=TASK, rollouts="1-sample", **fields)
    other = feedback(task="cipher:symbols=8,max_steps=2", rollouts="1-sample")
    with pytest.raises(ConfigError, match="not in task cipher"):
        other.run(setting(sampled, "3-feedback", cipher_model))


def test_revisions_answer_the_first_prompt_and_only_accepted_ones_are_kept(sampled, cipher_model):
    fields = {"task": TASK, "limit": 6, "critique": "{prompt}{answer}", "revision": "{prompt}{critique}"}
    result = revise(**fields).run(setting(sampled, "4-revise", cipher_model))
    rows = list(read_rollouts(sampled / "4-revise" / "rollouts.jsonl"))
    asked = {row.prompt_ids for row in read_rollouts(sampled / "1-sample" / "rollouts.jsonl")}
    assert len(rows) == 6 and {row.prompt_ids for row in rows} <= asked
    assert result.metrics["kept"] == 1 and {"good_before", "good_after", "good_gain_low"} <= set(result.metrics)
    none = revise(**fields, accept="never said").run(setting(sampled, "5-revise", cipher_model))
    assert none.metrics["kept"] == 0
    with pytest.raises(ConfigError, match=r"revision must hold \{critique\}"):
        revise(task=TASK, revision="{prompt}")
    with pytest.raises(ConfigError, match="revision: its braces are no field"):
        revise(task=TASK, revision="{critique} as {}")


def test_what_was_solved_too_often_is_left_out(sampled, cipher_model):
    items = make_task(TASK).items(8, 0)
    here = setting(sampled, "6-grpo", cipher_model)
    solved = {}
    for row in read_rollouts(sampled / "1-sample" / "rollouts.jsonl"):
        solved[row.problem_id] = solved.get(row.problem_id, 0) + row.verdict.correct
    assert 0 < sum(count > 0 for count in solved.values()) < 8
    assert {i.problem.id for i in remaining(items, "1-sample", 0, here)} == {k for k, v in solved.items() if not v}
    assert len(remaining(items, "1-sample", 4, here)) == 8
    easy = [item for item in items if solved[item.problem.id]]
    with pytest.raises(ConfigError, match="solved more than 0 times"):
        remaining(easy, "1-sample", 0, here)


def test_every_critique_draws_a_principle_and_rounds_revise_the_revision(sampled, cipher_model):
    asked = {"critique": "{prompt}{answer}{principle}", "revision": "{prompt}{principle}{critique}"}
    stage = revise(task=TASK, limit=8, principles=("s1", "s2"), rounds=2, **asked)
    drawn = [stage._principle(3, number, place) for number in range(2) for place in range(40)]
    assert {"s1", "s2"} == set(drawn) and drawn[:40] != drawn[40:]
    result = stage.run(setting(sampled, "7-revise", cipher_model))
    assert result.metrics["kept"] == 1
    with pytest.raises(ConfigError, match=r"principles and \{principle\}"):
        revise(task=TASK, principles=("s1",))


def test_language_is_the_share_of_words_in_the_wanted_script_without_mathematics_and_code():
    shares = {"s1s2": 1, "ж1s2": 0.5, "ж1": 0, "12 = 3": 1}
    assert {text: script_share(text, "latin") for text in shares} == shares
    assert script_share("你好 ok", "cjk") == 0.5
    mixed = "we first set it equal to zero " * 7 + "然后 我们 代入 原式 得到 结果 所以"
    assert script_share(mixed, "latin") == pytest.approx(49 / 56)
    assert script_share(r"设 $\frac{dy}{dx} = \sin x$ 则 \alpha 为 `code here`", "latin") == 0
    with pytest.raises(ConfigError, match="script"):
        language(script="c1")
