"""Updates computed again from their records give the logged numbers, bit for bit; what is not there is refused."""

import shutil

import pytest

from tests.train.cipher_base import TASK, two_updates
from train.replay.replay import replay_step
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

STARTS = "start", "1-grpo"
"""Where the stages behind the first begin."""


@pytest.fixture(scope="module")
def run(cipher_model, tmp_path_factory):
    """Two updates by reinforcement."""
    return two_updates(tmp_path_factory.mktemp("replay"), cipher_model)


@pytest.mark.parametrize("step", [0, 1])
def test_an_update_of_reinforcement_is_the_logged_one(run, cipher_model, step):
    told = list(replay_step(run, step, model=cipher_model))
    assert told[0] == "from the start, on cpu" and told[-1] == "equal bit for bit"
    assert [line.split()[0] for line in told[1:-1]] == ["loss", "grad_norm", "entropy", "clip_share"]
    assert all(line.endswith("equal") for line in told[1:-1])


def test_a_replay_finds_the_model_that_its_run_started_from(run):
    assert list(replay_step(run, 0))[-1] == "equal bit for bit"


def test_a_replay_starts_from_the_nearest_checkpoint_with_a_reference_that_was_renewed(cipher_model, tmp_path):
    run = two_updates(tmp_path, cipher_model, "save_every = 1\nkl_weight = 0.1\nreference_every = 1\nminibatches = 2\n")
    told = list(replay_step(run, 1, model=cipher_model))
    assert told[0] == "from the checkpoint after 1 update, on cpu" and told[-1] == "equal bit for bit"


def test_a_replay_of_a_stage_that_names_its_start_takes_the_model_of_that(cipher_model, tmp_path):
    table = f'[[stage]]\nkind = "grpo"\ntask = "{TASK},split=train"\nheld_out = "{TASK}"\nsteps = 1\nlr = 1e-3\n'
    small = "prompts = 4\nn = 4\nheld_out_limit = 4\n"
    run = two_updates(tmp_path, cipher_model, "".join(f'{table}{small}start = "{name}"\n' for name in STARTS))
    for stage in (2, 3):
        told = list(replay_step(run, 0, stage=stage))
        assert told[0] == "from the start, on cpu" and told[-1] == "equal bit for bit"


def test_a_changed_record_shows(run, cipher_model, tmp_path):
    path = run / "1-grpo" / "rollouts.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"reward":1.0', '"reward":0.5', 3).replace('"reward": 1.0', '"reward": 0.5', 3))
    try:
        told = list(replay_step(run, 0, model=cipher_model))
        assert any("differs" in line for line in told) and told[-1].startswith("not equal")
    finally:
        path.write_text(text)


def test_what_was_not_recorded_is_refused(run, cipher_model, tmp_path):
    with pytest.raises(ConfigError, match="has no step 2: it logged steps 0 to 1"):
        list(replay_step(run, 2, model=cipher_model))
    copy = shutil.copytree(run, tmp_path / "copy", symlinks=True)
    (copy / "start").unlink()
    with pytest.raises(ConfigError, match="give --model FOLDER"):
        list(replay_step(copy, 0))
    with pytest.raises(ConfigError, match="no stage with recorded rollouts numbered 7"):
        list(replay_step(run, 0, stage=7, model=cipher_model))
