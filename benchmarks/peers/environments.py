"""An environment for each system, with pinned versions: no system sees the packages of another.

Peers with a reward model also get what the packaged one needs, from `constraints.txt`; all import this checkout by
PYTHONPATH. optillm requires some 40 packages (bitsandbytes, gradio, spacy, ...), few of which its proxy and its voting
import: only those are installed. search-and-learn is no package on PyPI and imports vLLM at the top of every file: a
checkout of it is named by `--search-and-learn`, and `clients/stubs/vllm` provides the two names that it imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REWARD_MODEL = ("torch", "transformers", "tokenizers", "safetensors", "jinja2", "numpy", "huggingface-hub")
SAL_COMMIT = "6f81cac8b1ca4c4be9fabefc27a856c928f3ae7f"


@dataclass(frozen=True)
class Environment:
    """`packages` with their dependencies, then `bare` ones without."""

    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()
    constrained: bool = False


OPTILLM = (
    *("flask==3.1.3", "cerebras_cloud_sdk==1.91.0", "openai==3.54.0", "z3-solver==4.15.4.0", "networkx==3.6.1"),
    *("sympy==1.14.0", "requests==2.34.2", "aiohttp==3.14.5", "tqdm==4.70.1", "math-verify==0.9.0", "PyYAML==6.0.3"),
    "numpy==2.3.5",
)

LOOPS = ("tqdm", "datasets", "accelerate", "regex", "word2number==1.1", "pebble==5.2.3", "sympy")

PARSER = ("latex2sympy2==1.9.1", "antlr4-python3-runtime==4.7.2")
"""Of search-and-learn's imports; its runtime of ANTLR is older than the one that others of them require."""

ENVIRONMENTS: Mapping[str, Environment] = {
    "its_hub": Environment(("its_hub[lm]==1.2.0", *REWARD_MODEL), constrained=True),
    "optillm": Environment(OPTILLM, ("optillm==0.4.0",)),
    "search_and_learn": Environment((*REWARD_MODEL, *LOOPS), PARSER, constrained=True),
    "lm_eval": Environment(("lm-eval[api]==0.4.13",)),
}


def versions() -> dict[str, str]:
    """What stands for the version of each peer: the first package of its environment, or its commit."""
    own = {name: (entry.bare or entry.packages)[0] for name, entry in ENVIRONMENTS.items()}
    return {**own, "search_and_learn": SAL_COMMIT}


def python(name: str, folder: Path) -> Path:
    """The interpreter of a system; this process's own where the system has no environment."""
    return folder / name / "bin" / "python" if name in ENVIRONMENTS else Path(sys.executable)


def install(name: str, folder: Path) -> None:
    """Make the environment of `name` under `folder`; a finished one is left as it is."""
    place, entry = folder / name, ENVIRONMENTS[name]
    if (place / "finished").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    constraint = ["--constraint", str(ROOT / "constraints.txt")] if entry.constrained else []
    _pip(place, [*constraint, *entry.packages])
    if entry.bare:
        _pip(place, ["--no-deps", *entry.bare])
    freeze = subprocess.run([str(place / "bin/python"), "-m", "pip", "freeze"], capture_output=True, check=True)
    (place / "finished").write_bytes(freeze.stdout)


def _pip(place: Path, arguments: Sequence[str]) -> None:
    command = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def variables(*paths: Path) -> dict[str, str]:
    """The environment variables of a client: this checkout first, one thread, no downloads."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths))),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "OPENAI_API_KEY": "none",
    }
