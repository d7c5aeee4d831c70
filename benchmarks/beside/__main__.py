"""The first minutes with this toolkit and with five others, each in an environment of its own.

    python -m benchmarks.beside --wheel build/wheel/ttckit-0.1.0-py3-none-any.whl --envs ../beside \
        --save benchmarks/results/beside.json

Each tool is installed as its own first page says, then runs the shortest program that reads the same file of questions
and answers, takes a vote of four samples from the same endpoint, and prints an accuracy (`programs/`). Lines are those
of the program, without blank ones. TRL trains and does not vote: its program makes one step of GRPO on
SmolLM2-135M-Instruct, and its seconds are not compared. The endpoint is a fake server on this machine which requires a
key, accepts messages only and answers at once, so seconds are those of the tool.

In favour of others: the pattern that finds a number in an answer was written for them; what each tool prints is counted
in full; of the roughly 40 packages that optillm requires, torch, gradio and spacy among them, only those that a vote
needs are installed (`benchmarks.peers`). A tool that fails to install or to run is listed with the reason. `--torch` is
installed first where a tool requires torch, which avoids CUDA packages. The description of a first screen comes from
the README of the installed version. Cost: about five minutes and 6 GB, nearly all of it pip.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.pages import placed
from benchmarks.peers.environments import OPTILLM
from benchmarks.strangers import HOSTED, KEY, PAGE, PROBLEMS, hosted, problems

PROGRAMS = Path(__file__).parent / "programs"
LENIENT = replace(HOSTED, strict=False, rate=None, default_limit=1024)
"""Accepts any field, any number of times, and requests without a limit."""


@dataclass(frozen=True, slots=True)
class FirstPage:
    """A tool by its own README: its first example, what is installed, and the text of its first result."""

    name: str
    shows: str
    package: str
    program: str
    says: str
    torch: bool = False
    bare: str = ""
    """Packages installed after the others and without their dependencies."""


TOOLS = (
    FirstPage(
        "ttc", "a figure of accuracy against tokens, two commands", "{wheel}", "ttc_door.py",
        "vote over answers; accuracy with its interval, tokens, seconds, dollars",
    ),
    FirstPage(
        "its_hub", "a video, extras of pip, 12 lines of Python", "its_hub[lm]==1.2.0", "its_hub_votes.py",
        "vote over answers; one answer at a time, scored by the user's own line",
    ),
    FirstPage(
        "optillm", "a proxy: `pip install optillm`, `optillm`, a model's name", " ".join(OPTILLM), "optillm_votes.py",
        "vote over answers; one answer at a time, scored by the user's own line", bare="optillm==0.4.0",
    ),
    FirstPage(
        "inspect_ai", "what it is for, three sentences, a site", "inspect_ai==0.3.285 openai", "inspect_votes.py",
        "the mode of four verdicts, which needs the key; accuracy with its standard error, tokens, a log with a viewer",
    ),
    FirstPage(
        "lm-eval", "tasks, backends, a command for each", "lm-eval[api]==0.4.13", "lm_eval_votes.py",
        "vote over answers; accuracy with its standard error",
    ),
    FirstPage(
        "TRL", "trainers, ten lines each", "trl==1.16.*", "trl_step.py", "loss and reward of one training step",
        torch=True,
    ),
)  # fmt: skip


def install(tool: FirstPage, wheel: Path, envs: Path, torch: str) -> dict[str, Any]:
    """Make the environment of a tool, unless its numbers are kept; returns them."""
    place, kept = envs / tool.name, envs / f"{tool.name}.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text()))
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    packages = tool.package.format(wheel=wheel.resolve()).split()
    started = time.monotonic()
    done = subprocess.run(
        [str(place / "bin/pip"), "install", "--quiet", *([torch] * tool.torch), *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    if tool.bare and done.returncode == 0:
        last = [str(place / "bin/pip"), "install", "--quiet", "--no-deps", tool.bare]
        done = subprocess.run(last, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    site = next((place / "lib").glob("python3*")) / "site-packages"
    own = ("pip", "setuptools", "_distutils_hack", "pkg_resources")
    parts = [part for part in site.rglob("*") if part.is_file() and not part.relative_to(site).parts[0].startswith(own)]
    row = {
        "seconds": round(seconds, 1),
        "packages": len([info for info in site.glob("*.dist-info") if not info.name.startswith(own)]),
        "megabytes": round(sum(part.stat().st_size for part in parts) / 1e6),
        "error": None if done.returncode == 0 else _last_line(done.stderr),
    }
    kept.write_text(json.dumps(row))
    return row


def run(tool: FirstPage, envs: Path, smollm2: Path, url: str) -> dict[str, Any]:
    """Run a tool's program in a new folder that holds the problems."""
    place = envs / tool.name
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / PROBLEMS).write_text(problems(), encoding="utf-8")
        (Path(home) / "SmolLM2-135M-Instruct").symlink_to(smollm2.resolve())
        variables = {
            **{"HOME": home, "PATH": f"{place / 'bin'}:/usr/bin:/bin", "URL": url, "OPENAI_API_KEY": KEY},
            **{"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        }
        started = time.monotonic()
        done = subprocess.run(
            [str(place / "bin/python"), str(PROGRAMS / tool.program)],
            cwd=home, env=variables, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - started
    return {
        "lines": sum(bool(line.strip()) for line in (PROGRAMS / tool.program).read_text().splitlines()),
        "seconds": round(seconds, 1),
        "screen": done.stdout,
        "error": None if done.returncode == 0 else _last_line(done.stderr),
    }


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no words")


def table_of(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One row per tool."""
    lines = [
        "| tool | its first screen | packages, MB | install s | lines of Python | first result s | what it reports |",
        "|---|---|---|---|---|---|---|",
    ]
    for tool in TOOLS:
        row = rows[tool.name]
        size = f"{row['install']['packages']}, {row['install']['megabytes']:,}"
        failed = row["install"]["error"] or row["run"]["error"]
        says = tool.says if failed is None else f"fails: {failed}"
        lines.append(
            f"| {tool.name} | {tool.shows} | {size} | {row['install']['seconds']:.0f} | {row['run']['lines']} | "
            f"{row['run']['seconds']:.1f} | {says} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure every tool and write the table into the page of first contact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the environments, kept between runs")
    parser.add_argument("--smollm2", type=Path, default=Path("build/smollm2"))
    parser.add_argument("--torch", default="torch==2.13.0")
    parser.add_argument("--save", type=Path, help="write the rows here and the table into the page")
    args = parser.parse_args()
    args.envs.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    for tool in TOOLS:
        installed = install(tool, args.wheel, args.envs, args.torch)
        with hosted(LENIENT) as url:
            rows[tool.name] = {"install": installed, "run": run(tool, args.envs, args.smollm2, url)}
        print(json.dumps({tool.name: rows[tool.name]}), flush=True)
    print(table_of(rows))
    if args.save is not None:
        args.save.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(placed(PAGE.read_text(encoding="utf-8"), {"beside": table_of(rows)}), encoding="utf-8")


if __name__ == "__main__":
    main()
