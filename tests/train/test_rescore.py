"""Recorded rollouts judged again: the same verifier changes nothing, another one changes verdicts and rewards."""

import json

import pytest

from tests.loops import finished
from tests.train.cipher_base import two_updates
from train.base.rollout import read_rollouts
from train.replay.replay import change_lines, differences, judged_again, verifier_of
from ttc.cli.cli import main
from ttc.errors import ConfigError

NEVER = """
from ttc.core import Verdict

class Never:
    name, version = "never", "never-1"
    async def verify(self, target, submission):
        return Verdict("incorrect", 0.0, version=self.version)
    def check_gold(self, target, item=""):
        pass
    async def close(self):
        pass

def never():
    return Never()
"""


@pytest.fixture
def never(tmp_path):
    """A verifier that nothing satisfies."""
    path = tmp_path / "never.py"
    path.write_text(NEVER)
    return f"{path}:never"


@pytest.fixture(scope="module")
def run(cipher_model, tmp_path_factory):
    """Two updates by reinforcement, with a shaping part."""
    return two_updates(tmp_path_factory.mktemp("rescore"), cipher_model, 'shaping = ["repetition:weight=0.5"]\n')


def rescored(run, verifier=None, **params):
    service = verifier_of(run, None, verifier, params)

    async def work():
        return [pair async for pairs in judged_again(run, None, service) for pair in pairs]

    return finished(work(), service), service.version


def test_the_verifier_that_judged_gives_the_same_rewards_again(run):
    pairs, version = rescored(run)
    assert len(pairs) == 2 * 8 * 4
    assert all(before.parts == after.parts and before.reward == after.reward for before, after in pairs)
    assert any(after.parts["repetition"] != 0 or after.reward in (0.0, 1.0) for _, after in pairs)
    assert list(differences(pairs)) == []
    assert f"{len(pairs)} rows, 0 differ" in change_lines(pairs, version)


def test_another_verifier_changes_verdicts_and_rewards_and_keeps_the_shaping(run, never):
    pairs, _ = rescored(run, never)
    assert {after.verdict.version for _, after in pairs} == {"never-1"}
    assert all(before.parts["repetition"] == after.parts["repetition"] for before, after in pairs)
    right = [before.reward - after.reward for before, after in pairs if before.verdict.correct]
    assert right and right == pytest.approx([1.0] * len(right))
    assert len(right) <= len(list(differences(pairs))) < len(pairs)


def test_the_command_prints_what_differs_and_writes_the_new_rewards(run, never, tmp_path, capsys):
    out = tmp_path / "again.jsonl"
    assert main(["train", "rescore", str(run), "--verifier", never, "--out", str(out)]) == 0
    told = capsys.readouterr()
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert rows and all(row["second"]["verdict"] == "incorrect" for row in rows)
    assert "64 rows" in told.err and "mean reward" in told.err
    assert {rollout.verdict.version for rollout in read_rollouts(out)} == {"never-1"}
    assert main(["train", "rescore", str(run), "--out", str(out)]) == 2
    assert "exists; choose another file" in capsys.readouterr().err


def test_what_cannot_be_judged_again_is_named(run, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'exact'"):
        verifier_of(run, None, "exakt", {})
    with pytest.raises(ConfigError, match="no stage with recorded rollouts numbered 4"):
        verifier_of(run, 4, None, {})
    with pytest.raises(ConfigError, match="has no parameter 'nonsense'"):
        verifier_of(run, None, None, {"nonsense": "1"})
