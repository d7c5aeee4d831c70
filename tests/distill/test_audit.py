"""The audit of training rows leaves out what would teach a student never to stop, or to say something else."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from distill.data.dataset import audit_rows, refuse_unfit, turn_end
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.job.job import run_job
from distill.report.tables import render
from distill.spec.sample import TrainingRow, row_of
from distill.spec.spec import parse_spec
from tests import qwen_like
from tests.distill.models import TASK
from tests.distill.pieces import sample
from train.base.models import load_tokenizer
from ttc.core import Message
from ttc.errors import ConfigError


def walk(text="s3", **more):
    return TrainingRow("task/p", (Message("user", "s1n1="),), text, **more)


def test_good_rows_pass_with_every_stop_token(guesser):
    rows = [walk(), walk("s4", thinking="s4n0"), walk("s5", mode="off")]
    found = audit_rows(rows, guesser, 64).audit
    assert found.problems == [] and found.stop_share == 1.0 and found.num_rows == 3


@pytest.mark.parametrize(
    ("row", "context", "told"),
    [
        (walk("s3 <unheard of> s4"), 64, "its ids spell"),
        (walk("s3" * 40), 20, "do not fit the student's context of 20"),
    ],
)
def test_bad_rows_are_named(guesser, row, context, told):
    found = audit_rows([row], guesser, context).audit
    assert len(found.problems) == 1 and told in found.problems[0] and found.problems[0].startswith("row 0: ")


def test_a_stop_token_inside_a_row_is_found(guesser):
    row = walk(f"s3{load_tokenizer(guesser).eos_token}s4")
    found = audit_rows([row], guesser, 64).audit
    assert "it must have the stop token at its end, and only there" in found.problems[0]


def test_a_thought_that_the_template_has_begun_is_fit_to_learn(tmp_path):
    student = qwen_like.model(tmp_path)
    words = load_tokenizer(student)
    words.chat_template += "{%- if add_generation_prompt %}{{- '<think>\n' }}{%- endif %}{# </think> #}"
    words.save_pretrained(student)
    row = dataclasses.replace(walk("\n\n7"), thinking="\nso it is 7.\n", mode="auto")
    audited = audit_rows([row], student, 512)
    assert audited.audit.problems == [] and len(audited.kept) == 1


def test_a_template_that_ends_turns_otherwise_is_refused_with_the_fix(tmp_path, guesser):
    broken = tmp_path / "broken"
    shutil.copytree(guesser, broken)
    template = "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}<pad>{% endif %}{% endfor %}"
    other = next(
        t for t in load_tokenizer(guesser).get_vocab() if t != load_tokenizer(guesser).eos_token and t.startswith("<")
    )
    (broken / "chat_template.jinja").write_text(template.replace("<pad>", other))
    assert turn_end(broken) == (load_tokenizer(guesser).convert_tokens_to_ids(other),)
    with pytest.raises(ConfigError, match="set eos_token to"):
        audit_rows([walk()], broken, 64)


def test_a_row_keeps_the_mode_and_the_thinking_of_its_sample():
    thought = row_of(sample("7", thinking="well", mode="on"))
    assert (thought.thinking, thought.mode, thought.completion) == ("well", "on", "7")
    plain = row_of(sample("7", thinking="well", mode="off"))
    assert plain.thinking is None and "thinking" not in plain.to_json()
    assert row_of(sample("7")).to_json()["messages"][0]["role"] == "user"


def test_a_student_whose_turns_end_before_its_texts_do_passes_where_engines_stop_there(tmp_path):
    student = qwen_like.model(tmp_path / "student")
    config = json.loads((student / "tokenizer_config.json").read_text())
    (student / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|endoftext|>"}))
    row = TrainingRow("task/p", (Message("user", "1 plus 1?"),), "2")
    audit = audit_rows([row], student, 64).audit
    assert audit.problems == [] and audit.stop_share == 1.0


def test_a_bad_row_is_left_out_by_itself_and_every_other_one_stays(guesser):
    rows = [walk(), walk("s4", thinking="s4n0", mode="off"), walk("s3" * 40), walk("s5\ud83d"), walk("s5")]
    audited = audit_rows(rows, guesser, 20)
    assert audited.kept == [rows[0], rows[4]] and audited.audit.num_rows == 2
    assert audited.audit.unfit == {"context": 1, "unreadable": 2}
    assert "mode off has closed the thinking block" in audited.unfit[1] and "half of a character" in audited.unfit[3]
    refuse_unfit(rows, audited, 0.6)
    with pytest.raises(
        ConfigError, match=r"3 of 5 rows \(1 context, 2 unreadable\), more than max_unfit = 0.5 .*ledger"
    ):
        refuse_unfit(rows, audited, 0.5)


@pytest.mark.parametrize("says", [True, False], ids=["tokenizer that says its length", "one that does not"])
def test_a_job_goes_on_without_a_bad_row_and_tells_of_it(tmp_path, guesser, walker, says):
    student = Path(shutil.copytree(guesser, tmp_path / "student"))
    settings = json.loads((student / "tokenizer_config.json").read_text())
    own = {key: value for key, value in settings.items() if says or key != "model_max_length"}
    (student / "tokenizer_config.json").write_text(json.dumps(own))
    extra = tmp_path / "extra.jsonl"
    extra.write_text(json.dumps({"prompt": "s1n1=", "completion": "s3" * 40}) + "\n")
    table = {"name": "walks", "method": "rejection", "student": str(student), "teacher": str(walker), "seed": 1,
             "task": f"{TASK},split=train", "held_out": TASK, "n": 1, "smoke": 0, "limit": 24,
             "mix": {"data": [str(extra)], "share": 0.2}, "train": {"steps": 1, "rows": 8, "lr": 3e-3},
             "eval": {"teachers": False, "limit": 4}}  # fmt: skip
    with pytest.raises(ConfigError, match="more than max_unfit = 0 of them"):
        run_job(parse_spec({**table, "max_unfit": 0}), tmp_path / "job", lambda text: None)
    told = []
    assert run_job(parse_spec(table), tmp_path / "job", told.append).model is not None
    (line,) = [text for text in told if text.startswith("the audit leaves out 1 of ")]
    assert "context: " in line
    assert any(text == "teacher: 24 answers were on the ledger, 0 made now" for text in told)  # nothing was lost
    data = tmp_path / "job" / "data"
    funnel = json.loads((data / "funnel.json").read_text())
    last = funnel["answers"][-1]
    assert (last["name"], last["reasons"], last["kept"]) == ("audit", {"context": 1}, funnel["rows"])
    assert len((data / "train.jsonl").read_text().splitlines()) == funnel["rows"] == last["came"] - 1
    decisions = [json.loads(line) for line in (data / "decisions.jsonl").read_text().splitlines()]
    assert decisions[-1]["stage"] == "audit" and decisions[-1]["reason"].startswith("context: ")
    tables = render(tmp_path / "job")
    assert "left out: context" in tables


def test_a_job_none_of_whose_rows_can_be_learnt_says_why(tmp_path, guesser, walker):
    student = tmp_path / "student"
    shutil.copytree(guesser, student)
    settings = json.loads((student / "tokenizer_config.json").read_text())
    (student / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 4}))
    table = {"name": "walks", "method": "rejection", "student": str(student), "teacher": str(walker), "seed": 1,
             "task": f"{TASK},split=train", "held_out": TASK, "n": 1, "smoke": 0, "limit": 8, "waive": ["context"],
             "train": {"steps": 1, "rows": 4, "lr": 3e-3}, "eval": {"teachers": False, "limit": 4}}  # fmt: skip
    with pytest.raises(ConfigError, match=r"more than max_unfit = 0\.1 of them: row 0: context: "):
        run_job(parse_spec(table), tmp_path / "job", lambda text: None)
    with pytest.raises(ConfigError, match=r"smoke gate: 3 of the first 3 problems .*\(3 audit: context.* smoke_fail"):
        run_job(parse_spec({**table, "smoke": 3}), tmp_path / "gated", lambda text: None)
    with AnswerLedger(tmp_path / "gated" / LEDGER) as ledger:
        assert ledger.totals()["done"] == 3
