"""The kernels of the device step. Triton interprets or compiles as it was first imported: processes of their own."""

from __future__ import annotations

import importlib.util
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


@needs_triton
@pytest.mark.parametrize("name", ["project 7B bf16", "draw 152k"])
def test_a_kernel_compiles_ahead_of_time_without_a_gpu(name: str, tmp_path: Path) -> None:
    code = f"""
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from ttc.engines.embedded.device import compile_cases
(kernel, types, sizes, options), = [case[1:] for case in compile_cases() if case[0] == {name!r}]
binary = compile(ASTSource(kernel, types, sizes), target=GPUTarget("cuda", 90, 32), options=options)
assert ".target sm_90a" in binary.asm["ptx"] and "cubin" in binary.asm
"""
    done = python("-c", code, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]


@needs_triton
def test_every_case_types_every_parameter() -> None:
    code = """
from ttc.engines.embedded.device import compile_cases
for name, kernel, types, sizes, options in compile_cases():
    assert list(types) == kernel.arg_names, name
    assert {key for key, kind in types.items() if kind == "constexpr"} == set(sizes), name
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr[-3000:]


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
