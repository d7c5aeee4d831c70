"""IFEval: the prompt as it is, from either format, and targets that the verifier can read."""

from __future__ import annotations

import os
from pathlib import Path

import datasets
import pytest

from evals.experiment import check_golds
from evals.tasks.ifeval import ifeval
from tests.evals.local_data import write_hub_copy, write_lines
from ttc.core import Message
from ttc.errors import ConfigError, RecordError
from ttc.verifiers.instructions.verifier import instructions

DATA = os.environ.get("TTC_DATA")
PROMPT = "Write a poem. Do not use any commas.\n\nUse 2 bullet points."
ROW = {
    "id": "ifeval-7",
    "key": 7,
    "prompt": PROMPT,
    "instruction_id_list": ["punctuation:no_comma", "detectable_format:number_bullet_lists"],
    "kwargs": [{}, {"num_bullets": 2}],
}


def test_the_prompt_is_asked_as_it_is(tmp_path: Path) -> None:
    write_lines(tmp_path / "ifeval.jsonl", [ROW])
    task = ifeval(data=str(tmp_path))
    (item,) = task.items(None, 0)
    assert item.problem.messages == (Message("user", PROMPT),)
    assert (item.problem.id, item.problem.kind, item.difficulty) == ("ifeval-7", "format", "2")
    assert item.target == {"instruction_id_list": ROW["instruction_id_list"], "kwargs": ROW["kwargs"]}
    assert (task.check.verifier, task.check.params) == ("instructions", {"mode": "strict"})
    assert ifeval(data=str(tmp_path), mode="loose").check.params == {"mode": "loose"}


def test_the_hub_format_gives_the_same_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = {"num_bullets": None, "keywords": None}
    hub = {**ROW, "kwargs": [dict(empty), {**empty, "num_bullets": 2}]}
    del hub["id"]
    write_hub_copy(tmp_path / "data" / "google" / "IFEval", [hub], split="train")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_lines(tmp_path / "local" / "ifeval.jsonl", [ROW])
    assert ifeval(data=str(tmp_path / "data")).items(None, 0) == ifeval(data=str(tmp_path / "local")).items(None, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kwargs": [{}]}, "line 1: kwargs: expected a list of 2 objects"),
        ({"instruction_id_list": "x"}, "line 1: instruction_id_list: expected a list"),
        ({"prompt": ""}, "line 1: prompt: expected a non-empty string"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_lines(tmp_path / "ifeval.jsonl", [{**ROW, **change}])
    with pytest.raises(RecordError, match=message):
        ifeval(data=str(tmp_path)).items(None, 0)


def test_an_unknown_instruction_is_named_before_the_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "ifeval.jsonl", [{**ROW, "instruction_id_list": ["punctuation:no_comma", "a:b"]}])
    task = ifeval(data=str(tmp_path))
    with pytest.raises(ConfigError, match=r"problem 'ifeval-7': .*no instruction 'a:b'"):
        check_golds(task.items(None, 0), instructions(), task)


@pytest.mark.skipif(not DATA, reason="TTC_DATA names no data folder")
def test_the_published_prompts_load_whole_and_their_targets_can_be_read() -> None:
    task = ifeval(data=DATA)
    items = task.items(None, 0)
    assert len(items) == 541
    check_golds(items, instructions(), task)
