"""`python -m train.gpu` at toy size: ended in the middle it goes on, and at the end tells every family and level."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from evals.tasks.families import FAMILIES, LEVELS, families, sample_exercise
from train.corpora.families import families as corpus
from ttc.core import Submission
from ttc.errors import ConfigError, UnknownName
from ttc.verifiers.exact import exact

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_worked_steps_lead_to_the_answer_and_splits_are_apart(family):
    rng = random.Random(1)
    for level in LEVELS:
        for split in ("train", "eval"):
            drawn = sample_exercise(rng, family, level, split)
            assert drawn.split == split
            for step in drawn.steps:
                left, equals, right = step.partition("=")
                assert not equals or eval(left.replace(" mod ", "%")) == int(right)
            assert drawn.worked.count("\n\n") == len(drawn.steps)


def test_answers_that_the_corpus_writes_are_judged_right():
    import asyncio

    sample = corpus(noise=0.0).sample
    rng = random.Random(2)
    for _ in range(20):
        text = sample(rng)
        said = text.partition("</think>\n\n")[2]
        right = said.partition("\\boxed{")[2].partition("}")[0]
        assert asyncio.run(exact().verify(right, Submission(said))).correct
    assert len({item.problem.messages[0].content for item in families().items(60, 0)}) == 60
    kinds = {item.difficulty for item in families().items(60, 0)}
    assert len(kinds) == len(FAMILIES) * len(LEVELS)


def test_unknown_families_and_levels_are_named():
    with pytest.raises(UnknownName, match="gcd"):
        families(family="gcf")
    with pytest.raises(ConfigError, match="level"):
        families(level=4)
    with pytest.raises(ConfigError, match="max_level"):
        corpus(max_level=4)


@pytest.mark.slow
def test_pieces_go_on_where_the_last_one_was_ended(tmp_path):
    places = ["--out", str(tmp_path / "out"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "train.gpu", *places, "--seed", "1", "--preset", "tiny"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run([*command, "--minutes", "0.2"], cwd=ROOT, env=environment, check=False)
    assert first.returncode == 3
    last = subprocess.run([*command, "--minutes", "9"], cwd=ROOT, env=environment, check=False)
    assert last.returncode == 0
    told = json.loads((tmp_path / "results" / "families.json").read_text())
    assert len(told["rows"]) == len(FAMILIES) * len(LEVELS) and told["seed"] == 1
    assert sum(file.stat().st_size for file in (tmp_path / "results").iterdir()) < 1 << 20
