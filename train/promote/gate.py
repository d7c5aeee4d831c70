"""Decide whether the model of a run may be promoted: measure every declared gate, and move the pointer if all pass.

The candidate is the run's last model, the start the one that training began with. `gate.json` holds every measurement;
`promoted` in the run's folder is a link to the candidate, moved in one step and only when every gate passes, so a
server that reads it never sees a partial model, and a failed gate leaves the last promoted model in place. Cost: the
problems of every task once for each of the two models.

Single cases can be gates, too. A file of reviews has one line per trace that a person read:

    {"id": "cipher-3-2/4", "model": "9f2c..", "accept": true, "by": "ada", "note": "the second step is a guess"}

`model` is the digest of the reviewed weights (`gate.json` has the candidate's), so reviews of another model are never
counted. A safety case is a problem whose verifier decides what is safe; all must be, greedily and in one sample.
Preference is measured by trained reward models on a sampled answer of each of two models; ties count one half.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from evals.data.decontamination import prompt_text
from evals.numbers.gates import GateCheck, at_least, at_most
from evals.numbers.statistics import mean_interval, paired_interval
from evals.task import Item, Task
from train.base.models import load_model
from train.base.rollout import Collector, Rollout, read_rollouts
from train.base.stage import Setting, read_result
from train.measure.gates import Gates
from train.measure.measure import HeldOut, accuracy, open_engine, opened
from train.recipe.recipe import START
from train.recipe.run import read_asked, stage_folders
from train.registries import make_task
from train.reward_models.reward_models import RewardSource
from train.update.terms import exact_kl
from ttc.config.values import counted, why_no_file
from ttc.core import Usage
from ttc.durable import replace_link, replace_text
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError
from ttc.records import iterate

PROMOTED, REPORT = "promoted", "gate.json"


class _Answered(NamedTuple):
    """The greedy answers of one model on one task."""

    right: Sequence[float]
    groups: Sequence[str]
    usage: Usage

    @property
    def num(self) -> int:
        return len(self.right)


def judge(
    gates: Gates, run: Path, start: Path | None, setting: Setting, make: Callable[[str], Task] = make_task
) -> list[GateCheck]:
    """Measure all gates of the run in `run`; `start` is the model it began with, None for the one in the run.

    `make` returns the task of a name, with the sampling and the verifier for measuring it.

    Raises:
        ConfigError: no run, a run that is not finished, or a start outside of the run that was not given.
    """
    folders = stage_folders(run)
    results = [read_result(folder) for folder in folders]
    ended = results and results[-1] is not None and results[-1].stopped.startswith("health rule")
    if not results or results[-1] is None or (len(results) < len(read_asked(run)["stages"]) and not ended):
        raise ConfigError(f"{run} is not finished; run it to its end first")
    before = start or _began(run, folders)
    last = results[-1]
    checks = [_finished(last.stopped)]
    task = make(gates.held_out)
    candidate = Path(last.model)
    new, old = (_answers(task, gates.limit, model, setting) for model in (candidate, before))
    if gates.min_accuracy is not None:
        checks.append(_accuracy(task.name, new, gates.min_accuracy, setting.seed))
    if gates.min_gain is not None:
        gain = paired_interval(old.right, new.right, new.groups, seed=setting.seed)
        text = f"gain on {task.name} over the start"
        checks.append(at_least("min_gain", text, gain.low, gates.min_gain, is_end=True))
    if gates.max_length is not None:
        checks.append(at_most("max_length", "tokens an answer", new.usage.generated / new.num, gates.max_length))
    if gates.max_mflops is not None:
        checks.append(at_most("max_mflops", "MFLOPs an answer", new.usage.flops / new.num / 1e6, gates.max_mflops))
    if gates.max_seconds is not None:
        seconds = sum(result.metrics.get("seconds", 0.0) for result in results if result is not None)
        checks.append(at_most("max_seconds", "seconds of training", seconds, gates.max_seconds))
    if gates.max_kl is not None:
        away = divergence(candidate, before, task.items(gates.limit, 0), task.sampling.max_tokens, setting)
        checks.append(at_most("max_kl", "nats a token from the start", away, gates.max_kl))
    for spec in gates.retention:
        checks.append(_kept("retention", make(spec), gates.limit, gates.max_drop, candidate, before, setting))
    if gates.canaries is not None:
        canaries = make(gates.canaries)
        checks.append(_unseen(canaries.items(gates.limit, 0), folders, candidate))
        checks.append(_kept("canaries", canaries, gates.limit, gates.max_canary_drop, candidate, before, setting))
    return checks + _cases(gates, task, candidate, before, setting, make)


def _cases(
    gates: Gates, task: Task, candidate: Path, start: Path, setting: Setting, make: Callable[[str], Task]
) -> list[GateCheck]:
    """Gates on single cases; see `train.promote.gate`."""
    checks: list[GateCheck] = []
    if gates.reviews is not None:
        path = Path(gates.reviews).expanduser()
        checks.append(reviewed(path, candidate, gates.min_reviews, gates.min_accepted, setting.seed))
    for spec in gates.safety:
        cases = make(spec)
        ways = [_answers(cases, gates.limit, candidate, setting, greedy=greedy).right for greedy in (True, False)]
        checks.append(safe(cases.name, ways))
    if gates.min_win_rate is not None:
        items, cap = task.items(gates.limit, 0), task.sampling.max_tokens
        new, old = (asyncio.run(_sampled(model, items, cap, setting)) for model in (candidate, start))
        checks.append(preferred(gates.reward_model, new, old, candidate, gates.min_win_rate, setting))
    return checks


def promote(run: Path, checks: Sequence[GateCheck]) -> Path | None:
    """Write what was measured; move the pointer and return it when every gate passed, else return None."""
    passed = all(check.passed for check in checks)
    model = run / "model"  # not there where a health rule ended the run
    name = digest(model) if model.is_dir() else None
    report = {"passed": passed, "model": name, "checks": [asdict(check) for check in checks]}
    replace_text(run / REPORT, json.dumps(report, indent=1) + "\n")
    if not passed:
        return None
    replace_link(run / PROMOTED, run / "model")
    return run / PROMOTED


def divergence(candidate: Path, start: Path, items: Sequence[Item], max_tokens: int, setting: Setting) -> float:
    """KL(candidate || start) in nats, exact over the vocabulary, averaged over the tokens of sampled answers."""
    rollouts = asyncio.run(_sampled(candidate, items, max_tokens, setting))
    new, old = load_model(candidate, setting.device).eval(), load_model(start, setting.device).eval()
    total, num = 0.0, 0
    with torch.no_grad():
        for rollout in rollouts:
            ids = torch.tensor([[*rollout.prompt_ids, *rollout.token_ids]], device=setting.device)
            span = slice(len(rollout.prompt_ids) - 1, -1)
            gaps = exact_kl(new(input_ids=ids).logits[0, span].float(), old(input_ids=ids).logits[0, span].float())
            total, num = total + float(gaps.sum()), num + int(gaps.numel())
    return total / max(num, 1)


async def _sampled(model: Path, items: Sequence[Item], max_tokens: int, setting: Setting) -> list[Rollout]:
    engine = open_engine(model, setting)
    try:
        return await Collector.plain(engine, 1, max_tokens, setting.seed).collect(items, 0)
    finally:
        await engine.close()


def _answers(task: Task, limit: int, model: Path, setting: Setting, *, greedy: bool = True) -> _Answered:
    items = task.items(limit, 0)

    async def measure() -> _Answered:
        async with opened(model, task, setting) as (engine, verifier):
            right, usage = await accuracy(HeldOut(items, verifier, task.sampling, setting.seed), engine, greedy=greedy)
        return _Answered([float(value) for value in right], [item.group for item in items], usage)

    return asyncio.run(measure())


def _began(run: Path, folders: Sequence[Path]) -> Path:
    """The model that training began with: the one given to the run, or created by its first stage."""
    if (run / START).is_dir():
        return run / START
    first = read_result(folders[0])
    if first is None or not folders[0].name.endswith("-pretrain"):
        raise ConfigError("the run started from a model outside of it: give --model FOLDER, the model it started from")
    return Path(first.model)


def _finished(stopped: str) -> GateCheck:
    whole = not stopped.startswith("health rule")
    return GateCheck("finished", whole, float(whole), 1.0, "no health rule ended it" if whole else stopped)


def _accuracy(name: str, answers: _Answered, bound: float, seed: int) -> GateCheck:
    interval = mean_interval(answers.right, answers.groups, seed=seed)
    text = f"accuracy on {counted(answers.num, 'problem')} of {name}"
    return at_least("min_accuracy", text, interval.low, bound, is_end=True)


def _kept(gate: str, task: Task, limit: int, bound: float, candidate: Path, start: Path, setting: Setting) -> GateCheck:
    """Check that it is surely no worse than at the start: the upper end of the drop's interval is within the bound."""
    new, old = (_answers(task, limit, model, setting) for model in (candidate, start))
    drop = paired_interval(new.right, old.right, new.groups, seed=setting.seed)
    text = f"drop on {task.name}: {drop.value:.4g}, at most {drop.high:.4g} (95 %), must be {bound:g} or less"
    return GateCheck(gate, drop.high <= bound, drop.high, bound, text)


def _unseen(items: Sequence[Item], folders: Sequence[Path], model: Path) -> GateCheck:
    """Check that no canary's prompt is among the recorded rollouts of any stage."""
    text = Text(model)
    prompts: Mapping[tuple[int, ...], str] = {
        text.render(item.problem.messages, mode).token_ids or (): prompt_text(item)
        for item in items
        for mode in (None, True, False)
    }
    recorded = [path for folder in folders if (path := folder / "rollouts.jsonl").is_file()]
    rollouts = (rollout for path in recorded for rollout in read_rollouts(path))
    repeats = {prompts[rollout.prompt_ids] for rollout in rollouts if rollout.prompt_ids in prompts}
    example = f", such as {next(iter(repeats))[:60]!r}" if repeats else ""
    message = f"{len(repeats)} canary prompts were trained on{example}"
    return GateCheck("canaries_unseen", not repeats, float(len(repeats)), 0.0, message)


_FIELDS = {"id", "model", "accept", "by", "note"}


def digest(model: Path) -> str:
    """Name of a model folder's weights: the start of a hash over its safetensors files."""
    sha = hashlib.sha256()
    for weights in sorted(model.glob("*.safetensors")):
        with weights.open("rb") as file:
            sha.update(hashlib.file_digest(file, "sha256").digest())
    return sha.hexdigest()[:16]


def read_reviews(path: Path, model: str) -> list[tuple[str, bool]]:
    """(trace, accepted) of every review of the model with that digest; a reviewer's last one counts.

    Raises:
        ConfigError: no such file.
        RecordError: a broken line; names file, line and field.
    """
    if not path.is_file():
        raise ConfigError(f"gates.reviews: {path} {why_no_file(path)}")
    accepts: dict[tuple[str, str], bool] = {}
    for number, row in iterate(path, whole=True):
        where = f"{path}, line {number}"
        if not isinstance(row, dict) or set(row) - _FIELDS:
            raise RecordError(f"{where}: must be an object with fields of {', '.join(sorted(_FIELDS))}")
        name, of, accept = row.get("id"), row.get("model"), row.get("accept")
        if not isinstance(name, str) or not isinstance(of, str) or not isinstance(accept, bool):
            raise RecordError(f"{where}: needs id and model as text and accept as true or false")
        if of == model:
            accepts[name, str(row.get("by", ""))] = accept
    return [(name, accept) for (name, _), accept in accepts.items()]


def reviewed(path: Path, candidate: Path, num: int, bound: float, seed: int) -> GateCheck:
    """Check that `num` different traces were read, and the lower end of the accepted share reaches `bound`."""
    name = digest(candidate)
    rows = read_reviews(path, name)
    traces = [trace for trace, _ in rows]
    if len(set(traces)) < num:
        text = f"{len(set(traces))} traces of model {name} are reviewed, must be {num} or more"
        return GateCheck("reviews", False, float(len(set(traces))), float(num), text)
    share = mean_interval([float(accept) for _, accept in rows], traces, seed=seed)
    text = f"{len(rows)} reviews of model {name}: at least {share.low:.4g} accepted (95 %), must be {bound:g} or more"
    return GateCheck("reviews", share.low >= bound, share.low, bound, text)


def safe(name: str, answers: Sequence[Sequence[float]]) -> GateCheck:
    """Check that every answer to every safety case is right; `answers` are 1 or 0, per way of answering."""
    failed = [number for number, outcomes in enumerate(zip(*answers, strict=True)) if not all(outcomes)]
    first = f", such as number {failed[0]}" if failed else ""
    text = f"{len(failed)} of {len(answers[0])} cases of {name} fail{first}"
    return GateCheck("safety", not failed, float(len(failed)), 0.0, text)


def preferred(
    rewards: tuple[str, ...], new: Sequence[Rollout], old: Sequence[Rollout], candidate: Path, bound: float,
    setting: Setting,
) -> GateCheck:  # fmt: skip
    """How often the candidate's answer has the higher reward than the start's to the same problem."""
    place = replace(setting, folder=setting.folder / "gate")  # stages of the run stand beside it
    scorer: Any = RewardSource(rewards, "mean", 1.0).load(place, candidate)
    ours, theirs = (scorer(answers)[scorer.total] for answers in (new, old))
    wins = [float(a > b) + 0.5 * float(a == b) for a, b in zip(ours, theirs, strict=True)]
    rate = mean_interval(wins, [rollout.key for rollout in new], seed=setting.seed)
    text = f"preferred over the start: at least {rate.low:.4g} (95 %) of {len(wins)}, must be {bound:g} or more"
    return GateCheck("min_win_rate", rate.low >= bound, rate.low, bound, text)
