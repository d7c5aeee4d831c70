"""Run the numeric tests with the kernels of other processors: `python -m tests.processors` (`make test-cpus`).

torch and its matrix library choose kernels by what the processor has, and each kernel adds in an order of its own, so a
test may hold on one machine and fail on the next. Variables of the environment make this machine choose as others do.
Every choice is run with one compute thread and with two, as many side by side as there are cores. Prints a line for
each, and all output of one that fails; the exit code is then 1. Words pick those whose names contain them all:

    python -m tests.processors avx2 THREADS=1

Left out: processors that are not x86-64, of which MKL and these variables know nothing, and GPUs.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

ROOT = pathlib.Path(__file__).parents[1]
THREADS = (1, 2)
CHOICES = (
    ("ATEN_CPU_CAPABILITY", "default", "DEFAULT"),
    ("ATEN_CPU_CAPABILITY", "avx2", "AVX2"),
    ("ATEN_CPU_CAPABILITY", "avx512", "AVX512"),
    ("MKL_CBWR", "COMPATIBLE", "MKL"),
    ("MKL_ENABLE_INSTRUCTIONS", "AVX2", "MKL"),
)
"""Variable, value, what the machine must have for it."""
TESTS = (
    "tests/ttc/test_embedded_engine.py",
    "tests/ttc/test_embedded_model.py",
    "tests/ttc/test_prm.py",
    "tests/ttc/test_scorers_adapters.py",
    "tests/ttc/test_scorers_blocks.py",
    "tests/ttc/test_seeds.py",
    "tests/train/test_advantages.py",
    "tests/train/test_build.py",
    "tests/train/test_checkpoint.py",
    "tests/train/test_grouping.py",
    "tests/train/test_loop.py",
    "tests/train/test_losses.py",
    "tests/train/test_nano_training.py::test_an_interrupted_run_ends_at_the_same_weights",
    "tests/train/test_nano_training.py::test_the_reward_model_begins_as_the_teacher_with_layers_that_change_nothing",
    "tests/train/test_nano_weights.py",
    "tests/train/test_offline.py::test_a_killed_job_goes_on_from_trls_checkpoint",
    "tests/train/test_packing.py",
    "tests/train/test_ppo.py",
    "tests/train/test_preference.py",
    "tests/train/test_preferences.py",
    "tests/train/test_process_reward.py",
    "tests/train/test_replay.py",
    "tests/train/test_reward_model.py",
    "tests/train/test_sft.py::test_a_killed_stage_goes_on_bit_for_bit",
    "tests/train/test_sft.py::test_only_completions_are_learnt_and_their_mean_is_over_tokens",
    "tests/train/test_trl_oracle.py",
    "tests/distill/test_divergence.py",
    "tests/distill/test_on_policy.py::test_a_student_is_nothing_apart_from_itself",
    "tests/distill/test_on_policy.py::test_a_teacher_behind_an_engine_scores_like_one_in_this_process",
    "tests/distill/test_on_policy.py::test_forced_tokens_and_cut_completions_do_not_count",
    "tests/distill/test_on_policy.py::test_it_is_a_stage_of_a_recipe_whose_updates_can_be_computed_again",
    "tests/distill/test_on_policy.py::test_micro_batches_and_other_padding_change_nothing",
    "tests/distill/test_on_policy.py::test_reward_is_added_to_what_the_teacher_says",
    "tests/distill/test_on_policy.py::test_two_halves_with_a_resume_are_bit_for_bit_the_whole_run",
)
"""Tests whose outcome hangs on how torch, numpy or MKL round; without those that take long and show nothing more."""


@dataclass(frozen=True)
class Setting:
    """A choice of kernels and a number of compute threads."""

    variable: str
    value: str
    needs: str
    threads: int

    @property
    def name(self) -> str:
        """How a line of the report calls it."""
        return f"{self.variable}={self.value} OMP_NUM_THREADS={self.threads}"


SETTINGS = tuple(Setting(*choice, threads) for threads in THREADS for choice in CHOICES)


def features(capability: str, has_mkl: bool) -> set[str]:
    """What settings may need, on a processor whose best kernels of torch are `capability`."""
    ranks = ["DEFAULT", "AVX2", "AVX512"]
    vectors = ranks[: ranks.index(capability) + 1] if capability in ranks else ranks[:1]
    return {*vectors, *(["MKL"] if has_mkl else [])}


def run(setting: Setting) -> tuple[int, str]:
    """The exit code of the tests in this setting, and their output."""
    chosen = {setting.variable: setting.value, "OMP_NUM_THREADS": str(setting.threads)}
    environment = {**os.environ, **chosen, "OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin take the others' cores
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *TESTS]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, **streams)
    return done.returncode, done.stdout


def report(
    chosen: Sequence[Setting], here: set[str], run: Callable[[Setting], tuple[int, str]], say: Callable[[str], None]
) -> int:
    """Run those that `here` has what they need, and tell of each; 1 when one fails or none could be run, else 0."""
    codes: list[int] = []
    able = [setting for setting in chosen if setting.needs in here]
    for setting in chosen:
        if setting not in able:
            say(f"skipped {setting.name}: there is no {setting.needs} here")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for setting, (code, output) in zip(able, pool.map(run, able), strict=True):
            codes.append(code)
            say(f"{'failed' if code else 'ok':7} {setting.name}: {output.rstrip().rpartition(chr(10))[2]}")
            if code:
                say(output)
    return int(any(codes) or not codes)


def main(words: Sequence[str]) -> int:
    """Run the settings whose names contain all the words."""
    if given := {variable for variable, _, _ in CHOICES} & set(os.environ):
        raise SystemExit(f"unset {', '.join(sorted(given))}: what is set outside would hold in every setting")
    chosen = [setting for setting in SETTINGS if all(word in setting.name for word in words)]
    here = features(torch.backends.cpu.get_cpu_capability(), torch.backends.mkl.is_available())
    return report(chosen, here, run, _say)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
