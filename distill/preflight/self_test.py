"""A student that is its own teacher has no distance from itself.

This tests the whole path at once: rendering, sampling, reading, positions, masks, dropout. Two answers of the student
are read by the student as a teacher reads them, and compared with it as training has it; more than 1e-4 nats a token
means that teacher and student would be treated differently. Cost: two short answers, and the student loaded three
times.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import torch

from distill.preflight import Finding, fine, reads_tokens, refused, skipped
from distill.spec.method import DistillJob
from distill.supervision.divergence import reverse
from distill.supervision.panel import SELF_TEST, TeacherPanel
from distill.supervision.reader import LocalReader
from train.base.models import load_model
from train.base.rollout import Collector, Rollout, group_draws
from train.measure.measure import open_engine
from train.update.batch import rollout_batch
from train.update.logprobs import token_logprobs
from ttc.core import Sampling
from ttc.engines.shared.text import Text

_ANSWERS, _TOKENS = 2, 32


def self_test(job: DistillJob) -> Finding:
    """Let the student supervise itself."""
    if not reads_tokens(job):
        return skipped()
    away = asyncio.run(_away(job))
    text = f"the student is {away:.2g} nats per token from itself"
    if not abs(away) <= SELF_TEST:
        return refused(
            f"{text}, where {SELF_TEST:g} is the most",
            "engine and trainer compute different models, or its code has a dropout that config.json does not name: "
            "take a student of another family",
        )
    return fine(text)


async def _away(job: DistillJob) -> float:
    rollouts = await _drawn(job)
    messages = {item.problem.id: item.problem.messages for item in job.domains[0].items[:_ANSWERS]}
    panel = TeacherPanel(
        {"": LocalReader("itself", job.student, job.spec.device)}, messages, job.spec.thinking.template
    )
    model = load_model(job.student, job.spec.device).train()
    panel.check(Text(job.student))
    batch = rollout_batch(rollouts, 0).to(job.spec.device)
    verdicts = await panel.verdicts(rollouts, reverse)
    every = torch.arange(len(batch), device=batch.ids.device)
    with torch.no_grad():
        scored = token_logprobs(model, batch.ids, batch.mask, verdicts.supervise(every, batch.mask))
    engine_gap = (scored.logprobs - torch.nan_to_num(batch.engine))[batch.mask].abs().mean()
    compared = scored.compared
    own = 0.0 if compared is None else float(compared[batch.mask].mean())
    return max(own, float(engine_gap), key=abs)


async def _drawn(job: DistillJob) -> list[Rollout]:
    engine = open_engine(job.student, job.setting)
    collector = Collector(
        engine,
        strategy=partial(group_draws, n=1),
        sampling=Sampling(temperature=1.0, max_tokens=min(_TOKENS, job.sampling(job.domains[0]).max_tokens)),
        thinking=job.spec.thinking,
        seed=job.spec.seed,
    )
    try:
        rollouts = await collector.collect(job.domains[0].items[:_ANSWERS], 0)
    finally:
        await engine.close()
    return [replace(rollout, reward=0.0) for rollout in rollouts]
