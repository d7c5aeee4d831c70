"""Train the process-reward model: at the end of a step, is the path so far still right?

What: the teacher's body with two classes per token (`Qwen3ForTokenClassification`; softmax, class 1 is
"on track"), on the teacher's own attempts and on procedural traces with injected errors, both labelled
by the exact step checker. Results are labelled digit by digit too, at a smaller weight.
Paper: "Let's verify step by step" (arXiv 2305.20050), with an exact checker in the place of people.
Cost: `ttc/nano/README.md` gives CPU minutes. Left out: soft labels from roll-outs, which are not needed here.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evals.arithmetic import STEP_DELIMITER, Expression, sample_expression
from train.nano import loop, model, rollouts
from train.nano.labels import NONE, Labels, label, label_answer
from train.nano.rollouts import Rollout
from train.nano.sample import Draw, Sampler
from train.nano.tokenizer import build as build_tokenizer
from train.nano.traces import Noise, answer, prompt, thinking, wrong_value

_POOL = 16
_NOISE = Noise(slip=0.06, lapse=0.5, recheck=0.1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Data and training of the reward model.

    `attempts` of the teacher at `temperatures`; `procedural` is the share of injected-error traces in
    a batch; `digit_weight` is what the label of a digit counts against that of a step.
    """

    seed: int
    run: loop.Run
    rows: int
    attempts: int
    levels: tuple[float, ...] = (0.03, 0.07, 0.35, 0.0, 0.38, 0.13, 0.04)
    temperatures: tuple[float, ...] = (0.6, 0.8, 1.0)
    procedural: float = 0.35
    digit_weight: float = 0.3


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids, their labels, and which labels are read as scores."""

    ids: list[int]
    values: list[int]
    ends: list[bool]


def build(shape: model.Shape, tokenizer: Any, seed: int, body: Any | None = None) -> Any:
    """Return the reward model in fp32, its body copied from a causal model when one is given."""
    from transformers import AutoModelForTokenClassification

    config = model.config(shape, tokenizer)
    config.num_labels = 2
    config.id2label = {0: "off_track", 1: "on_track"}
    config.label2id = {"off_track": 0, "on_track": 1}
    config.classifier_dropout = 0.0
    config.ttc_prm = {
        "step_delimiter": STEP_DELIMITER,
        "positive_label": 1,
        "activation": "softmax",
    }
    torch.manual_seed(seed)
    network = AutoModelForTokenClassification.from_config(config, attn_implementation="eager")
    if body is not None:
        network.model.load_state_dict(body.model.state_dict())
    return network


def collect(teacher: Sampler, recipe: Recipe) -> list[Row]:
    """Let the teacher attempt training problems in every way, and label what it wrote."""
    tokenizer = build_tokenizer()
    rows: list[Row] = []
    share = recipe.attempts // len(recipe.temperatures)
    for number, temperature in enumerate(recipe.temperatures):
        seed = recipe.seed * 100 + number
        draw = Draw(rollouts.MAX_TOKENS, temperature, seed)
        asked = rollouts.problems(seed, share, recipe.levels, "train")
        rng = random.Random(f"nano-prm:{seed}")
        first = rollouts.think(teacher, tokenizer, asked, draw)
        budgets = [rng.randrange(len(item.ids)) for item in first]
        tenth = share // 10
        found = (
            first
            + rollouts.lengthen(teacher, tokenizer, first[:tenth], draw)
            + rollouts.cut(teacher, tokenizer, first[-tenth:], budgets[-tenth:], draw)
            + rollouts.think(teacher, tokenizer, asked[:tenth], draw, thinking=False)
        )
        rows += [labelled(tokenizer, rollout) for rollout in found]
    return rows


def labelled(tokenizer: Any, rollout: Rollout) -> Row:
    """Label one attempt; the prompt carries no label."""
    if rollout.way == "no_think":
        labels = Labels([NONE] * len(rollout.ids), [False] * len(rollout.ids))
        pieces = [tokenizer.decode([token]) for token in rollout.ids]
        label_answer(rollout.problem, pieces, 0, labels.values, labels.ends)
    else:
        labels = label(tokenizer, rollout.problem, rollout.ids, rollout.way == "handover")
    silent = len(rollout.prompt)
    return Row(
        rollout.prompt + rollout.ids,
        [NONE] * silent + labels.values,
        [False] * silent + labels.ends,
    )


def procedural(tokenizer: Any, recipe: Recipe, index: int) -> Row:
    """Return one trace with injected errors; one answer in four contradicts its work."""
    rng = random.Random(f"nano-prm-trace:{recipe.seed}:{index}")
    level = rng.choices(range(1, len(recipe.levels) + 1), recipe.levels)[0]
    problem = sample_expression(rng, level, "train")
    work = "".join(piece.text for piece in thinking(rng, problem, _NOISE))
    steps = work.split(STEP_DELIMITER)
    if rng.random() < 0.5:
        steps = steps[: rng.randrange(1, len(steps))]
        work = STEP_DELIMITER.join([*steps, ""])
    value = _last_value(steps, problem)
    if rng.random() < 0.25:
        value = wrong_value(rng, value)
    text = f"{work}</think>\n\n{answer(value)}"
    start = tokenizer.encode(prompt(rng, problem) + "<think>\n", add_special_tokens=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return labelled(tokenizer, Rollout(problem, "think", start, ids))


def train(recipe: Recipe, teacher: Any, rows: list[Row], checkpoint: Path, device: str) -> Any:
    """Train from the teacher's body, resuming from `checkpoint`, and return the model in fp32."""
    tokenizer = build_tokenizer()
    network = build(model.TEACHER, tokenizer, recipe.seed, teacher).to(device)
    pools: dict[int, list[list[Row]]] = {}

    def loss_at(step: int) -> torch.Tensor:
        number = step // _POOL
        if number not in pools:
            pools.clear()
            pools[number] = _pool(tokenizer, recipe, rows, number)
        batch = pools[number][step % _POOL]
        return _loss(network, batch, recipe.digit_weight, tokenizer.pad_token_id, device)

    loop.fit(network, loss_at, recipe.run, checkpoint)
    return network


@torch.inference_mode()
def scores(network: Any, sequences: list[list[int]], rows: int = 128) -> list[list[float]]:
    """Return P(on track) after every token of each sequence."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    found: list[list[float]] = [[] for _ in sequences]
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        width = max(len(sequences[i]) for i in chosen)
        ids = torch.zeros((len(chosen), width), dtype=torch.long, device=network.device)
        for row, i in enumerate(chosen):
            ids[row, : len(sequences[i])] = torch.tensor(sequences[i])
        probabilities = network(input_ids=ids, use_cache=False).logits.float().softmax(-1)[..., 1]
        for row, i in enumerate(chosen):
            found[i] = probabilities[row, : len(sequences[i])].tolist()
    return found


def _last_value(steps: list[str], problem: Expression) -> int:
    """Return the result of the last step written, right or wrong."""
    for step in reversed(steps):
        if "=" in step:
            return int(step.rpartition("=")[2])
    return problem.value


def _pool(tokenizer: Any, recipe: Recipe, rows: list[Row], number: int) -> list[list[Row]]:
    rng = random.Random(f"nano-prm-pool:{recipe.seed}:{number}")
    drawn: list[Row] = []
    for place in range(_POOL * recipe.rows):
        if rng.random() < recipe.procedural:
            drawn.append(procedural(tokenizer, recipe, number * _POOL * recipe.rows + place))
        else:
            drawn.append(rng.choice(rows))
    drawn.sort(key=lambda row: len(row.ids))
    batches = [drawn[i : i + recipe.rows] for i in range(0, len(drawn), recipe.rows)]
    rng.shuffle(batches)
    return batches


def _loss(
    network: Any, batch: list[Row], digit_weight: float, pad: int, device: str
) -> torch.Tensor:
    width = -(-max(len(row.ids) for row in batch) // 8) * 8
    ids = torch.full((len(batch), width), pad)
    values = torch.full((len(batch), width), NONE)
    weights = torch.full((len(batch), width), digit_weight)
    for at, row in enumerate(batch):
        ids[at, : len(row.ids)] = torch.tensor(row.ids)
        values[at, : len(row.ids)] = torch.tensor(row.values)
        weights[at, : len(row.ids)][torch.tensor(row.ends)] = 1.0
    with loop.autocast(device):
        logits = network(input_ids=ids.to(device), use_cache=False).logits
    kept = values != NONE
    losses = torch.nn.functional.cross_entropy(
        logits[kept.to(device)].float(), values[kept].to(device), reduction="none"
    )
    weight = weights[kept].to(device)
    return (losses * weight).sum() / weight.sum()


def write(rows: list[Row], path: Path) -> None:
    """Keep labelled attempts between stages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save([(row.ids, row.values, row.ends) for row in rows], path)


def read(path: Path) -> list[Row]:
    """Read what `write` wrote."""
    return [Row(*fields) for fields in torch.load(path, weights_only=True)]
