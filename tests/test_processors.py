"""The runner of other processors' kernels: no numeric file is forgotten, no failure is lost."""

import os
import re
import subprocess
import sys

import pytest
import torch

from tests.processors import ROOT, SETTINGS, features, numeric_files, picked, report

HARDWARE = re.compile(r"pytestmark = .*(gpu|vllm)")
INDIFFERENT = {
    "tests/test_processors.py": "names the functions only",
    "tests/train/test_grouping.py": "compares weights that nobody may have touched",
    "tests/train/test_health.py": "compares weights with those that were kept of them",
}
"""File that compares tensors -> why no kernel can change its outcome."""


def test_every_file_that_compares_tensors_runs_with_the_kernels_of_other_processors():
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    compares = re.compile(r"torch\.(equal|allclose|testing)\b")
    files = {path for path, text in texts.items() if compares.search(text) and not HARDWARE.search(text)}
    assert files - {ROOT / path for path in INDIFFERENT} <= set(numeric_files())


@pytest.mark.parametrize(
    ("capability", "has_mkl", "skipped"),
    [
        ("AVX512", True, set()),
        ("AVX2", True, {"avx512"}),
        ("NEON", False, {"avx2", "avx512", "AVX2", "COMPATIBLE", "AVX2,STRICT"}),
    ],
)
def test_what_a_processor_does_not_have_is_skipped_with_a_word(capability, has_mkl, skipped):
    lines, ran = [], []
    here = features(capability, has_mkl)
    assert report(SETTINGS, here, lambda setting: (ran.append(setting), (0, "1 passed"))[1], lines.append) == 0
    assert {setting.value for setting in SETTINGS} - {setting.value for setting in ran} == skipped
    left = [line for line in lines if line.startswith("skipped")]
    assert len(left) == sum(setting.value in skipped for setting in SETTINGS) and all(
        "there is no " in line for line in left
    )
    assert len(ran) + len(left) == len(SETTINGS) == sum(line.startswith(("ok", "skipped")) for line in lines)


def test_what_a_processor_takes_of_itself_is_not_run_again_with_one_thread():
    lines, ran = [], []
    assert report(SETTINGS, features("AVX2", True), lambda s: (ran.append(s), (0, ""))[1], lines.append, "avx2") == 0
    names = {setting.name for setting in ran}
    assert "ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1" not in names
    assert "ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2" in names
    assert "skipped ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1: it is what this machine takes of itself" in lines


def test_words_pick_settings_and_or_stands_between_groups():
    names = [setting.name for setting in picked(["avx2", "THREADS=2", "or", "STRICT"])]
    assert names == ["ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2", "MKL_CBWR=AVX2,STRICT OMP_NUM_THREADS=1"]
    assert picked([]) == list(SETTINGS) and not picked(["no such"])


@pytest.mark.parametrize("code", [1, 5, -11])
def test_a_setting_that_fails_finds_no_test_or_crashes_fails_the_run_and_shows_its_output(code):
    lines = []
    odd = SETTINGS[3]
    outcomes = {odd: (code, "the whole story\nits end")}
    assert report(SETTINGS, features("AVX512", True), lambda setting: outcomes.get(setting, (0, "fine")), lines.append)
    assert f"failed  {odd.name}: its end" in lines and "the whole story\nits end" in lines


def test_nothing_to_run_is_no_success():
    assert report([], features("AVX512", True), lambda setting: (0, ""), lambda line: None) == 1


@pytest.mark.long
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="the kernels are not MKL's")
def test_where_kernels_treat_rows_unlike_the_advice_of_the_refusal_helps() -> None:
    code = "from ttc.engines.embedded.engine import embedded; embedded(batch_invariant=True, dtype='float32')"
    plain = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    avx2 = {**plain, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    refused, helped = (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        for environment in (avx2, {**avx2, "MKL_CBWR": "AVX2,STRICT"})
    )
    assert refused.returncode == 0 or "set MKL_CBWR=AVX2,STRICT in the environment" in refused.stderr
    assert helped.returncode == 0, helped.stderr
