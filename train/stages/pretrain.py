"""Pretrain a small model from nothing on a made-up language (`train/corpora/`).

Next-token cross-entropy over whole texts, AdamW, warm-up and linear decay. The texts of a step are a pure function of
(seed, step). Measured is the probability per token of fresh texts, under random weights and under the trained ones.
Cost: seconds for the toy languages. It exists so that every recipe can start on a laptop; real recipes start from a
model folder.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from train.base.checkpoint import Checkpoints
from train.base.health import check_finite
from train.base.models import Shape, new_model, save_model
from train.base.optimiser import Optimiser, Schedule
from train.base.stage import Setting, Stage, StageResult, kept, time_left
from train.examples.examples import CORPORA, Corpus, corpus_examples
from train.examples.imitation import probabilities
from train.measure.measure import gains
from train.registries import make
from train.update.batch import pad
from train.update.logprobs import token_logprobs
from ttc import seeds
from ttc.concurrent import Reminder
from ttc.durable import replace_text
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError

_FRESH = 256
"""Fresh texts that are measured."""


def pretrain(
    *,
    corpus: str,
    steps: int,
    lr: float = 3e-3,
    rows: int = 64,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    mlp: int = 192,
) -> Stage:
    """Make a base model.

    Args:
        corpus: the language, NAME or NAME:KEY=VALUE,...
        steps: optimiser steps.
        lr: highest learning rate.
        rows: texts per step.
        hidden: width of the model.
        layers: its layers.
        heads: its attention heads.
        kv_heads: its key-value heads.
        head_dim: size of a head.
        mlp: width of the feed-forward layers.
    """
    if steps < 1 or rows < 1:
        raise ConfigError("pretrain: steps and rows must be at least 1")
    shape = Shape(hidden, layers, heads, kv_heads, head_dim, mlp)
    return _Pretrain(make(CORPORA, corpus), Schedule(lr, steps, min(50, steps // 4), decay=True), rows, shape)


@dataclass(frozen=True, slots=True)
class _Pretrain:
    corpus: Corpus
    schedule: Schedule
    rows: int
    shape: Shape

    def check(self, has_model: bool) -> None:
        if has_model:
            raise ConfigError("pretrain starts from nothing: make it the first stage and give no --model")

    def run(self, setting: Setting) -> StageResult:
        tokenizer = self.corpus.tokenizer()
        model = self._untrained(tokenizer, setting)
        optimiser = Optimiser(model, self.schedule)
        checkpoints = Checkpoints(setting.folder / "checkpoints", setting.log)
        checkpoint = checkpoints.resume(model)
        start, first = 0, float("nan")
        if checkpoint is not None:
            optimiser.load(checkpoint[0])
            start, first = int(checkpoint[1]["step"]), float(checkpoint[1]["first"])
        model.train()
        loss, began, reminder = first, time.perf_counter(), Reminder()
        with setting.stop.heeded():
            for step in range(start, self.schedule.steps):
                if setting.stop.asked:
                    break
                ids, mask = (tensor.to(setting.device) for tensor in self._texts(tokenizer, setting.seed, step))
                value = -token_logprobs(model, ids, mask).logprobs.sum() / mask.sum()
                value.backward()
                norm, loss = optimiser.step(), float(value.detach())
                check_finite({"loss": loss, "grad_norm": norm}, step + 1)
                first = loss if step == 0 else first
                if reminder.due() or (step + 1) % 100 == 0:
                    pace = (time.perf_counter() - began) / (step + 1 - start)
                    left = time_left(pace * (self.schedule.steps - step - 1))
                    setting.log(f"pretrain step {step + 1} of {self.schedule.steps}: loss {loss:.3f}{left}")
                if (step + 1) % 500 == 0:
                    checkpoints.save(step + 1, model, optimiser.state(), {"first": first})
            if setting.stop.asked:
                checkpoints.keep(optimiser.taken, model, optimiser.state(), {"first": first})
                raise setting.stop.interrupted(kept(optimiser.taken, setting))
        folder: Path = setting.folder / "model"
        save_model(model, tokenizer, folder)
        replace_text(folder / "corpus.json", json.dumps({"corpus": self.corpus.name}) + "\n")
        losses = {"loss_before": first, "loss_after": loss}
        return StageResult(str(folder), {**losses, **self._gains(model, folder, setting)})

    def _gains(self, model: Any, folder: Path, setting: Setting) -> dict[str, float]:
        """The probability per token of fresh texts, before and after."""
        text, tokenizer = Text(folder), self.corpus.tokenizer()
        end, filler = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)
        whole = replace(self.corpus, pair=None, turn=None)
        fresh = corpus_examples(whole, text, end, _FRESH, seeds.derive(setting.seed, "fresh texts"))
        untrained = self._untrained(tokenizer, setting)
        before, after = (probabilities(one, fresh, filler) for one in (untrained, model))
        return gains("likelihood", before, after, setting.seed, smooth=True)

    def _untrained(self, tokenizer: Any, setting: Setting) -> Any:
        seed = seeds.derive(setting.seed, "weights") % (1 << 31)
        return new_model(self.shape, tokenizer, seed).to(setting.device)

    def _texts(self, tokenizer: Any, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = random.Random(seeds.derive(seed, "corpus", step))
        encoded = tokenizer([self.corpus.sample(rng) for _ in range(self.rows)])["input_ids"]
        texts = [[*ids, tokenizer.eos_token_id] for ids in encoded]
        ids = pad(texts, tokenizer.pad_token_id)
        lengths = torch.tensor([len(text) for text in texts])
        return ids, torch.arange(1, ids.shape[1])[None] < lengths[:, None]
