"""Thinking-mode fusion: the mixture is what Qwen3 describes, and obedience is measured as it is meant."""

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from distill.data.dataset import audit_rows
from distill.job.job import run_job
from distill.measure.obedience import Flags, obedience, two_turns
from distill.methods.fusion import fusion
from distill.plan.resolve import resolve
from distill.spec.method import DistillJob, Domain
from distill.spec.spec import parse_spec
from tests import qwen_like
from tests.distill.models import TASK
from tests.distill.pieces import item, sample
from tests.train.stages import setting
from train.base.models import Shape, new_model, save_model
from train.examples.examples import read_examples
from train.nano import tokenizer as nano_tokenizer
from train.registries import make_task
from ttc.core import Message
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.session.thinking import CLOSE, OPEN

TABLE = {"name": "modes", "method": "fusion", "seed": 1, "task": f"{TASK},split=train", "held_out": TASK}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with the packaged family's tokenizer, whose template opens the thinking."""
    made, tokenizer = tmp_path_factory.mktemp("nano"), nano_tokenizer.build()
    save_model(
        new_model(Shape(hidden=8, layers=1, heads=1, kv_heads=1, head_dim=8, mlp=8), tokenizer, 0), tokenizer, made
    )
    return made


def job(folder, **more):
    spec = parse_spec({**TABLE, "student": str(folder), "teacher": str(folder), **more})
    return type("Job", (), {"spec": spec, "student": Path(folder), "domains": ()})()


def samples(num=200):
    thinking = [sample(f"it is {i}", problem=f"p{i}", thinking=f"so {i}", label="think", mode="on") for i in range(num)]
    plain = [sample(f"it is {i}", problem=f"p{i}", label="no_think", mode="off", index=1) for i in range(num)]
    return [*thinking, *plain]


def flag_of(row):
    return row.notes["flag"]


def test_shares_are_as_asked_and_both_modes_are_there(folder):
    rows = fusion(unflagged=0.25, switched=0.4, turns=0.0).rows(samples(), job(folder))
    modes = Counter(row.notes["mode"] for row in rows)
    assert modes["think"] == modes["no_think"] == 200
    flags = Counter((row.notes["mode"], flag_of(row)) for row in rows)
    assert flags["think", "none"] / 200 == pytest.approx(0.25, abs=0.1)
    assert flags["no_think", "switch"] / 200 == pytest.approx(0.4, abs=0.1)
    assert flags["no_think", "none"] == 0  # no flag means thinking
    few = fusion(thinking_share=0.2, turns=0.0).rows(samples(), job(folder))
    assert Counter(row.notes["mode"] for row in few) == {"think": 50, "no_think": 200}


def test_an_answer_without_thinking_keeps_an_empty_think_block(folder, tmp_path):
    rows = fusion(turns=0.0).rows(samples(60), job(folder))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row.to_json()) + "\n" for row in rows))
    text = Text(folder)
    for row, example in zip(rows, read_examples(path, text, text.eos_ids[-1]), strict=True):
        whole = text.decode((*example.prompt_ids, *example.token_ids))
        turn = whole.rpartition("assistant\n")[2]
        inside = turn.partition(OPEN)[2].partition(CLOSE)[0].strip()
        assert turn.count(OPEN) == turn.count(CLOSE) == 1
        assert inside == (f"so {row.completion[6:]}" if row.notes["mode"] == "think" else "")
        assert ("/no_think" in whole) == (flag_of(row) == "no_think")
    assert audit_rows(rows, folder, 2048).unfit == {}


def test_flags_stand_in_user_or_system_turns_and_the_last_one_holds(folder):
    flags = Flags()
    rows = fusion(turns=1.0, unflagged=0.0, switched=0.0).rows(samples(), job(folder))
    assert all(row.notes["turns"] == "2" for row in rows)
    assert all(flags.read(row.messages) == (row.notes["mode"] == "think") for row in rows)
    kinds = Counter((row.notes["mode"], flag_of(row)) for row in rows)
    assert set(kinds) == {("think", "none"), ("think", "think"), ("no_think", "none"), ("no_think", "no_think")}
    assert [m.role for m in rows[0].messages] == ["user", "assistant", "user"]
    system = fusion(in_system=1.0, turns=0.0, unflagged=0.0, switched=0.0).rows(samples(20), job(folder))
    assert all(row.messages[0].role == "system" and "think" not in row.messages[-1].content for row in system)


def test_which_flag_holds():
    flags = Flags()
    user = [Message("user", "a /think"), Message("assistant", "x /no_think"), Message("user", "b")]
    assert flags.read(user)
    assert not flags.read([*user[:2], Message("user", "b /no_think")])
    assert flags.read([Message("user", "b")]) and not flags.read([Message("user", "b")], default=False)
    assert flags.read([Message("user", "/no_think then /think")])
    turns = two_turns(item("p"), "7", [Message("system", "s"), Message("user", "q")], flags, False, True)
    assert [m.content for m in turns] == ["what is p? /no_think", "7", "q /think"]


def test_rows_that_do_not_fit_stay_single_turns(folder):
    long = [dataclasses.replace(s, item=item(s.item.problem.id, "x" * 1990)) for s in samples(4)]
    rows = fusion(turns=1.0, unflagged=0.0, switched=0.0).rows(long, job(folder))
    assert all(len(row.messages) == 1 for row in rows)


def test_the_same_seed_mixes_the_same_and_one_more_sample_moves_no_other_die(folder):
    first = fusion(turns=0.0).rows(samples(50), job(folder))
    assert first == fusion(turns=0.0).rows(samples(50), job(folder))
    more = {(*row.parents, row.notes["mode"]): row for row in fusion(turns=0.0).rows(samples(51), job(folder))}
    assert all(more[(*row.parents, row.notes["mode"])] == row for row in first)


def test_answers_of_thinking_samples_can_serve_without_it(folder):
    own = fusion(answers="thinking", turns=0.0, switched=0.0)
    rows = own.rows([s for s in samples(30) if s.label == "think"], job(folder))
    plain = [row for row in rows if row.notes["mode"] == "no_think"]
    assert len(plain) == 30 and all(row.thinking == "" and row.completion.startswith("it is") for row in plain)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"thinking_share": 1.0}, "both modes are needed"),
        ({"unflagged": 1.5}, r"fusion.unflagged must be in \[0, 1\]"),
        ({"no_think_flag": ""}, "both flags must be non-empty"),
        ({"think_flag": "think", "no_think_flag": "no_think"}, "must not be part of"),
        ({"thinker": "nobody"}, "no teacher 'nobody'"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_spec({**TABLE, "student": "s", "teacher": "t", "fusion": given})


def test_one_mode_without_an_answer_is_refused(folder):
    with pytest.raises(ConfigError, match="no answer without thinking is left"):
        fusion().rows([s for s in samples(4) if s.label == "think"], job(folder))


def test_a_teacher_that_has_no_thoughts_is_refused_before_it_is_asked_for_them(folder, tmp_path):
    mute = qwen_like.model(tmp_path / "mute")
    table = {**TABLE, "student": str(folder), "teacher": str(mute)}
    with pytest.raises(ConfigError, match="fusion: teacher has no thinking markers"):
        resolve(parse_spec(table), tmp_path / "job")
    assert resolve(parse_spec({**table, "teacher": str(folder)}), tmp_path / "job").assignments


def test_a_gate_on_earlier_turns_is_refused_before_the_job_where_none_fits_and_its_fix_lets_it_fit(folder, tmp_path):
    def planned(max_tokens, **more):
        spec = {**TABLE, "student": str(folder), "teacher": str(folder), "limit": 4, "eval": {"limit": 4}, **more}
        spec |= {"task": "arithmetic:split=train", "held_out": "arithmetic"}
        return resolve(parse_spec({**spec, "sampling": {"max_tokens": max_tokens}}), tmp_path / "job")

    gates = {"measured": {"obedience_last_flag": 0.9}}
    with pytest.raises(ConfigError) as error:
        planned(2040, gates=gates)
    told = re.fullmatch(
        r"gates\.measured\.obedience_last_flag: no held-out problem and its answer fit the student's context of [\d,]+ "
        r"tokens behind an earlier turn; lower sampling\.max_tokens to (\d+) or less, or leave the gate out",
        str(error.value),
    )
    assert told is not None, error.value
    plan = planned(int(told[1]), gates=gates)
    assert "obedience_last_flag" in plan.method.numbers(plan.job)
    with pytest.raises(ConfigError, match=f"lower sampling.max_tokens to {told[1]} or less"):
        planned(int(told[1]) + 1, gates=gates)
    without = planned(2040, gates={"measured": {"obedience": 0.9}})
    assert "obedience_last_flag" not in without.method.numbers(without.job)


def test_the_numbers_that_gates_may_bound_are_those_that_are_measured(folder, tmp_path):
    spec = {**TABLE, "student": str(folder), "teacher": str(folder), "eval": {"limit": 4}}
    spec |= {"task": "arithmetic:split=train", "held_out": "arithmetic", "limit": 4, "sampling": {"max_tokens": 4}}
    plan = resolve(parse_spec(spec), tmp_path / "job")
    assert set(plan.method.measure(plan.job, folder, setting(tmp_path, folder))) == set(plan.method.numbers(plan.job))


@pytest.mark.slow
def test_a_job_measures_obedience_before_and_after(tmp_path, guesser, walker):
    given = {"student": str(guesser), "teacher": str(walker), "n": 1, "smoke": 0, "limit": 12, "eval": {"limit": 6},
             "fusion": {"answers": "thinking", "turns": 0.0, "gap": "", "think_flag": "s1", "no_think_flag": "s2"},
             "filters": {"verdict": False, "format": False}, "train": {"steps": 2, "rows": 4}}  # fmt: skip
    spec = parse_spec({**TABLE, **given})
    plan = resolve(spec, tmp_path / "job")
    finished = run_job(spec, tmp_path / "job", lambda text: None)
    assert finished.model is not None
    found = json.loads((tmp_path / "job" / "result.json").read_text())["measured"]
    for who in ("start", "student"):
        own = found[who]["own"]
        cases = [own[f"obedience_{name}"] for name in ("think", "no_think", "default", "switch")]
        assert own["obedience"] == pytest.approx(sum(cases) / 4)
        assert set(plan.method.numbers(plan.job)) == set(own)


def test_a_model_that_always_thinks_obeys_where_thinking_is_asked(tmp_path, walker):
    spec = parse_spec({**TABLE, "student": str(walker), "teacher": "t", "eval": {"limit": 11}})
    task = make_task(TASK)
    made = DistillJob(spec, tmp_path, Path(walker), (), [Domain("task", task, (), task)])
    own = obedience(made, Path(walker), setting(tmp_path, walker), Flags("s1", "s2", ""), turns=False)
    assert own["obedience_default"] > 0.8
    assert own["obedience_no_think"] < 0.5
