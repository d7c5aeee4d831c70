"""The audit of training rows refuses what would teach a student never to stop, or to say something else."""

import json
import shutil

import pytest

from distill.data.dataset import audit_rows, turn_end
from distill.spec.sample import TrainingRow, row_of
from tests import qwen_like
from tests.distill.pieces import sample
from train.base.models import load_tokenizer
from ttc.core import Message
from ttc.errors import ConfigError


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row.to_json()) + "\n" for row in rows))
    return path


def walk(text="s3", **more):
    return TrainingRow("task/p", (Message("user", "s1n1="),), text, **more)


def test_good_rows_pass_with_every_stop_token(tmp_path, guesser):
    rows = [walk(), walk("s4", thinking="s4n0"), walk("s5", mode="off")]
    found = audit_rows(rows_file(tmp_path / "rows.jsonl", rows), rows, guesser, 64)
    assert found.problems == [] and found.stop_share == 1.0 and found.num_rows == 3


@pytest.mark.parametrize(
    ("row", "context", "told"),
    [
        (walk("s3 <unheard of> s4"), 64, "its ids spell"),
        (walk("s3" * 40), 20, "do not fit the student's context of 20"),
    ],
)
def test_bad_rows_are_named(tmp_path, guesser, row, context, told):
    found = audit_rows(rows_file(tmp_path / "rows.jsonl", [row]), [row], guesser, context)
    assert len(found.problems) == 1 and told in found.problems[0] and found.problems[0].startswith("row 0: ")


def test_a_stop_token_inside_a_row_is_found(tmp_path, guesser):
    row = walk(f"s3{load_tokenizer(guesser).eos_token}s4")
    found = audit_rows(rows_file(tmp_path / "rows.jsonl", [row]), [row], guesser, 64)
    assert "the stop token must stand at its end, once" in found.problems[0]


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
        audit_rows(rows_file(tmp_path / "rows.jsonl", [walk()]), [walk()], broken, 64)


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
    audit = audit_rows(rows_file(tmp_path / "rows.jsonl", [row]), [row], student, 64)
    assert audit.problems == [] and audit.stop_share == 1.0
