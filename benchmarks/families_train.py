"""Which model families train right: what the trainer computes of a batch, against each sequence alone.

    python -m benchmarks.families_train [--only llama qwen3_moe ...] [--json benchmarks/results/families_train.json]

With `--only`, the other rows of the file stay, and new ones name their commit.

Every causal language model that transformers knows, and every other model with a head that classifies, is made tiny,
with random weights, as in `benchmarks.families`, here with every rate of dropout and of router noise at 0.1, and with
layers of each kind where a family mixes kinds. The trainer loads it on a CPU in fp32 and lays rows of different lengths
out as its stages do. The truth is transformers' own forward pass over each row alone, unpadded, on a model that nothing
of ours has touched. Compared are

    rows, packed        log-probabilities of completions, in train mode (`train.update.logprobs`), nats
    sft, grpo, dpo      the gradient of a loss against the sum of one-by-one gradients; share of its norm
    recomputed          the gradient of sft under gradient checkpointing
    adapted             log-probabilities under low-rank adapters, against the same adapters merged into plain weights
    saved               log-probabilities of the folder that the trainer writes, read by transformers
    autocast, half      log-probabilities and the gradient of sft in bf16 over fp32 weights (`autocast`), and
                        log-probabilities with weights in bf16 under adapters of 0: their mean difference from fp32, as
                        a share of what transformers' own pass under autocast differs by
    reward, steps       a reward model, and one of steps, on the family's body as the stages make them: the scores of
                        rows together in train mode, and the gradient of their loss; then the written folder, read
                        again as grpo does
    judge               a classifier that transformers wrote, read as grpo does (`reward_model = FOLDER`)
    orm, prm            those folders, read by the scorers of these names: probabilities
    orm_half            the same in bf16: the difference from fp32, as a share of what transformers' own differs by

The grpo and dpo batches have rows of one prompt, whose beginning the trainer computes once where it can. What the
trainer refuses is listed with its message. Wrong is a difference above 1e-3, a share above 2, or an error that is no
refusal. The last lines that are printed are the table of benchmarks/README.md.
Left out: split weights, and what `benchmarks.families` leaves out. Cost: 20 minutes of one core.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import torch

from benchmarks.families import TOKENIZER, families, sweep, tiny
from train.base.models import load_model, load_tokenizer, save_model
from train.base.optimiser import Optimiser
from train.base.weights import LoraLinear, add_lora, merged_state
from train.examples.examples import Example
from train.examples.imitation import imitation_batch
from train.examples.pairs import Preferred
from train.losses.ppo import ppo
from train.preferences.dpo import dpo
from train.reward_models.reward_models import (
    CLASSIFIER,
    STEP_LABELS,
    RewardEnsemble,
    check_kind_of_head,
    load_reward_model,
    new_reward_model,
    rewards_of,
    save_scorer,
)
from train.reward_models.step_model import StepRow, new_step_model
from train.stages.preference import PairUpdater, Reference
from train.update.logprobs import check_packing, token_logprobs
from train.update.terms import RewardBatch
from train.update.update import Objective, Updater
from ttc.core import Message, Scorer
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.orm import orm
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore

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


def judging() -> frozenset[str]:
    """The families that transformers lists as classifiers of text."""
    from transformers.models.auto import modeling_auto as auto

    return frozenset(auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES) - {"t5gemma2"}


def row(family: str, scratch: Path) -> dict[str, Any]:
    """One family: each comparison as a number, or why there is none."""
    folder = scratch / family
    writes = family in families(seeing=False)
    try:
        plain = noisy(family, folder, "" if writes else "SequenceClassification")
        rows = examples(int(plain.config.get_text_config().vocab_size))
        truth = [alone(plain, row).detach() for row in rows] if writes else [plain(torch.tensor([[3, 4]])).logits]
    except Exception as exc:  # whatever a family asks of its sizes: it is reported as not made
        return {"family": family, "not_made": f"{type(exc).__name__}: {exc}"[:300]}
    report: dict[str, Any] = {"family": family}
    checks: dict[str, Callable[[], float]] = {}
    if writes:
        try:
            model = load_model(folder, "cpu")
            checks = policy_checks(folder, model, plain, rows, truth) | half_checks(folder, rows)
        except ConfigError as exc:
            report["refused"] = str(exc).replace(f"{folder}: ", "")[:300]
    checks |= judge_checks(family, folder, rows)
    return report | {name: measured(check) for name, check in checks.items()}


def policy_checks(
    folder: Path, model: Any, plain: Any, rows: Sequence[Example], truth: Sequence[torch.Tensor]
) -> dict[str, Callable[[], float]]:
    """The comparisons of a policy in fp32."""
    gradients = truths(plain, rows)

    def packed() -> float:
        check_packing(model)
        return max(far(batched(model, rows, PACKED), truth), apart(sft(model, rows, PACKED), gradients["sft"]))

    def recomputed() -> float:
        return apart(sft(load_model(folder, "cpu", checkpointing=True), rows), gradients["sft"])

    def reread(name: str) -> list[torch.Tensor]:
        other = read("CausalLM", folder / name)
        return [alone(other, row).detach() for row in rows]

    def saved() -> float:
        save_model(model, load_tokenizer(folder), folder / "saved")
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
        save_model(other, load_tokenizer(folder), folder / "merged")
        plain.load_state_dict(merged_state(other))
        return max(far(ours, reread("merged")), far(ours, [alone(plain, row).detach() for row in rows]))

    return {
        "rows": lambda: far(batched(model, rows), truth),
        "packed": packed,
        "sft": lambda: apart(sft(model, rows), gradients["sft"]),
        "grpo": lambda: apart(grpo(model, rows), gradients["grpo"]),
        "dpo": lambda: apart(dpo_pairs(model, rows), gradients["dpo"]),
        "recomputed": recomputed,
        "saved": saved,
        "adapted": adapted,
    }


def read(head: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A model by transformers alone."""
    import transformers

    return getattr(transformers, f"AutoModelFor{head}").from_pretrained(folder, dtype=dtype).eval()


def share(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """The mean distance of `ours` from the truth, in that of `theirs`."""
    away = [torch.cat([(one - true).abs() for one, true in zip(some, truth, strict=True)]) for some in (ours, theirs)]
    return float(away[0].mean() / away[1].mean())


def half_checks(folder: Path, rows: Sequence[Example]) -> dict[str, Callable[[], float]]:
    """The comparisons of a policy in bf16; the truth is fp32 on weights that bf16 can hold."""
    rounded = folder / "rounded"
    read("CausalLM", folder, torch.bfloat16).save_pretrained(rounded)
    for name in TOKENIZER:
        copy(folder / name, rounded / name)

    def narrow(model: Any, dtype: torch.dtype) -> float:
        truth, plain = (
            [alone(read("CausalLM", rounded), row).detach() for row in rows],
            read("CausalLM", rounded, dtype),
        )
        with torch.autocast("cpu", torch.bfloat16):
            return share(batched(model, rows), [alone(plain, row).detach() for row in rows], truth)

    def autocast() -> float:
        model = load_model(rounded, "cpu")
        kept = Kept(model)
        Updater(model, kept, Objective(ppo(), plain_reward), autocast=True).step(imitation_batch(rows, PAD, "token", 1))
        exact = truths(read("CausalLM", rounded), rows)["sft"]
        with torch.autocast("cpu", torch.bfloat16):
            other = truths(read("CausalLM", rounded), rows)["sft"]
        return max(narrow(model, torch.float32), apart(kept.gradient, exact) / apart(other, exact))

    def half() -> float:
        model = load_model(rounded, "cpu", dtype=torch.bfloat16)
        add_lora(model, 2, 4.0, 0)
        return narrow(model, torch.bfloat16)

    return {"autocast": autocast, "half": half}


TYPES = (torch.float32, torch.bfloat16)
CHAT = (Message("user", "12+30*2"), Message("assistant", "30*2=60\n12+60=72\n72"))


def judge_checks(family: str, folder: Path, rows: Sequence[Example]) -> dict[str, Callable[[], float]]:
    """The comparisons of models that judge: made on the family's body, and made by transformers."""
    ids = [(*row.prompt_ids, *row.token_ids) for row in rows]
    steps = [(len(row.prompt_ids), len(row.prompt_ids) + len(row.token_ids) - 1) for row in rows]
    labels = (1.0, 0.0)

    def outcomes(model: Any) -> torch.Tensor:
        return torch.stack([model(input_ids=torch.tensor([one])).logits[0, 0].float() for one in ids])

    def step_odds(model: Any) -> torch.Tensor:
        two = [
            model(input_ids=torch.tensor([one])).logits[0, list(at)].float() for one, at in zip(ids, steps, strict=True)
        ]
        return torch.stack([logits[:, 1] - logits[:, 0] for logits in two])

    def bradley_terry(scores: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.logsigmoid(scores[0::3] - scores[1::3]).mean()

    def reward() -> float:
        check_kind_of_head(CLASSIFIER, folder)
        model = new_reward_model(folder, 0, "cpu").train()
        ours = rewards_of(model, rows, PAD)
        save_scorer(model, load_tokenizer(folder), folder / "outcomes", "SEQ_CLS")
        plain = read("SequenceClassification", folder / "outcomes")
        truth = outcomes(plain)
        bradley_terry(ours).backward()
        bradley_terry(truth).backward()
        again = RewardEnsemble([load_reward_model(folder / "outcomes", "cpu")], PAD).score(rows)
        values = max(far([ours.detach()], [truth.detach()]), far([again], [truth.detach()]))
        return max(values, apart(gradient(model), gradient(plain)))

    def steps_right() -> float:
        check_kind_of_head(STEP_LABELS, folder)
        model = new_step_model(folder, "label", "\n", None, 0, "cpu")
        labelled = [StepRow(str(n), one, at, labels) for n, (one, at) in enumerate(zip(ids, steps, strict=True))]
        model.network.train()
        model.loss(labelled, PAD).backward()
        ours = gradient(model.network)
        model.network.config.ttc_prm = dict(model.reading)
        save_scorer(model.network, load_tokenizer(folder), folder / "steps", "TOKEN_CLS")
        plain = read("TokenClassification", folder / "steps")
        odds = step_odds(plain)
        (-torch.nn.functional.logsigmoid(odds * torch.tensor([1.0, -1.0])).mean()).backward()
        again = torch.tensor(new_step_model(folder / "steps", "label", "\n", None, 1, "cpu").scores(labelled, PAD))
        return max(far([again], [odds.detach().sigmoid()]), apart(ours, gradient(plain)))

    def judge() -> float:
        plain = noisy(family, folder / "judge", "SequenceClassification", num_labels=1)
        model = load_reward_model(folder / "judge", "cpu")
        return far([RewardEnsemble([model], PAD).score(rows)], [outcomes(plain).detach()])

    def orm_away(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scorer = orm(str(folder / "judge"), EmbeddedCore(dtype=str(dtype)[6:], device="cpu"))  # type: ignore[arg-type]
        text, chat = Text(folder / "judge"), [{"role": one.role, "content": one.content} for one in CHAT]
        whole = torch.tensor([text.encode(text.tokenizer.apply_chat_template(chat, tokenize=False))])
        ours = scored(scorer, text, CHAT[1].content)[-1:]
        values = [read("SequenceClassification", folder / "judge", kind)(whole).logits[0, :1] for kind in TYPES]
        exact, theirs = (value.detach().float().sigmoid() for value in values)
        return ours, theirs, exact

    def orm_fp32() -> float:
        ours, _, exact = orm_away(torch.float32)
        return far([ours], [exact])

    def orm_half() -> float:
        ours, theirs, exact = orm_away(torch.bfloat16)
        return share([ours], [theirs.clamp(exact - 1, exact - ROUNDED)], [exact])

    def prm_fp32() -> float:
        scorer, text = prm(str(folder / "steps"), EmbeddedCore(dtype="float32", device="cpu")), Text(folder / "steps")
        ours, plain = scored(scorer, text, CHAT[1].content), read("TokenClassification", folder / "steps")
        answer = text.encode(CHAT[1].content)
        ends = [at for at, one in enumerate(answer) if "\n" in text.decode([one]) or at == len(answer) - 1]
        logits = plain(torch.tensor([[*(text.render(CHAT[:1], None).token_ids or ()), *answer]])).logits[0].detach()
        return far([ours], [logits[-len(answer) :].softmax(-1)[ends, 1]])

    made: dict[str, Callable[[], float]] = {"reward": reward, "steps": steps_right, "prm": prm_fp32}
    return made | ({"judge": judge, "orm": orm_fp32, "orm_half": orm_half} if family in judging() else {})


ROUNDED = 2.0**-9
"""The rounding of a probability in bf16."""


def scored(scorer: Scorer, text: Text, answer: str) -> torch.Tensor:
    """What a scorer says of each step of an answer to CHAT's question."""
    path = text.render(CHAT[:1], None).extend(text.encode(answer), answer)
    (score,) = asyncio.run(scorer.score([path], lambda usage: None))
    return torch.tensor(score.steps)


def noisy(family: str, folder: Path, head: str = "", **settings: Any) -> Any:
    """A tiny model whose rates of dropout and of router noise are 0.1, as transformers reads it."""
    tiny(family, folder, head, **settings)
    config = folder / "config.json"
    if family not in QUIET:
        config.write_text(json.dumps(_noise(json.loads(config.read_text("utf-8")))), encoding="utf-8")
    return read(head or "CausalLM", folder)


def _noise(fields: Mapping[str, Any]) -> dict[str, Any]:
    rates = {n: 0.1 for n, v in fields.items() if ("drop" in n or "jitter" in n) and isinstance(v, float)}
    return {**fields, **{n: _noise(value) for n, value in fields.items() if isinstance(value, dict)}, **rates}


SHARES = {"autocast", "half", "orm_half"}
"""Comparisons of roundings, which are right up to 2."""


def wrong(report: Mapping[str, Any]) -> list[str]:
    """The comparisons of a family that differ, or end in an error."""
    return [
        name
        for name, value in report.items()
        if (isinstance(value, float) and not value < (2 if name in SHARES else CLOSE))
        or (isinstance(value, str) and value.startswith("error"))
    ]


_REASONS = ("head", "later tokens", "rates of noise", "in training", "decoder of text")
"""What the trainer's refusals of a whole family say."""


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The families by what came of them, as rows of a table."""
    run = [one for one in rows if "rows" in one]
    kinds: dict[str, list[str]] = {"compared": [one["family"] for one in run]}
    kinds["wrong"] = [f"{one['family']} ({', '.join(wrong(one))})" for one in rows if wrong(one)]
    for name in ("packed", "recomputed", "adapted", "half"):
        kinds[f"{name}: refused"] = [one["family"] for one in run if str(one.get(name, "")).startswith("refused")]
    for reason in _REASONS:
        kinds[f"refused: {reason}"] = [one["family"] for one in rows if reason in one.get("refused", "")]
    for name in ("reward", "steps", "judge", "orm", "prm"):
        kinds[name] = [one["family"] for one in rows if isinstance(one.get(name), float)]
    kinds["judge: refused"] = [one["family"] for one in rows if str(one.get("judge", "")).startswith("refused")]
    kinds["not made"] = [one["family"] for one in rows if "not_made" in one]
    for kind, names in kinds.items():
        yield f"| {kind} ({len(names)}) | {', '.join(names)} |"


if __name__ == "__main__":
    sweep(__doc__, families(seeing=False) | judging(), row, table)
