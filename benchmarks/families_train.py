"""Which model families train right: what the trainer computes of a batch, against each sequence alone.

    python -m benchmarks.families_train [--only llama qwen3_moe ...] [--json benchmarks/results/families_train.json]

With `--only`, the other rows of the file stay, and new ones name their commit.

Every causal language model that transformers knows is made tiny, with random weights, as in `benchmarks.families`, here
with every rate of dropout and of router noise at 0.1, and with layers of each kind where a family mixes kinds. The
trainer loads it on a CPU in fp32 and lays rows of different lengths out as its stages do. The truth is transformers'
own forward pass over each row alone, unpadded, on a model that nothing of ours has touched. Compared are

    rows, packed        log-probabilities of completions, in train mode (`train.update.logprobs`), nats
    sft, grpo, dpo      the gradient of a loss against the sum of one-by-one gradients; share of its norm
    recomputed          the gradient of sft under gradient checkpointing
    adapted             log-probabilities under low-rank adapters, against the same adapters merged into plain weights
    saved               log-probabilities of the folder that the trainer writes, read by transformers

The grpo and dpo batches have rows of one prompt, whose beginning the trainer computes once where it can. What the
trainer refuses is listed with its message. Wrong is a difference above 1e-3, or an error that is no refusal. The last
lines that are printed are the table of benchmarks/README.md.
Left out: half precision, split weights, and what `benchmarks.families` leaves out. Cost: 15 minutes of one core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.families import families, sweep, tiny
from train.base.models import load_model, load_tokenizer, save_model
from train.base.optimiser import Optimiser
from train.base.weights import LoraLinear, add_lora, merged_state
from train.examples.examples import Example
from train.examples.imitation import imitation_batch
from train.examples.pairs import Preferred
from train.losses.ppo import ppo
from train.preferences.dpo import dpo
from train.stages.preference import PairUpdater, Reference
from train.update.logprobs import check_packing, token_logprobs
from train.update.terms import RewardBatch
from train.update.update import Objective, Updater
from ttc.errors import ConfigError

CLOSE = 1e-3
PROMPTS, ANSWERS = (60, 5), (40, 3, 17)
PACKED, BETA, PAD = 192, 0.1, 2
QUIET = {"diffllama"}
"""Families whose configuration takes no dropout."""

Gradient = dict[str, torch.Tensor]


def examples(vocab: int) -> list[Example]:
    """Six rows: three answers to each of two prompts, of different lengths."""
    generator = torch.Generator().manual_seed(1)

    def drawn(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocab, (length,), generator=generator).tolist())

    return [Example(str(at), prompt, drawn(length)) for at in PROMPTS for prompt in [drawn(at)] for length in ANSWERS]


def alone(model: Any, example: Example) -> torch.Tensor:
    """Log-probabilities of a completion by the model's own forward pass over this row: (tokens,), with the gradient."""
    ids = torch.tensor([[*example.prompt_ids, *example.token_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(example.prompt_ids) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(1, ids[0, len(example.prompt_ids) :, None])[:, 0]


class Kept(Optimiser):
    """Keeps the gradient instead of stepping."""

    def __init__(self, model: Any) -> None:
        self.model, self.taken, self.rate, self.gradient = model, 0, 0.0, Gradient()

    def step(self) -> float:
        """Keep and clear."""
        self.gradient = gradient(self.model)
        return 0.0


def gradient(model: Any) -> Gradient:
    """The gradient of every weight by name, cleared from the model."""
    kept = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad(set_to_none=True)
    return kept


def apart(ours: Gradient, truth: Gradient) -> float:
    """The norm of the difference, as a share of the norm of the truth."""
    names = ours.keys() | truth.keys()
    zero = torch.zeros(())
    difference = sum(float((ours.get(name, zero) - truth.get(name, zero)).square().sum()) for name in names)
    return float((difference / sum(float(one.square().sum()) for one in truth.values())) ** 0.5)


def batched(model: Any, rows: Sequence[Example], packed: int = 0) -> list[torch.Tensor]:
    """Log-probabilities of each completion as an update computes them."""
    batch = imitation_batch(rows, PAD, "token", 1)
    model.train()
    scored = token_logprobs(model, batch.ids, batch.mask, packed=packed).logprobs
    return [scored[at, mask].detach() for at, mask in enumerate(batch.mask)]


def far(ours: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """The largest difference of a token, nats."""
    return max(float((one - other).abs().max()) for one, other in zip(ours, truth, strict=True))


REWARDS = (1.0, 0.0, 0.5, 0.0, 1.0, 0.0)


def plain_reward(outcome: RewardBatch) -> torch.Tensor:
    """The reward itself as the advantage."""
    return outcome.rewards[:, None] * outcome.mask


def sft(model: Any, rows: Sequence[Example], packed: int = 0) -> Gradient:
    """The trainer's gradient of the mean cross-entropy of a token."""
    kept = Kept(model)
    updater = Updater(model, kept, Objective(ppo(), plain_reward), packed=packed, micro_tokens=256)
    updater.step(imitation_batch(rows, PAD, "token", 1))
    return kept.gradient


def grpo(model: Any, rows: Sequence[Example]) -> Gradient:
    """The trainer's gradient of a policy-gradient loss, a mean over tokens."""
    kept = Kept(model)
    batch = imitation_batch(rows, PAD, "token", 1)
    batch = replace(batch, ce=torch.zeros(batch.mask.shape))
    outcome = RewardBatch(torch.tensor(REWARDS), torch.tensor([0, 0, 0, 1, 1, 1]), batch.mask)
    Updater(model, kept, Objective(ppo(), plain_reward)).learn(batch, outcome)
    return kept.gradient


def preferred(rows: Sequence[Example]) -> list[Preferred]:
    """A pair of each prompt."""
    return [Preferred(str(at), rows[at], rows[at + 1]) for at in (0, 3)]


def dpo_pairs(model: Any, rows: Sequence[Example]) -> Gradient:
    """The trainer's gradient of DPO, with a reference of 0."""
    kept = Kept(model)
    zero = torch.zeros(2)
    PairUpdater(model, kept, preferred(rows), Reference(zero, zero), PAD, dpo(beta=BETA)).step([0, 1])
    return kept.gradient


def truths(model: Any, rows: Sequence[Example]) -> dict[str, Gradient]:
    """The same gradients from each row alone."""
    count = sum(len(row.token_ids) for row in rows)
    gradients: dict[str, Gradient] = {}
    for row in rows:
        (-alone(model, row).sum() / count).backward()
    gradients["sft"] = gradient(model)
    for row, reward in zip(rows, REWARDS, strict=True):
        (-reward * alone(model, row).sum() / count).backward()
    gradients["grpo"] = gradient(model)
    for pair in preferred(rows):
        margin = alone(model, pair.chosen).sum() - alone(model, pair.rejected).sum()
        (-torch.nn.functional.logsigmoid(BETA * margin) / 2).backward()
    gradients["dpo"] = gradient(model)
    return gradients


def measured(check: Callable[[], float]) -> float | str:
    """The number; a refusal, or whatever the family's code raises, as text."""
    try:
        return check()
    except ConfigError as exc:
        return f"refused: {exc}"
    except Exception as exc:
        return f"error: {type(exc).__name__}: {exc}"[:300]


def row(family: str, scratch: Path) -> dict[str, Any]:
    """One family: each comparison as a number, or why there is none."""
    from transformers import AutoModelForCausalLM

    folder = scratch / family
    try:
        tiny(family, folder)
        if family not in QUIET:
            noisy(folder / "config.json")
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        rows = examples(int(plain.config.get_text_config().vocab_size))
        truth = [alone(plain, row).detach() for row in rows]
    except Exception as exc:  # whatever a family asks of its sizes: it is reported as not made
        return {"family": family, "not_made": f"{type(exc).__name__}: {exc}"[:300]}
    try:
        model = load_model(folder, "cpu")
    except ConfigError as exc:
        return {"family": family, "refused": str(exc).replace(f"{folder}: ", "")[:300]}
    gradients = truths(plain, rows)

    def packed() -> float:
        check_packing(model)
        return max(far(batched(model, rows, PACKED), truth), apart(sft(model, rows, PACKED), gradients["sft"]))

    def recomputed() -> float:
        return apart(sft(load_model(folder, "cpu", checkpointing=True), rows), gradients["sft"])

    def reread(name: str) -> list[torch.Tensor]:
        other = AutoModelForCausalLM.from_pretrained(scratch / name, dtype=torch.float32).eval()
        return [alone(other, row).detach() for row in rows]

    def saved() -> float:
        save_model(model, load_tokenizer(folder), scratch / "saved")
        return far(reread("saved"), truth)

    def adapted() -> float:
        other = load_model(folder, "cpu")
        add_lora(other, 2, 4.0, 0)
        for layer in other.modules():
            if isinstance(layer, LoraLinear):
                torch.nn.init.normal_(layer.up, std=0.05)
        ours = batched(other, rows)
        if far(ours, truth) < CLOSE:
            raise ValueError("adapters change nothing")
        save_model(other, load_tokenizer(folder), scratch / "merged")
        plain.load_state_dict(merged_state(other))
        return max(far(ours, reread("merged")), far(ours, [alone(plain, row).detach() for row in rows]))

    checks: dict[str, Callable[[], float]] = {
        "rows": lambda: far(batched(model, rows), truth),
        "packed": packed,
        "sft": lambda: apart(sft(model, rows), gradients["sft"]),
        "grpo": lambda: apart(grpo(model, rows), gradients["grpo"]),
        "dpo": lambda: apart(dpo_pairs(model, rows), gradients["dpo"]),
        "recomputed": recomputed,
        "saved": saved,
        "adapted": adapted,
    }
    return {"family": family, **{name: measured(check) for name, check in checks.items()}}


def noisy(config: Path) -> None:
    """Set every rate of dropout and of router noise in a configuration to 0.1."""

    def noise(fields: Mapping[str, Any]) -> dict[str, Any]:
        rates = {n: 0.1 for n, v in fields.items() if ("drop" in n or "jitter" in n) and isinstance(v, float)}
        inside = {name: noise(value) for name, value in fields.items() if isinstance(value, dict)}
        return {**fields, **inside, **rates}

    config.write_text(json.dumps(noise(json.loads(config.read_text("utf-8")))), encoding="utf-8")


def wrong(report: Mapping[str, Any]) -> list[str]:
    """The comparisons of a family that differ, or end in an error."""
    return [
        name
        for name, value in report.items()
        if (isinstance(value, float) and not value < CLOSE) or (isinstance(value, str) and value.startswith("error"))
    ]


_REASONS = ("head", "later tokens", "rates of noise", "in training", "decoder of text")
"""What the trainer's refusals of a whole family say."""


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The families by what came of them, as rows of a table."""
    run = [one for one in rows if not {"not_made", "refused"} & one.keys()]
    kinds: dict[str, list[str]] = {"compared": [one["family"] for one in run]}
    kinds["wrong"] = [f"{one['family']} ({', '.join(wrong(one))})" for one in run if wrong(one)]
    for name in ("packed", "recomputed", "adapted"):
        kinds[f"{name}: refused"] = [one["family"] for one in run if str(one[name]).startswith("refused")]
    for reason in _REASONS:
        kinds[f"refused: {reason}"] = [one["family"] for one in rows if reason in one.get("refused", "")]
    kinds["not made"] = [one["family"] for one in rows if "not_made" in one]
    for kind, names in kinds.items():
        yield f"| {kind} ({len(names)}) | {', '.join(names)} |"


if __name__ == "__main__":
    sweep(__doc__, families(seeing=False), row, table)
