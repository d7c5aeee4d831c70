"""A small base model for the cipher walk and the pieces of a run on it, made in seconds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evals.tasks.cipher import Cipher
from evals.tasks.cipher import cipher as task
from tests.loops import finished
from tests.train.stages import write_rows
from train.advantages.group import group
from train.base.checkpoint import Checkpoints
from train.base.health import RULES, Health
from train.base.models import Shape, load_model, load_tokenizer, new_model, save_model
from train.base.optimiser import Optimiser, Schedule
from train.base.rollout import Collector, Rollout, RolloutFile, group_draws
from train.corpora.cipher import cipher as corpus
from train.losses.ppo import ppo
from train.measure.measure import HeldOut
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.rl.loop import Parts
from train.rollouts.frontier import Frontier
from train.rollouts.rewards import Rewarder
from train.rollouts.sync import Syncer
from train.update.batch import pad
from train.update.logprobs import token_logprobs
from train.update.update import Objective, Updater
from ttc.core import Sampling, Verdict
from ttc.engines.embedded.engine import embedded
from ttc.records import LineFile
from ttc.verifiers.exact import exact

SYMBOLS, STEPS = 12, 4
SAMPLING = Sampling(temperature=1.0, max_tokens=14)
TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"
WALKS = f"{TASK},split=train"
"""The 37 walks that training may see. What was learnt shows on them; on the 11 held out, rounding decides as much."""


def make_base(folder: Path, seed: int = 0, steps: int = 400) -> Path:
    """Pretrain the base: it walks in three answers of ten and guesses otherwise."""
    texts = corpus(symbols=SYMBOLS, max_steps=STEPS, thinking_share=0.4)
    tokenizer = texts.tokenizer()
    model = new_model(Shape(hidden=48, layers=2, heads=2, kv_heads=1, mlp=128), tokenizer, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95))
    rng = random.Random(seed)
    for step in range(steps):
        encoded = tokenizer([texts.sample(rng) for _ in range(64)])["input_ids"]
        rows = [[*ids, tokenizer.eos_token_id] for ids in encoded]
        ids = pad(rows, 0)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(1, ids.shape[1])[None] < lengths[:, None]
        loss = -token_logprobs(model, ids, mask).logprobs.sum() / mask.sum()
        loss.backward()
        for part in optimiser.param_groups:
            part["lr"] = 6e-3 * min(1.0, (steps - step) / 200)
        optimiser.step()
        optimiser.zero_grad()
    save_model(model, tokenizer, folder)
    return folder


def make_parts(base: Path, folder: Path) -> Parts:
    """All parts of a run that starts from `base` and writes to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_model(base, "cpu"), load_tokenizer(base)
    engine = embedded(str(base), dtype="float32", device="cpu", batch_invariant=True)  # else load decides bits
    problems = task(symbols=SYMBOLS, max_steps=STEPS, split="train")
    measured = task(symbols=SYMBOLS, max_steps=STEPS)
    return Parts(
        sampler=Frontier(problems.items(None, 0), seed=0),
        collector=Collector(engine, strategy=partial(group_draws, n=6), sampling=SAMPLING, thinking=None, seed=0),
        rewarder=Rewarder(exact()),
        updater=Updater(
            model,
            Optimiser(model, Schedule(6e-4, 100)),
            Objective(ppo(clip_high=0.28), group(), "constant", SAMPLING.max_tokens),
        ),
        syncer=Syncer(engine, model, limit=1e-3),
        held_out=HeldOut(measured.items(None, 0), exact(), SAMPLING, 0),
        seen=None,
        health=Health(RULES),
        checkpoints=Checkpoints(folder / "checkpoints", lambda text: None),
        best=None,
        metrics=LineFile(folder / "metrics.jsonl"),
        rollouts=RolloutFile(folder / "rollouts.jsonl"),
        pad_id=int(tokenizer.pad_token_id),
        log=lambda text: None,
    )


def ran(work: Awaitable[Any], parts: Parts) -> Any:
    """The result of `work` on these parts, whose files and engine are closed after it."""
    try:
        return finished(work, parts.collector.engine)
    finally:
        parts.metrics.close()
        parts.rollouts.close()


def rolled_out(**fields: Any) -> Rollout:
    """A finished rollout of one token; `fields` are what a test is about."""
    plain = {
        "step": 0, "group": 0, "problem_id": "p", "difficulty": "", "target": "4", "path": (0,), "prompt_ids": (5,),
        "token_ids": (6,), "text": "", "thinking": "", "final": None, "finish_reason": "stop", "version": 0, "seed": 1,
    }  # fmt: skip
    length = len(fields.get("token_ids", plain["token_ids"]))
    return Rollout(**{**plain, "sampled": (True,) * length, "logprobs": (-1.0,) * length, **fields})


class Souring:
    """A verifier that finds so many answers right, and none after them."""

    def __init__(self, times: int) -> None:
        self._left = times

    async def verify(self, target: object, submission: object) -> Verdict:
        """Judge one."""
        self._left -= 1
        return Verdict("correct" if self._left >= 0 else "incorrect")


def model_of(value: float) -> torch.nn.Linear:
    """A model of four equal weights."""
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, value)
    return model


def write_walks(walks: Cipher, path: Path, split: str, names: tuple[str, str]) -> None:
    """The questions and answers of a split as rows with the columns of these names."""
    pairs = [(f"s{start}n{steps}=", f"s{walks.walk(start, steps)[-1]}") for start, steps in walks.pairs(split)]
    write_rows(path, (dict(zip(names, pair, strict=True)) for pair in pairs))


def gained(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """By how much the mean of a metric over the last three steps of a run exceeds that over the first three.

    Of 216 answers each, which is steady. Greedy accuracy on the 11 held-out questions is not: weights that differ by
    rounding at the start end anywhere between 0.5 and 1.
    """
    return (sum(row[name] for row in rows[-3:]) - sum(row[name] for row in rows[:3])) / 3


def secret() -> Cipher:
    """The permutation of the base."""
    return Cipher(SYMBOLS, STEPS, 0)


def two_updates(folder: Path, model: Path, extra: str = "") -> Path:
    """A run of two recorded updates by reinforcement; `extra` is put into its stage."""
    recipe = folder / "two.toml"
    recipe.write_text(
        f'[[stage]]\nkind = "grpo"\ntask = "{TASK},split=train"\nheld_out = "{TASK}"\nsteps = 2\nlr = 1e-3\n'
        f"prompts = 8\nn = 4\nheld_out_limit = 4\n{extra}"
    )
    options = RunOptions(folder / "run", 1, model, "cpu", 1, keep_checkpoints=True)
    run_recipe(read_recipe(str(recipe)), options, lambda text: None)
    return folder / "run"
