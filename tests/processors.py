"""Run the numeric tests with the kernels of other processors: `python -m tests.processors` (`make test-cpus`).

torch and its matrix library choose kernels by what the processor has, and each kernel adds in an order of its own, so a
test may hold on one machine and fail on the next. Variables of the environment make this machine choose as others do.
Every choice is run with one compute thread and with two, as many side by side as there are cores; the slow strict mode
of MKL, which the embedded engine advises where kernels treat rows unlike, with one. What this machine takes of itself
is left out with one thread, since `make test` has run it. Where torch takes lesser kernels, oneDNN does, too: torch's
fused attention in bf16 stops where one sees an old processor and the other a new one. Prints a line for each, and all
output of one that fails; the exit code is then 1. Words pick those whose names contain them all, `or` those of the next
words:

    python -m tests.processors THREADS=1 or avx2 THREADS=2

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
ONEDNN = {"default": "AVX2", "avx2": "AVX2"}
"""`ONEDNN_MAX_CPU_ISA` beside a value of `ATEN_CPU_CAPABILITY`."""
NUMBA = {"default": ("x86-64", "+sse2"), "avx2": ("haswell", "+avx2,+fma")}
"""`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` beside it: for what numba compiles `ttc.engines.embedded.core.native`."""
MARK = "pytest.mark.numeric"
MARKED = "numeric and not slow and not vllm"
"""Borne by a test whose outcome hangs on how torch, numpy or MKL round, unless it takes long and shows nothing more."""


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


STRICT = Setting("MKL_CBWR", "AVX2,STRICT", "MKL", 1)
SETTINGS = (*(Setting(*choice, threads) for threads in THREADS for choice in CHOICES), STRICT)


def features(capability: str, has_mkl: bool) -> set[str]:
    """What settings may need, on a processor whose best kernels of torch are `capability`."""
    ranks = ["DEFAULT", "AVX2", "AVX512"]
    vectors = ranks[: ranks.index(capability) + 1] if capability in ranks else ranks[:1]
    return {*vectors, *(["MKL"] if has_mkl else [])}


def numeric_files() -> list[pathlib.Path]:
    """Files with tests that bear the mark; to collect only them takes seconds, all of them a minute."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in paths if MARK in path.read_text(encoding="utf-8")]


def run(setting: Setting) -> tuple[int, str]:
    """The exit code of the tests in this setting, and their output."""
    chosen = {setting.variable: setting.value, "OMP_NUM_THREADS": str(setting.threads)}
    environment = {**os.environ, **chosen, "OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin take the others' cores
    if setting.value in ONEDNN:
        environment["ONEDNN_MAX_CPU_ISA"] = ONEDNN[setting.value]
        environment["NUMBA_CPU_NAME"], environment["NUMBA_CPU_FEATURES"] = NUMBA[setting.value]
    files = [str(path.relative_to(ROOT)) for path in numeric_files()]
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-m", MARKED, *files]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, **streams)
    return done.returncode, done.stdout


def report(
    chosen: Sequence[Setting],
    here: set[str],
    run: Callable[[Setting], tuple[int, str]],
    say: Callable[[str], None],
    own: str = "",
) -> int:
    """Run those that `here` has what they need, and tell of each; 1 when one fails or none could be run, else 0.

    `own` is the value of `ATEN_CPU_CAPABILITY` that changes nothing here.
    """
    codes: list[int] = []
    able = [setting for setting in chosen if setting.needs in here and not _is_own(setting, own)]
    for setting in chosen:
        if setting.needs not in here:
            say(f"skipped {setting.name}: there is no {setting.needs} here")
        elif setting not in able:
            say(f"skipped {setting.name}: it is what this machine takes of itself")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for setting, (code, output) in zip(able, pool.map(run, able), strict=True):
            codes.append(code)
            say(f"{'failed' if code else 'ok':7} {setting.name}: {output.rstrip().rpartition(chr(10))[2]}")
            if code:
                say(output)
    return int(any(codes) or not codes)


def picked(words: Sequence[str]) -> list[Setting]:
    """The settings whose names contain all words of one group; `or` stands between groups."""
    groups = [group.split() for group in " ".join(words).split(" or ")]
    return [setting for setting in SETTINGS if any(all(word in setting.name for word in group) for group in groups)]


def _is_own(setting: Setting, own: str) -> bool:
    return (setting.variable, setting.value, setting.threads) == ("ATEN_CPU_CAPABILITY", own, 1)


def main(words: Sequence[str]) -> int:
    """Run the settings that the words pick."""
    if given := {"ONEDNN_MAX_CPU_ISA", *(variable for variable, _, _ in CHOICES)} & set(os.environ):
        raise SystemExit(f"unset {', '.join(sorted(given))}: what is set outside would hold in every setting")
    chosen = picked(words)
    capability = torch.backends.cpu.get_cpu_capability()
    here = features(capability, torch.backends.mkl.is_available())
    return report(chosen, here, run, _say, capability.lower())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
