"""How far rounding in bf16 moves log-probabilities: the same weights in the engine and in the trainer.

    python -m benchmarks.bf16_rounding --model build/smollm2 --save benchmarks/results/bf16_rounding.json

Log-probabilities of the model's answers to Countdown problems are computed by the trainer in fp32, by the trainer in
bf16 (as under adapters) and with bf16 passes over fp32 weights, and by the embedded engine in bf16. Reported are the
mean negative log-probability, the mean absolute and the mean signed difference in nats, for prompts and answers
separately, and the largest mean over two sequences, which is what a parity probe measures. The limits of
`train.rollouts.sync` and of the self-test of on-policy distillation are chosen from it. Cost: a minute of one core.
Left out: a GPU's kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.beside_trl import facts
from evals.task import Item
from train.base.models import load_model
from train.registries import make_task
from train.update.logprobs import token_logprobs
from ttc.core import Sampling
from ttc.engines.embedded.engine import embedded
from ttc.engines.shared.text import Text

TASK, QUESTIONS, TOKENS = "countdown:numbers=3,part=train,form=brief", 24, 160
KV_BYTES = 1 << 30
Sequences = Sequence[tuple[int, tuple[int, ...]]]
"""Length of the prompt, and all ids."""


async def answered(model: Path, items: Sequence[Item]) -> Sequences:
    """An answer to each question, at temperature 1."""
    text, engine = Text(model), embedded(str(model), dtype="float32", kv_bytes=KV_BYTES)
    sampling = Sampling(temperature=1.0, max_tokens=TOKENS, seed=1)
    prompts = [replace(text.render(item.problem.messages, None), path=(number,)) for number, item in enumerate(items)]
    answers = await asyncio.gather(
        *(engine.generate(prompt, sampling, range(1), lambda usage: None) for prompt in prompts)
    )
    await engine.close()
    pairs = [(prompt.token_ids or (), one[0].token_ids or ()) for prompt, one in zip(prompts, answers, strict=True)]
    return [(len(prompt), (*prompt, *answer)) for prompt, answer in pairs]


async def by_engine(model: Path, sequences: Sequences) -> list[torch.Tensor]:
    """The bf16 engine's log-probabilities of all ids but the first."""
    engine: Any = embedded(str(model), dtype="bfloat16", kv_bytes=KV_BYTES)
    scored = [torch.tensor(await engine.logprobs(ids, 1, lambda usage: None)) for _, ids in sequences]
    await engine.close()
    return scored


def by_trainer(model: Path, sequences: Sequences, dtype: torch.dtype, cast: bool) -> list[torch.Tensor]:
    """The trainer's."""
    network = load_model(model, "cpu", dtype=dtype).eval()
    scored = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
        for _, ids in sequences:
            mask = torch.ones(1, len(ids) - 1, dtype=torch.bool)
            scored.append(token_logprobs(network, torch.tensor([ids]), mask).logprobs[0])
    return scored


def gap(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> dict[str, float]:
    """Differences between two computations, in nats."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    pairs = [torch.cat(differences[place : place + 2]) for place in range(0, len(differences), 2)]
    whole = torch.cat(differences)
    return {
        "absolute": round(float(whole.abs().mean()), 4),
        "absolute_of_two": round(max(float(pair.abs().mean()) for pair in pairs), 4),
        "signed": round(float(whole.mean()), 4),
    }


def table(sequences: Sequences, ways: Mapping[str, Sequence[torch.Tensor]]) -> dict[str, Any]:
    """Each computation against the trainer in fp32 and against the engine, for prompts and answers."""
    parts: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
        "prompts": lambda row, length: row[: length - 1],
        "answers": lambda row, length: row[length - 1 :],
    }
    rows: dict[str, Any] = {}
    for name, part in parts.items():
        of_part = {
            way: [part(row, length) for row, (length, _) in zip(scored, sequences, strict=True)]
            for way, scored in ways.items()
        }
        exact, engine = of_part["trainer, fp32"], of_part["engine, bf16"]
        rows[name] = {
            "surprise": round(-fmean(torch.cat(exact).tolist()), 3),
            **{
                way: {"against fp32": gap(own, exact), "against the engine": gap(own, engine)}
                for way, own in of_part.items()
            },
        }
    return rows


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sequences = asyncio.run(answered(options.model, make_task(TASK).items(QUESTIONS, 0)))
    ways = {
        "trainer, fp32": by_trainer(options.model, sequences, torch.float32, False),
        "trainer, bf16": by_trainer(options.model, sequences, torch.bfloat16, False),
        "trainer, bf16 passes": by_trainer(options.model, sequences, torch.float32, True),
        "engine, bf16": asyncio.run(by_engine(options.model, sequences)),
    }
    numbers = {**facts(), "model": options.model.name, "sequences": len(sequences), **table(sequences, ways)}
    print(json.dumps(numbers, indent=1))
    if options.save is not None:
        options.save.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
