"""Two processes on this machine make the updates of one: rollouts, gradients and decisions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.train.cipher_base import STEPS, SYMBOLS
from tests.train.stages import metrics_of
from train.base.models import load_model
from train.base.stage import Setting, StageResult
from train.base.world import ALONE, World, without
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, _run_stage, run_recipe
from train.update.batch import shared
from ttc.errors import ConfigError, TrainingError

RECIPE = f"""
about = "x"
[[stage]]
kind = "KIND"
task = "cipher:symbols={SYMBOLS},max_steps={STEPS},split=train"
held_out = "cipher:symbols={SYMBOLS},max_steps={STEPS}"
steps = 3
prompts = 6
lr = 1e-3
eval_every = 3
save_every = 2
held_out_limit = 9
kl_weight = 0.02
epochs = 2
minibatches = 2
"""


def test_shares_are_consecutive_cover_everything_and_differ_by_one_at_most():
    items = list(range(7))
    parts = [World(rank, 3).share(items) for rank in range(3)]
    assert [start for start, _ in parts] == [0, 2, 4] and [x for _, part in parts for x in part] == items
    assert ALONE.share(items) == (0, items) and ALONE.gather(items) == items and ALONE.agree(5) == 5


def test_rows_are_dealt_out_by_length_to_every_process_once():
    mask = torch.arange(9)[None] < torch.tensor([[3], [9], [1], [5], [2]])
    dealt = [torch.cat([*shared(mask, torch.arange(5), 4, World(rank, 2))]).tolist() for rank in range(2)]
    assert dealt == [[2, 0, 3], [4, 1]]
    parts = [[part.tolist() for part in shared(mask, torch.arange(5), 4, World(rank, 2))] for rank in range(2)]
    assert parts == [[[2, 0], [3]], [[4], [1]]]
    assert list(shared(mask, torch.arange(1), 4, World(1, 2))) == []


def test_overlapping_rollouts_are_refused_in_several_processes_before_anything_is_written(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text(RECIPE.replace("KIND", "grpo") + "asynchronous = true\n")
    options = RunOptions(tmp_path / "run", 1, tmp_path, "cpu", 1, World(0, 2))
    with pytest.raises(ConfigError, match="asynchronous = true is for one learner"):
        run_recipe(read_recipe(str(path)), options, print)
    assert not (tmp_path / "run").exists()


class Waiting(World):
    """Two processes, of which the other one is always there."""

    def wait(self):
        pass


@pytest.mark.parametrize("split", [True, False])
def test_a_stage_that_one_process_does_alone_says_so(tmp_path, split):
    class Step:
        distributed = split

        def run(self, setting):
            return StageResult(str(tmp_path), {})

    told = []
    place = Setting(tmp_path, None, 1, "cpu", 1, told.append, Waiting(0, 2))
    _run_stage(Step(), place)
    text = f"{tmp_path.name} is not split: the first of 2 processes works, the others wait"
    assert told == ([] if split else [text])


def test_an_option_is_taken_out_of_a_command_line_in_both_its_forms():
    assert without("--processes", ["a", "--processes", "2", "b"]) == ["a", "b"]
    assert without("--processes", ["--processes=2", "--out", "x"]) == ["--out", "x"]


ORPHAN = """
import os, signal, subprocess, sys
from train.base.world import relaunch
from ttc.concurrent import StopRequest
real = subprocess.Popen
def spy(command, **settings):
    child = real(command, **settings)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen = spy
relaunch(1, ["train", "list"], StopRequest())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_the_launcher_of_several_processes_does_not_outlive_the_command_that_was_killed():
    killed = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=False, timeout=60)
    launcher = int(killed.stdout)
    assert killed.returncode == -signal.SIGKILL
    assert until(lambda: not alive(launcher)) and "train list" not in killed.stderr


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def test_a_worker_s_own_error_is_all_that_is_said_and_its_exit_code_is_the_command_s():
    script = "from train.base.world import *; sys.exit(relaunch(1, ['train', 'mistake'], StopRequest()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "mistake" in done.stderr and "Traceback" not in done.stderr and "exitcode" not in done.stderr


def test_a_process_that_lost_the_others_says_so_in_a_line(monkeypatch):
    def lost(*arguments):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:8939")

    monkeypatch.setattr(torch.distributed, "barrier", lost)
    with pytest.raises(
        TrainingError, match="process 1 of 2 lost contact with the others; the first that ended says why"
    ):
        World(1, 2).wait()


def run(tmp_path, model, kind, processes, extra=""):
    recipe = tmp_path / f"{kind}.toml"
    recipe.write_text(RECIPE.replace("KIND", kind) + extra)
    out = tmp_path / f"{kind}-{processes}"
    command = [sys.executable, "-m", "ttc", "train", "run", str(recipe), "--out", str(out), "--seed", "1"]
    command += ["--model", str(model), f"--processes={processes}", "--keep-checkpoints"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TTC_DEBUG": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return out / f"1-{kind}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "extra"),
    [("grpo", ""), ("ppo", ""), ("grpo", "shard = true\n"), ("grpo", "shard = true\nlora = 4\n")],
    ids=["grpo", "ppo", "sharded", "sharded-lora"],
)
def test_two_processes_with_half_the_batch_each_equal_one(cipher_model, tmp_path, kind, extra):
    pytest.importorskip("accelerate")
    one, two = (run(tmp_path, cipher_model, kind, processes, extra) for processes in (1, 2))
    first, second = (metrics_of(folder) for folder in (one, two))
    for a, b in zip(first, second, strict=True):
        for name in ("accuracy", "loss", "grad_norm", "entropy", "kl", "held_out", "value_loss"):
            if name in a:
                # a norm of 3 is a sum of squares in another order: fp32 keeps six digits of it after Adam's steps
                assert b[name] == pytest.approx(a[name], abs=1e-5, rel=1e-5), name
    models = [load_model(folder / "model", "cpu").parameters() for folder in (one, two)]
    assert max(float((a - b).detach().abs().max()) for a, b in zip(*models, strict=True)) < 1e-5
    rollouts = [len((folder / "rollouts.jsonl").read_text().splitlines()) for folder in (one, two)]
    assert rollouts[0] == rollouts[1] > 0


@pytest.mark.slow
def test_a_sharded_run_that_was_cut_goes_on_where_it_was(cipher_model, tmp_path):
    pytest.importorskip("accelerate")
    extra = "shard = true\n[stage.health.memory]\nenabled = false\n"
    folder = run(tmp_path, cipher_model, "grpo", 2, extra)
    before = (folder / "model" / "model.safetensors").read_bytes()
    (folder / "done.json").unlink()
    shutil.rmtree(folder / "checkpoints" / "step-000003")
    assert run(tmp_path, cipher_model, "grpo", 2, extra) == folder
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 3]
    one, two = (safetensors(data) for data in (before, (folder / "model" / "model.safetensors").read_bytes()))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-6


def safetensors(data):
    from safetensors.torch import load

    return load(data)
