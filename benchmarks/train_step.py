"""Cost of a training step with adapters on a CPU: how a batch is split, and the dtype of attention.

    python -m benchmarks.train_step --model build/smollm2 [--save benchmarks/results/train_step.json]

Worked searches of Countdown (`train.corpora.countdown`, as the start of the public chain learns them), eight a step, in
bf16 under autocast, one thread. Three ways alternate on the same batches: one padded pass with torch's attention; the
batch split so that passes and padding together cost least, with torch's attention; and that split with the attention
that `train.base.models.speed_attention` chooses on this processor. Reported are CPU seconds (forward and backward pass,
no optimiser), and the ratio to the previous way with its 95 % bootstrap over batches. Three minutes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.machine import machine
from train.base.models import load_model, load_tokenizer, speed_attention
from train.base.weights import add_lora
from train.corpora.countdown import countdown
from train.examples.examples import corpus_examples
from train.examples.imitation import imitation_batch
from train.recipe.adapt import Adaptation, adapted
from train.update.batch import TokenBatch, micro_batches
from train.update.logprobs import token_logprobs
from ttc.engines.shared.text import Text

ROWS, RANK, BOUND = 8, 8, 2048
WAYS = ("one padded pass", "cut", "cut, attention picked")


def seconds(model: Any, batch: TokenBatch, way: str) -> float:
    """Processor seconds of a gradient."""
    model.set_attn_implementation("sdpa")
    if way == WAYS[2]:
        speed_attention(model, "cpu")
    index = torch.arange(len(batch))
    before = time.process_time()
    for part in [index] if way == WAYS[0] else micro_batches(batch.mask, index, BOUND):
        rows = batch.rows(part)
        with torch.autocast("cpu", torch.bfloat16):
            scored = token_logprobs(model, rows.ids, rows.mask)
        (-(scored.logprobs * rows.ce).sum()).backward()
    took = time.process_time() - before
    model.zero_grad()
    return took


def batches(folder: Path, count: int) -> list[TokenBatch]:
    """Batches of worked searches in the model's own ids."""
    tokenizer = load_tokenizer(folder)
    examples = corpus_examples(countdown(), Text(folder), int(tokenizer.eos_token_id), count * ROWS, 1)
    parts = [examples[start : start + ROWS] for start in range(0, len(examples), ROWS)]
    return [imitation_batch(part, int(tokenizer.pad_token_id), "token", 1) for part in parts]


def measure(folder: Path, count: int) -> dict[str, Any]:
    """Mean seconds of each way, its ratio to the way before it, and how much of the padded batches is text."""
    model = load_model(folder, "cpu", dtype=torch.bfloat16).train()
    add_lora(model, RANK, 2.0 * RANK, 1)
    drawn = batches(folder, count)
    seconds(model, drawn[0], WAYS[0])
    table = [[seconds(model, batch, way) for way in WAYS] for batch in drawn]
    filled = fmean(_filled(batch) for batch in drawn)
    rows: dict[str, Any] = {"text": filled, "batches": count}
    for place, way in enumerate(WAYS):
        rows[way] = {"seconds": fmean(times[place] for times in table)}
        if place:
            ratios = [times[place] / times[place - 1] for times in table]
            again = np.random.default_rng(0).choice(ratios, (2000, count)).mean(axis=1)
            low, high = np.quantile(again, (0.025, 0.975)).tolist()
            rows[way] |= {"ratio": fmean(ratios), "low": low, "high": high}
    return rows


def _filled(batch: TokenBatch) -> float:
    """The share of a padded pass that is text: all places up to the last one that is learnt, of every row."""
    places = torch.arange(1, batch.mask.shape[1] + 1)
    return float((batch.mask * places).amax(1).sum() / batch.mask.numel())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and, if requested, save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        model = adapted(options.model, Path(folder) / "model", Adaptation())  # its thinking markers
        rows = {"machine": machine(), "torch": torch.__version__, **measure(model, options.batches)}
    print(json.dumps(rows, indent=1))
    if options.save is not None:
        options.save.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
