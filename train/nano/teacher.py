"""Train a causal model of the family from scratch: loss, step, log, checkpoint, resume.

Examples are a pure function of the step, so an interrupted run goes on as if it had not been. The student is small and
never sees a thinking trace: it knows the format and answers at once, so that what distillation adds can be seen. Cost:
`ttc/nano/README.md` gives CPU minutes. Left out: several devices, gradient accumulation.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.checkpoint import Checkpoints
from train.nano import examples
from train.nano.examples import ExampleMixture
from train.nano.tokenizer import build as build_tokenizer
from ttc.engines.shared.compute import pick_dtype

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunLength:
    """Length and pace of a run; a checkpoint every `save_every` steps."""

    steps: int
    lr: float
    save_every: int = 500
    log_every: int = 100


class MuonAdamW:
    """Muon for the matrices inside and AdamW for the rest, under one schedule: linear warm-up, flat, linear decay to 0.

    Muon: Jordan et al. 2024; its rate is matched to AdamW's as in "Muon is scalable" (arXiv 2502.16982). Cost: a few
    percent of a step.
    """

    def __init__(self, model: torch.nn.Module, lr: float, steps: int, decay: float = 2 / 7) -> None:
        """Split the parameters; `decay` is the share of the run over which the rate falls to 0."""
        inside = [p for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
        inside_ids = {id(p) for p in inside}
        rest = [p for p in model.parameters() if id(p) not in inside_ids]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(inside, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._lr, self._steps, self._decay = lr, steps, decay
        self._model = model

    def step(self, number: int) -> None:
        """Apply the gradients at step `number` (from 0) and clear them."""
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._lr * self._scale(number)
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint keeps."""
        return [part.state_dict() for part in self._parts]

    def load(self, state: list[Mapping[str, Any]]) -> None:
        """Restore what `state` returned."""
        for part, saved in zip(self._parts, state, strict=True):
            part.load_state_dict(dict(saved))

    def _scale(self, number: int) -> float:
        warm = min(100, max(1, self._steps // 4))
        rising = (number + 1) / warm
        falling = (self._steps - number) / max(1.0, self._steps * self._decay)
        return min(1.0, rising, falling)


def fit(network: Any, loss_at: Callable[[int], torch.Tensor], run: RunLength, folder: Path) -> None:
    """Train `network` in place; resumes from the newest whole checkpoint in `folder`."""
    optimiser = MuonAdamW(network, run.lr, run.steps)
    checkpoints = Checkpoints(folder, _log.info)
    start, saved = 0, checkpoints.load(network)
    if saved is not None:
        optimiser.load(saved[0]["parts"])
        start = int(saved[1]["step"])
        _log.info("resumed at step %d", start)
    began = time.monotonic()
    network.train()
    for step in range(start, run.steps):
        loss = loss_at(step)
        loss.backward()
        optimiser.step(step)
        if step % run.log_every == 0:
            _log.info("step %d loss %.4f %.0f s", step, loss.item(), time.monotonic() - began)
        if (step + 1) % run.save_every == 0 or step + 1 == run.steps:
            checkpoints.save(step + 1, network, {"parts": optimiser.state()}, {})
    network.eval()


_POOL = 16  # batches drawn together and sorted by length


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training run: `rows` examples a step, drawn from `mixture` by `seed`."""

    mixture: examples.ExampleMixture
    seed: int
    run: RunLength
    rows: int


def train(network: Any, recipe: TrainingRun, checkpoints: Path, device: str) -> None:
    """Train `network` (fp32, on `device`) in place by the recipe, resuming from the folder `checkpoints`."""
    tokenizer = build_tokenizer()
    batches: dict[int, list[list[examples.MaskedIds]]] = {}

    def loss_at(step: int) -> torch.Tensor:
        number = step // _POOL
        if number not in batches:
            batches.clear()
            progress = number * _POOL / recipe.run.steps
            batches[number] = examples.pool(
                tokenizer, recipe.mixture, recipe.seed, number, _POOL, recipe.rows, progress
            )
        return causal_loss(network, batches[number][step % _POOL], tokenizer.pad_token_id, device)

    fit(network, loss_at, recipe.run, checkpoints)


def causal_loss(network: Any, batch: list[examples.MaskedIds], pad: int, device: str) -> torch.Tensor:
    """Return the mean next-token loss over the labelled tokens of a batch."""
    ids, labels = (tensor.to(device) for tensor in examples.collate(batch, pad))
    place = torch.device(device)
    casts = pick_dtype("auto", place) == torch.bfloat16  # where it is multiplied: 1.5 times fp32 on a thread, else 1/50
    with torch.autocast(place.type, torch.bfloat16, enabled=casts):
        logits = network(input_ids=ids, use_cache=False).logits[:, :-1]
        targets = labels[:, 1:]
        mask = targets != examples.IGNORE
        return torch.nn.functional.cross_entropy(logits[mask].float(), targets[mask])


STUDENT_MIXTURE = ExampleMixture(
    no_think=1.0, handover=0.0, no_think_levels=(0.35, 0.25, 0.2, 0.0, 0.15, 0.05), empty=0.5
)
