"""What a run says of how far it is: the step, of how many, and how long the rest takes."""

import json
import re

import pytest

from tests import qwen_like
from tests.train.stages import make_stage
from train.base.stage import Setting, time_left
from ttc.concurrent import Reminder


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, ""), (0.2, "1 s"), (119, "119 s"), (600, "10 min"), (9000, "2 h"), (90_000, "25 h")]
)
def test_the_time_that_is_left_is_told_in_a_unit_that_one_reads(seconds, text):
    assert time_left(seconds) == (text and f", about {text} left")


def stage_of(kind, folder):
    """A short stage whose measurements come every other step."""
    if kind == "pretrain":
        return make_stage("pretrain", corpus="toy", steps=200, rows=1, hidden=8, layers=1, mlp=8)
    if kind == "grpo":
        (folder / "task.jsonl").write_text('{"question": "one?", "answer": "1"}\n{"question": "two?", "answer": "2"}\n')
        (folder / "held.jsonl").write_text('{"question": "three?", "answer": "3"}\n')
        files = {"task": str(folder / "task.jsonl"), "held_out": str(folder / "held.jsonl")}
        return make_stage("grpo", **files, steps=4, prompts=1, n=2, max_tokens=2, lr=1e-4, eval_every=2)
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": word, "completion": word}) + "\n" for word in ("a", "b", "c"))
    )
    return make_stage("sft", data=str(folder / "rows.jsonl"), steps=4, rows=1, lr=1e-4, eval_every=2)


@pytest.mark.parametrize(("kind", "middle", "end"), [("sft", 2, 4), ("grpo", 2, 4), ("pretrain", 100, 200)])
def test_every_measurement_says_how_long_the_rest_takes_and_the_last_one_nothing(tmp_path, kind, middle, end):
    lines = []
    base = None if kind == "pretrain" else qwen_like.model(tmp_path / "base")
    place = tmp_path / f"1-{kind}"
    place.mkdir()
    stage_of(kind, tmp_path).run(Setting(place, base, 1, "cpu", 1, lines.append))
    texts = {step: line for line in lines for step in (middle, end) if f"step {step} of {end}: " in line}
    assert re.search(r", about \d+ s left$", texts[middle])
    assert "left" not in texts[end]


@pytest.mark.parametrize("kind", ["sft", "grpo", "pretrain"])
def test_a_stage_whose_steps_are_slow_says_every_one_of_them(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(Reminder, "due", lambda self: True)
    lines = []
    base = None if kind == "pretrain" else qwen_like.model(tmp_path / "base")
    place = tmp_path / f"1-{kind}"
    place.mkdir()
    stage_of(kind, tmp_path).run(Setting(place, base, 1, "cpu", 1, lines.append))
    assert [step for step in (1, 2, 3) if any(f"step {step} of " in line for line in lines)] == [1, 2, 3]
