"""On-policy distillation end to end: it learns, resumes bit for bit, and counts only what the student sampled."""

import asyncio
import dataclasses
import json
import shutil
from functools import partial

import pytest
import torch
from transformers.utils import logging as transformers_logging

from distill.job.job import run_job
from distill.spec.spec import parse_spec
from distill.supervision.divergence import WORDS
from distill.supervision.panel import ROUNDED, SELF_TEST, Learner, TeacherPanel
from distill.supervision.reader import EngineReader, LocalReader, Passage
from evals.tasks.cipher import cipher
from tests.distill.models import STEPS, SYMBOLS, TASK, make_model
from tests.train.stages import make_stage, metrics_of, setting
from tests.ttc.openai_server import OpenAIServer
from train.advantages.group import group
from train.base.models import load_model
from train.base.optimiser import Optimiser, Schedule
from train.base.rollout import Collector, group_draws, read_rollouts
from train.losses.ppo import ppo
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.replay.replay import replay_step
from train.update.update import Objective, Updater
from ttc.core import Sampling, Verdict
from ttc.engines.embedded.engine import embedded
from ttc.engines.openai.factory import openai
from ttc.engines.shared.text import Text
from ttc.engines.shared.wrapped import Wrapped
from ttc.errors import ConfigError, TrainingError

KINDS = ("reverse", "forward", "jsd", "sampled")


@pytest.fixture(scope="module")
def student(guesser):
    return guesser


@pytest.fixture(scope="module")
def teacher(walker):
    return walker


def stage(teacher, /, **more):
    given = {"task": f"{TASK},split=train", "held_out": TASK, "teacher": str(teacher), "steps": 4, "lr": 2e-3,
             "prompts": 6, "n": 2, "held_out_limit": 12, "eval_every": 2, "save_every": 2}  # fmt: skip
    return make_stage("on_policy", **{**given, **more})


def weights(folder):
    return [parameter.detach() for parameter in load_model(folder, "cpu").parameters()]


@pytest.fixture(scope="module")
def drawn(student):
    """Rollouts of the student, as a step draws them; the last one is cut."""

    async def draw():
        engine = embedded(str(student), dtype="float32", device="cpu", batch_invariant=True)
        sampling = Sampling(temperature=1.0, max_tokens=12)
        collector = Collector(engine, strategy=partial(group_draws, n=2), sampling=sampling, thinking=None, seed=3)
        items = cipher(symbols=SYMBOLS, max_steps=STEPS, split="train").items(6, 0)
        try:
            return await collector.collect(items, 0)
        finally:
            await engine.close()

    rollouts = asyncio.run(draw())
    return [dataclasses.replace(r, finish_reason="stop", verdict=Verdict("correct"), reward=1.0) for r in rollouts]


def panel(readers):
    items = cipher(symbols=SYMBOLS, max_steps=STEPS, split="train").items(None, 0)
    return TeacherPanel(readers, {item.problem.id: item.problem.messages for item in items}, None)


def learner(student, reader, kind="reverse", *, reward=0.0, mask_truncated=True, lr=1e-9):
    model = load_model(student, "cpu")
    updater = Updater(model, Optimiser(model, Schedule(lr, 10)), Objective(ppo(), group()))
    own = panel({"": reader})
    own.check(Text(student))
    return Learner(own, updater, 0, kind, 0.5, reward, mask_truncated)


@pytest.mark.slow
def test_a_teacher_pulls_the_student_to_think_as_it_does(student, teacher, tmp_path):
    told = []
    where = dataclasses.replace(setting(tmp_path, student), log=told.append)
    stage(teacher, steps=30, prompts=16, eval_every=30).run(where)
    seen = metrics_of(tmp_path)
    assert seen[-1]["divergence"] < 0.75 * seen[0]["divergence"]
    assert seen[-1]["thinking_share"] > seen[0]["thinking_share"] + 0.3
    assert seen[-1]["overlap"] > seen[0]["overlap"] + 0.05
    assert WORDS["reverse"] in told
    assert max(row["parity"] for row in seen) < 1e-4


@pytest.mark.numeric
def test_two_halves_with_a_resume_are_bit_for_bit_the_whole_run(student, teacher, tmp_path):
    stage(teacher).run(setting(tmp_path / "whole", student))
    stage(teacher, steps=2).run(setting(tmp_path / "halves", student))
    stage(teacher).run(setting(tmp_path / "halves", student))
    whole, halves = weights(tmp_path / "whole/model"), weights(tmp_path / "halves/model")
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))
    assert [r.token_ids for r in read_rollouts(tmp_path / "whole/rollouts.jsonl")] == [
        r.token_ids for r in read_rollouts(tmp_path / "halves/rollouts.jsonl")
    ]
    names = ("step", "loss", "divergence", "grad_norm", "accuracy")
    first, second = ([[row[name] for name in names] for row in metrics_of(tmp_path / x)] for x in ("whole", "halves"))
    assert first == second


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.numeric
def test_a_student_is_nothing_apart_from_itself(student, drawn, kind):
    told = asyncio.run(learner(student, LocalReader("self", student, "cpu"), kind).learn(drawn))
    assert abs(told["divergence"]) < SELF_TEST
    assert told["updated"] == 1 and told["kept"] == 1
    assert kind == "sampled" or told["overlap"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.numeric
def test_a_student_that_computes_in_bf16_is_nothing_apart_from_itself_but_for_rounding(student, drawn, kind):
    exact = learner(student, LocalReader("self", student, "cpu"), kind)
    updater = Updater(exact.updater.model, exact.updater.optimiser, exact.updater.objective, autocast=True)
    told = asyncio.run(dataclasses.replace(exact, updater=updater, rounded=True).learn(drawn))
    assert told["updated"] == 1 and abs(told["divergence"]) < ROUNDED


def test_the_self_test_stops_a_student_with_dropout(student, drawn):
    own = learner(student, LocalReader("self", student, "cpu"))
    for module in own.updater.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    with pytest.raises(TrainingError, match=r"self-test: teacher self has the student's own weights.*dropout"):
        asyncio.run(own.learn(drawn))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.numeric
def test_forced_tokens_and_cut_completions_do_not_count(student, teacher, drawn, kind):
    reader = LocalReader("teacher", teacher, "cpu")
    whole = asyncio.run(learner(student, reader, kind).learn(drawn[:3]))
    forced = dataclasses.replace(
        drawn[3], sampled=(False,) * len(drawn[3].sampled), logprobs=(None,) * len(drawn[3].logprobs)
    )
    cut = dataclasses.replace(drawn[4], finish_reason="length")
    same = asyncio.run(learner(student, reader, kind).learn([*drawn[:3], forced, cut]))
    assert same["divergence"] == pytest.approx(whole["divergence"], abs=1e-7)
    assert same["loss"] == pytest.approx(whole["loss"], abs=1e-7)
    assert same["kept"] == pytest.approx(3 / 5)
    assert asyncio.run(learner(student, reader, kind).learn([cut])) == {"updated": 0.0, "kept": 0.0}


def test_completions_without_a_verdict_are_learnt_from_too(student, teacher, drawn):
    reader = LocalReader("teacher", teacher, "cpu")
    silent = [dataclasses.replace(r, verdict=Verdict("timeout"), reward=None) for r in drawn[:4]]
    first = asyncio.run(learner(student, reader).learn(silent))
    assert first["divergence"] == asyncio.run(learner(student, reader).learn(drawn[:4]))["divergence"]


def test_the_sampled_estimate_agrees_with_the_whole_vocabulary_on_average(student, teacher, drawn):
    reader = LocalReader("teacher", teacher, "cpu")
    (whole,) = [asyncio.run(learner(student, reader, "reverse").learn(drawn))["divergence"]]
    sampled = asyncio.run(learner(student, reader, "sampled").learn(drawn))["divergence"]
    assert sampled == pytest.approx(whole, rel=0.6)
    assert whole > 0.01


@pytest.mark.numeric
def test_reward_is_added_to_what_the_teacher_says(student, teacher, drawn):
    reader = LocalReader("teacher", teacher, "cpu")
    halves = [dataclasses.replace(r, reward=float(i % 2)) for i, r in enumerate(drawn)]
    for kind in ("reverse", "sampled"):
        plain, mixed = learner(student, reader, kind, lr=1e-3), learner(student, reader, kind, reward=1.0, lr=1e-3)
        first, second = asyncio.run(plain.learn(halves)), asyncio.run(mixed.learn(halves))
        assert first["divergence"] == pytest.approx(second["divergence"])
        pairs = zip(plain.updater.model.parameters(), mixed.updater.model.parameters(), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", ["reverse", "sampled"])
@pytest.mark.numeric
def test_a_rollout_that_was_cut_counts_in_the_reward_that_its_group_is_compared_with(student, teacher, drawn, kind):
    reader = LocalReader("teacher", teacher, "cpu")
    right, cut = drawn[0], dataclasses.replace(drawn[1], reward=0.0, finish_reason="length")

    def gradient(rollouts, reward):
        own, gradients = learner(student, reader, kind, reward=reward), []

        def keep():
            gradients.append(torch.cat([weight.grad.flatten() for weight in own.updater.model.parameters()]))
            return 0.0

        own.updater.optimiser.step = keep
        asyncio.run(own.learn(rollouts))
        return gradients[0]

    assert torch.allclose(gradient([right], 1.0), gradient([right], 0.0), atol=1e-6)  # alone there is no comparison
    assert not torch.allclose(gradient([right, cut], 1.0), gradient([right, cut], 0.0), atol=1e-3)


@pytest.mark.numeric
def test_micro_batches_and_other_padding_change_nothing(student, teacher, drawn):
    reader = LocalReader("teacher", teacher, "cpu")
    found = []
    for micro in (16, 4096):
        own = learner(student, reader)
        own.updater._micro = micro
        found.append(asyncio.run(own.learn(drawn)))
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], abs=1e-6)
    assert found[0]["divergence/teacher"] == pytest.approx(found[1]["divergence"], abs=1e-6)


@pytest.mark.numeric
def test_a_teacher_behind_an_engine_scores_like_one_in_this_process(student, teacher, drawn):
    async def both():
        engine = embedded(str(teacher), dtype="float32", device="cpu", batch_invariant=True)
        far, near = EngineReader("far", engine, top_k=None), LocalReader("near", teacher, "cpu")
        wanted = [Passage(r.prompt_ids, r.token_ids, r.sampled) for r in drawn]
        try:
            return await far.score(wanted), await near.score(wanted), far.usage
        finally:
            await far.close()

    far, near, usage = asyncio.run(both())
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(far, near, strict=True))
    assert usage.prompt + usage.scored >= sum(len(r.prompt_ids) + len(r.token_ids) for r in drawn)


def telling(folder):
    """An engine that tells its k likeliest tokens, in vLLM's place behind a server."""
    return embedded(str(folder), dtype="float32", device="cpu")


def test_a_server_that_tells_k_tokens_gives_a_bound_that_grows_to_the_whole(student, teacher, drawn):
    whole = asyncio.run(learner(student, LocalReader("near", teacher, "cpu")).learn(drawn))["divergence"]

    async def bounded(url, k):
        reader = EngineReader("far", openai(base_url=url, tokenizer=str(teacher)), top_k=k)
        try:
            return (await learner(student, reader).learn(drawn))["divergence"], reader.usage
        finally:
            await reader.close()

    with OpenAIServer(partial(telling, teacher)) as server:
        few, usage = asyncio.run(bounded(server.url, 2))
        most, _ = asyncio.run(bounded(server.url, Text(teacher).size - 1))
    assert 0 <= few <= most + 1e-6 <= whole + 2e-5
    assert most == pytest.approx(whole, rel=0.02)
    assert usage.prompt == sum(len(r.prompt_ids) + len(r.token_ids) for r in drawn)


def test_how_many_tokens_a_teacher_tells_fits_what_it_is_and_what_is_compared(teacher):
    far = f"openai:base_url=http://127.0.0.1:1/v1,tokenizer={teacher}"
    for place, fields, message in [
        (far, {}, "set top_k, such as 20, or divergence = sampled"),
        (far, {"divergence": "sampled", "top_k": 4}, "leave it out"),
        (teacher, {"top_k": 4}, "leave it out"),
    ]:
        with pytest.raises(ConfigError, match=message):
            stage(place, **fields).check(True)
    for place, fields in [(far, {"top_k": 4}), (far, {"divergence": "sampled"}), (teacher, {})]:
        stage(place, **fields).check(True)


def test_a_student_learns_from_a_teacher_behind_a_server(student, teacher, tmp_path):
    with OpenAIServer(partial(telling, teacher)) as server:
        far = f"openai:base_url={server.url},tokenizer={teacher}"
        for kind, top_k in (("sampled", None), ("reverse", 4)):
            stage(far, steps=2, divergence=kind, top_k=top_k).run(setting(tmp_path / kind, student))
            assert metrics_of(tmp_path / kind)[-1]["teacher_tokens/teacher"] > 0
            assert metrics_of(tmp_path / kind)[-1]["divergence"] > 0


def test_every_domain_has_its_own_teacher(student, teacher, tmp_path):
    other = make_model(tmp_path / "other", share=0.0, steps=10)
    given = {
        "task": (f"short={TASK},split=train", f"long={TASK},split=train"),
        "held_out": (f"short={TASK}", f"long={TASK}"),
        "teacher": (f"short={teacher}", f"long={other}"),
    }
    result = make_stage("on_policy", **given, steps=2, lr=1e-3, prompts=8, n=1, held_out_limit=6, eval_every=2).run(
        setting(tmp_path / "run", student)
    )
    assert result.metrics["divergence/short"] != pytest.approx(result.metrics["divergence/long"])
    assert result.metrics["teacher_tokens/short"] > 0 and result.metrics["teacher_tokens/long"] > 0
    seen = {rollout.problem_id.partition("/")[0] for rollout in read_rollouts(tmp_path / "run/rollouts.jsonl")}
    assert seen == {"short", "long"}
    assert all(
        r.verdict.status in ("correct", "incorrect", "no_answer")
        for r in read_rollouts(tmp_path / "run/rollouts.jsonl")
    )


@pytest.mark.numeric
def test_it_is_a_stage_of_a_recipe_whose_updates_can_be_computed_again(student, teacher, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'[[stage]]\nkind = "on_policy"\ntask = "{TASK},split=train"\nheld_out = "{TASK}"\nteacher = "{teacher}"\n'
        "steps = 2\nlr = 1e-3\nprompts = 2\nn = 1\nheld_out_limit = 4\n"
    )
    (result,) = run_recipe(
        read_recipe(str(recipe)), RunOptions(tmp_path / "run", 1, student, "cpu", 1), lambda text: None
    )
    assert (tmp_path / "run/model/config.json").is_file() and result.metrics["step"] == 2
    told = list(replay_step(tmp_path / "run", 1, model=student))
    assert [line.split()[0] for line in told[1:-1]] == ["loss", "grad_norm", "entropy", "clip_share", "divergence"]
    assert told[-1] == "equal bit for bit" and all(line.endswith("equal") for line in told[1:-1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"divergence": "jsd", "beta": 1.0}, "beta must be in"),
        ({"reward_weight": 1.0, "n": 1}, "reward_weight needs"),
        ({"teacher": "nowhere"}, "neither a model folder nor an engine"),
        ({"teacher": ("a=x", "b=y")}, "no teacher for the domain"),
        ({"teacher": ("x", "y")}, "needs a name of its own"),
        ({"held_out": f"{TASK},split=train"}, "held-out problems too"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(teacher, given, message):
    with pytest.raises(ConfigError, match=message):
        stage(teacher, **given).check(True)


def test_a_teacher_that_closes_the_thinking_differently_is_refused(student, teacher, tmp_path):
    closed = tmp_path / "closed"
    shutil.copytree(teacher, closed)
    template = closed / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if add_generation_prompt %}<think></think>{% endif %}")
    own = panel({"": LocalReader("closed", closed, "cpu")})
    with pytest.raises(ConfigError, match="template leaves the thinking of"):
        own.check(Text(student))


def test_an_engine_that_cannot_tell_its_likeliest_tokens_is_refused(student):
    class Taciturn(Wrapped):
        async def logprobs(self, token_ids, start, on_usage):
            return tuple(0.0 for _ in token_ids[start:])

    engine = embedded(str(student), dtype="float32", device="cpu")
    try:
        EngineReader("far", Taciturn(engine), top_k=None)
        with pytest.raises(ConfigError, match="does not report its likeliest tokens"):
            EngineReader("far", Taciturn(engine), top_k=4)
    finally:
        asyncio.run(engine.close())


def job(student, teacher, folder, **more):
    spec = {"method": "on_policy", "student": str(student), "teacher": str(teacher), "seed": 1, "name": "t",
            "task": f"{TASK},split=train", "held_out": TASK, "eval": {"limit": 8}}  # fmt: skip
    return run_job(parse_spec({**spec, **more}), folder, lambda text: None)


def test_a_job_distils_without_a_data_set(student, teacher, tmp_path, capsys):
    table = {"steps": 2, "prompts": 2, "n": 1, "held_out_limit": 4, "divergence": "forward"}
    transformers_logging.enable_progress_bar()  # as a program begins
    finished = job(student, teacher, tmp_path, train=table)
    assert "Loading weights" not in capsys.readouterr().err
    assert (finished.model / "config.json").is_file()
    (folder,) = (tmp_path / "train").iterdir()
    fields = json.loads((folder / "run.json").read_text())["stages"][0]["fields"]
    assert fields["divergence"] == "forward" and fields["teacher"] == str(teacher)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"teacher": {"strategy": "majority:n=4"}}, "name a model"),
        ({"teacher": {"model": "x", "strategy": "majority:n=4"}}, "has none; use method = search"),
        ({"held_out": None}, "give held_out"),
        ({"teacher": [{"model": "x"}, {"model": "y"}]}, "has 2 teachers"),
        ({"teacher": None}, "needs a teacher"),
        ({"on_policy": {"divergence": "backward"}}, "must be one of"),
    ],
)
def test_a_spec_that_no_student_can_be_supervised_by_is_refused(given, message):
    spec = {
        "method": "on_policy",
        "student": "s",
        "teacher": "t",
        "seed": 1,
        "name": "t",
        "task": "chain",
        "held_out": "chain",
    }
    whole = {key: value for key, value in {**spec, **given}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        parse_spec(whole)
