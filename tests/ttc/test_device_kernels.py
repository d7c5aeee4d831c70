"""The kernels of the device step. Triton interprets or compiles as it was first imported: processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter in the root."""
    fixed = {"OMP_NUM_THREADS": "1", "TRITON_DEFAULT_FP_FUSION": "1", **environment}
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, env=clean | fixed)


@pytest.mark.slow
@needs_triton
def test_every_kernel_equals_its_reference_under_the_interpreter() -> None:
    cases = str(Path(__file__).with_name("interpreted_device.py"))
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", cases, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


CASES = ("project 7B bf16", "draw 152k")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one fresh process found: what went wrong with each compilation, and which cases are typed wrongly."""
    code = f"""
import json, traceback
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from ttc.engines.embedded.device import compile_cases
told = {{"typed wrongly": "", "cases": ""}}
for name, kernel, types, sizes, options in compile_cases():
    told["cases"] += f"{{name}};"
    if list(types) != kernel.arg_names or {{key for key, kind in types.items() if kind == "constexpr"}} != set(sizes):
        told["typed wrongly"] += f"{{name}};"
    if name in {CASES}:
        try:
            binary = compile(ASTSource(kernel, types, sizes), target=GPUTarget("cuda", 90, 32), options=options)
            assert ".target sm_90a" in binary.asm["ptx"] and "cubin" in binary.asm
            told[name] = "compiled"
        except Exception:
            told[name] = traceback.format_exc()
print(json.dumps(told))
"""
    done = python("-c", code, TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return said


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_compiles_ahead_of_time_without_a_gpu(name: str, told: dict[str, str]) -> None:
    assert (told[name], told["cases"].split(";").count(name)) == ("compiled", 1)


@needs_triton
def test_every_case_types_every_parameter(told: dict[str, str]) -> None:
    assert told["cases"] and told["typed wrongly"] == ""


def test_without_triton_the_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["triton"] = None
import ttc.engines.embedded.engine
from ttc.errors import ConfigError
try:
    import ttc.engines.embedded.device
except ConfigError as error:
    print(error)
"""
    assert "pip install triton" in python("-c", code).stdout
