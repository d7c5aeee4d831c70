"""Distil an endpoint's traces into SmolLM2-135M without manual steps, and test thinking budgets on the student.

    python -m benchmarks.smollm2_traces --model build/smollm2 --out runs/traces --save FILE [--only packaged long]

SmolLM2's tokenizer has no thinking markers, its template no place for a thought. Two teachers behind an endpoint:

    packaged   `ttc serve`, a process of its own, with the packaged teacher: sums, and its own short thoughts
    long       a scripted server with traces of 60 steps and `reasoning_content`, like a hosted reasoning model

A distillation job makes a student of each (`ttc distill`, method rejection). Reported are the rows, the loss before and
after, the markers, whether the template opens a thought, and the stop tokens of its generation config. Then caps,
strategies and questions are combined. A case is exact if no thought is longer than its cap, the ledger equals the
engine's own count to the token, and no thought or answer contains a marker. Left out: accuracy of the student (so few
steps teach the form, not the sums).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.beside_trl import facts
from benchmarks.served import serving
from distill.job.job import run_job
from distill.spec.spec import parse_spec
from tests.ttc.openai_server import Behaviour, OpenAIServer
from ttc.core import Answer, Message, Problem, Prompt, Sampling
from ttc.core import Path as TreePath
from ttc.engines.embedded.engine import embedded
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.text import Text
from ttc.scorers.likelihood import likelihood
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.budget_forcing import budget_forcing
from ttc.strategies.direct import direct
from ttc.strategies.majority import majority

CAPS = (1, 2, 3, 5, 8, 13, 32, 64, 128)
STRATEGIES: Mapping[str, Callable[..., Any]] = {
    "direct": direct,
    "majority": partial(majority, n=3),
    "best_of_n": partial(best_of_n, n=2, scorer=likelihood()),
    "budget_forcing": partial(budget_forcing, num_waits=1),
}
QUESTIONS = ("Compute 3+4.", "How many legs have two dogs?", "What is the capital of France?")
ANSWER_TOKENS = 24
LONG = 60


def talks(prompt: Prompt, path: TreePath, key: int) -> str:
    """A teacher with long traces that is right: it counts up, doubts, and counts on."""
    first, second = (int(word) for word in re.findall(r"\d+", prompt.messages[-1].content)[:2])
    steps = [f"Step {i}: I have {first + second * i // LONG} so far." for i in range(1, LONG)]
    steps[LONG // 2] = "Wait, let me check that again."
    said = prompt.generated_text
    whole = "\n".join(steps) + f"\n</think>\n\nThe answer is \\boxed{{{first + second}}}."
    return whole[len(said) :] if whole.startswith(said) else f"\\boxed{{{first + second}}}"


@contextlib.contextmanager
def packaged() -> Iterator[str]:
    """`ttc serve` with the packaged teacher; its base URL."""
    with serving("--name", "served") as url:
        yield f"{url}/v1"


@contextlib.contextmanager
def long() -> Iterator[str]:
    """A scripted server with long traces; its base URL."""
    behaviour = Behaviour(completions=False, ids=False, scores=False, reasoning="reasoning_content")
    with OpenAIServer(lambda: ScriptedEngine(talks, thinking=True), behaviour) as server:
        yield server.url


TEACHERS = {"packaged": (packaged, 512), "long": (long, 2048)}
"""Servers, and the tokens of an answer that they have room for."""


def sums(file: Path, num: int) -> Path:
    """Problems of two small numbers, all different."""
    pairs = [(a, b) for a in range(2, 40) for b in range(2, 40)][:: max(1, 38 * 38 // num)][:num]
    rows = [{"id": f"s{a}-{b}", "problem": f"Compute {a}+{b}.", "answer": str(a + b)} for a, b in pairs]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def job(model: Path, url: str, task: str, most: int, options: argparse.Namespace) -> dict[str, Any]:
    """The spec, as a user would write it; nothing about markers, templates or stop tokens."""
    return {
        "name": "traces", "method": "rejection", "student": str(model), "seed": 1, "n": 1,
        "task": task, "limit": options.problems, "sampling": {"max_tokens": most},
        "teacher": {"name": "r1", "model": "served", "engine": "openai", "options": {"base_url": url}},
        "filters": {"near": False}, "eval": {"limit": 2, "teachers": False},
        "train": {"steps": options.steps, "rows": 4, "lr": 5e-5, "save_every": 10},
    }  # fmt: skip


def distilled(name: str, model: Path, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job and return its results."""
    out.mkdir(parents=True, exist_ok=True)
    teacher, most = TEACHERS[name]
    with teacher() as url:
        task = (
            "arithmetic:split=train,level=2" if name == "packaged" else str(sums(out / "sums.jsonl", options.problems))
        )
        spec = parse_spec(job(model, url, task, most, options))
        done = run_job(spec, out / "job", lambda text: print(text, flush=True))
    assert done.model is not None
    text = Text(done.model)
    rows = [json.loads(line) for line in (out / "job" / "data" / "train.jsonl").read_text().splitlines()]
    lengths = [len(text.encode(row["thinking"])) for row in rows]
    config = json.loads((done.model / "generation_config.json").read_text())
    losses = [
        row["loss"]
        for file in sorted((out / "job").rglob("metrics.jsonl"))
        for row in map(json.loads, file.open())
        if "loss" in row
    ]
    return {
        "model": str(done.model), "rows": len(rows), "thought_tokens": [min(lengths), max(lengths)],
        "loss": [losses[0], losses[-1]], "markers": text.markers, "eos": config["eos_token_id"],
        "opens": text.render((Message("user", "2?"),), True).think_state,
    }  # fmt: skip


def exact(answer: Answer, cap: int, markers: Sequence[str], before: Any, after: Any) -> str:
    """The faults of a case; empty if there are none."""
    usage = answer.usage
    roots = [event for event in answer.trace if event.kind == "generate"]
    drawn, read = after.generated - before.generated, after.prompt - before.prompt
    if (usage.generated + usage.overrun, usage.prompt) != (drawn, read):
        return "ledger"
    if sum(event.data["num_tokens"] for event in roots) != usage.generated:
        return "trace"
    if any(marker in part for marker in markers for part in (answer.thinking, answer.text)):
        return "marker"
    if usage.thinking > cap * max(1, len(answer.candidates)):
        return "over"
    if answer.enforced not in ("ids", "none"):
        return f"enforced {answer.enforced}"
    return ""


async def battery(model: Path) -> dict[str, Any]:
    """Every cap under every strategy on every question."""
    engine, markers = embedded(str(model), dtype="float32"), Text(model).markers or ()
    faults: dict[str, int] = {}
    spent: list[tuple[int, int]] = []
    try:
        for cap in CAPS:
            for name, strategy in STRATEGIES.items():
                for question in QUESTIONS:
                    before = engine.counters()
                    answer = await solve(
                        Problem("p", (Message("user", question),)), engine=engine, strategy=strategy, seed=cap,
                        sampling=Sampling(temperature=float(name != "direct"), max_tokens=cap + ANSWER_TOKENS + 16),
                        thinking=Thinking(mode="on", max_tokens=cap),
                    )  # fmt: skip
                    fault = exact(answer, cap, markers, before, engine.counters())
                    if name == "direct":
                        spent.append((cap, answer.usage.thinking))
                    if fault:
                        faults[f"{name} {fault}"] = faults.get(f"{name} {fault}", 0) + 1
    finally:
        await engine.close()
    cut = [(cap, used) for cap, used in spent if used >= cap]
    return {
        "cases": len(CAPS) * len(STRATEGIES) * len(QUESTIONS), "faults": faults,
        "direct_at_cap": len(cut), "direct_over_cap": sum(used > cap for cap, used in cut), "direct": len(spent),
    }  # fmt: skip


def main() -> int:
    """Run both; 1 where a case is not exact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(TEACHERS), default=list(TEACHERS))
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name in options.only:
        row = distilled(name, options.model, options.out / name, options)
        rows[name] = {**row, "battery": asyncio.run(battery(Path(row.pop("model"))))}
        print(json.dumps({name: rows[name]}), flush=True)
    if options.save is not None:
        told = {**facts(), "steps": options.steps, "problems": options.problems, "rows": rows}
        options.save.write_text(json.dumps(told, indent=1) + "\n")
    return int(any(row["battery"]["faults"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
