"""`ttc steps`: label steps of solutions, judge process reward models by them.

    ttc steps eval --data arithmetic                        the packaged reward model on the packaged model's own paths
    ttc steps eval --data bigbench_mistake.jsonl.gz --scorer prm:PATH --threshold fit
    ttc steps label --data arithmetic --checker rollouts --out labels.jsonl

`--data` is a file (see evals/data/steps.py for its lines), or `arithmetic`: problems are drawn, `--n` solutions each
are sampled from the engine, and every step is labelled exactly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from evals.data.steps import Labelled, label_rows, read_labelled, sample_labelled, score_rows, write_labelled
from evals.data.worked_steps import ArithmeticSteps
from evals.numbers.step_metrics import (
    Judged,
    calibration,
    calibration_error,
    first_error,
    fit_threshold,
    ranking,
    split,
)
from evals.tasks.arithmetic import arithmetic
from ttc.cli.options import add_options, option, read_options
from ttc.cli.parts import EngineOptions, check_file, resolve_engine, resolve_scorer, settings
from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.recipes import sections
from ttc.config.registry import VERIFIERS
from ttc.config.values import at_least, counted, why_no_file
from ttc.core import Engine, Sampling, Usage
from ttc.errors import ConfigError
from ttc.verifiers.steps import RolloutChecker

SAMPLED = "arithmetic"


@dataclass(frozen=True, kw_only=True)
class StepsOptions(EngineOptions):
    """The options of both actions."""

    data: str
    limit: int | None = option(None, "problems or lines (sampled: 100)", metavar="N")
    level: int = option(4, "sampled: difficulty", metavar="L")
    n: int = option(4, "sampled: solutions a problem", metavar="N")
    temperature: float = option(0.8, "of samples and rollouts")
    max_tokens: int = option(512, "of samples and rollouts", metavar="TOKENS")
    seed: int = option(0, "of problems, samples and intervals")
    settings: Mapping[str, object] = settings("engine.KEY=VALUE, scorer.KEY=VALUE")

    @property
    def sampling(self) -> Sampling:
        """How solutions and rollouts are drawn."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class ScoredOptions(StepsOptions):
    """The options of `ttc steps eval`."""

    scorer: str | None = option(None, "default: the packaged reward model", metavar="NAME[:MODEL]")
    threshold: str = option("0.5", "a step below it is wrong; fit: chosen on half of the data", metavar="T|fit")
    json: bool = option(False, "print one JSON object instead")


@dataclass(frozen=True, kw_only=True)
class LabelOptions(StepsOptions):
    """The options of `ttc steps label`."""

    out: Path
    checker: Literal["exact", "rollouts"] = option("exact", "what judges a step", metavar="exact|rollouts")
    rollouts: int = option(8, "completions per step", metavar="K")
    hard: bool = option(False, "rollouts: 1 when any is correct, else 0")


def register(subparsers: Any) -> None:
    """Add `ttc steps`."""
    parser = subparsers.add_parser("steps", description=__doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    evaluate = actions.add_parser("eval", help="first-error F1, calibration and ranking of a scorer")
    label = actions.add_parser("label", help="write labelled steps")
    label.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines that steps eval reads")
    for action, kind, function in ((evaluate, ScoredOptions, run_eval), (label, LabelOptions, run_label)):
        action.add_argument(
            "--data", required=True, metavar=f"FILE|{SAMPLED}",
            help="a file of labelled solutions, or arithmetic, which makes them",
        )  # fmt: skip
        add_options(action, kind)
        action.set_defaults(run=function)


def run_eval(args: argparse.Namespace) -> int:
    """Score labelled steps and print how well the scores tell right from wrong; returns 0."""
    options = read_options(ScoredOptions, args)
    _check(options, ("engine", "scorer"))
    threshold = _threshold(options.threshold)
    read = _read(options)
    _refuse_unlabelled(read or ())
    engine_choice = resolve_engine(options, options.settings)
    user = StrategyChoice("steps eval", "steps eval", cast(Any, score_rows), {})  # needs a scorer, by its signature
    scorer_choice = resolve_scorer(options.scorer, options.settings, [user], is_packaged=options.is_packaged)
    if scorer_choice is None:
        raise ConfigError("steps eval needs a scorer: add --scorer prm:PATH")

    async def work() -> tuple[list[Labelled], list[Judged], Usage]:
        async with AsyncExitStack() as stack:
            engine = engine_choice.create_engine()
            stack.push_async_callback(engine.close)
            rows, sampled = await _rows(options, engine, read)
            scored, cost = await score_rows(rows, engine, scorer_choice.create_scorer(engine), seed=options.seed)
            return rows, scored, sampled + cost

    rows, scored, usage = asyncio.run(work())
    report = _report(rows, scored, threshold, options.seed)
    report |= {"scorer": scorer_choice.label, "data": Path(options.data).name, "usage": asdict(usage)}
    print(json.dumps(report) if options.json else _text(report))
    return 0


def run_label(args: argparse.Namespace) -> int:
    """Write labelled steps; returns 0."""
    options = read_options(LabelOptions, args)
    _check(options, ("engine",))
    at_least("steps label", 1, rollouts=options.rollouts)
    check_file("--out", options.out)
    read = _read(options)
    engine_choice = resolve_engine(options, options.settings)

    async def work() -> tuple[int, str]:
        async with AsyncExitStack() as stack:
            engine = engine_choice.create_engine()
            stack.push_async_callback(engine.close)
            if options.checker == "rollouts":
                verifier = PartChoice.of(VERIFIERS, "math", {"kind": "number"}).create_verifier()
                stack.push_async_callback(verifier.close)
                checker: RolloutChecker | ArithmeticSteps = RolloutChecker(
                    engine,
                    verifier,
                    seed=options.seed,
                    rollouts=options.rollouts,
                    hard=options.hard,
                    sampling=options.sampling,
                )
            else:
                checker = ArithmeticSteps()
            rows, _ = await _rows(options, engine, read)
            labelled, _ = await label_rows(rows, checker)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_labelled(options.out, labelled, checker.version)
            return len(labelled), checker.version

    num, version = asyncio.run(work())
    print(f"{counted(num, 'solution')} labelled by {version}: {options.out}")
    return 0


def _check(options: StepsOptions, parts: Sequence[str]) -> None:
    """Refuse what cannot work, before a model is loaded."""
    sections(options.settings, parts)
    at_least("steps", 1, limit=options.limit, n=options.n)
    if options.data != SAMPLED and not Path(options.data).is_file():
        why = why_no_file(Path(options.data))
        raise ConfigError(f"--data {options.data} {why}; give a file of labelled solutions, or {SAMPLED}")


def _read(options: StepsOptions) -> list[Labelled] | None:
    """The solutions of the file; None where they are sampled."""
    return None if options.data == SAMPLED else read_labelled(Path(options.data), options.limit)


def _refuse_unlabelled(rows: Sequence[Labelled]) -> None:
    if rows and all(label is None for row in rows for label in row.labels):
        raise ConfigError("no step has a label: nothing to compare scores with (ttc steps label writes labels)")


async def _rows(options: StepsOptions, engine: Engine, read: list[Labelled] | None) -> tuple[list[Labelled], Usage]:
    """The solutions that were read, else samples of the engine, and what they cost."""
    if read is not None:
        return read, Usage()
    items = arithmetic(level=options.level).items(options.limit or 100, options.seed)
    return await sample_labelled(
        engine, items, ArithmeticSteps(), n=options.n, sampling=options.sampling, seed=options.seed
    )


def _threshold(text: str) -> float | None:
    """The threshold; None to fit it."""
    if text == "fit":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--threshold must be a number or fit, got {text!r}") from None


def _report(rows: Sequence[Labelled], scored: Sequence[Judged], threshold: float | None, seed: int) -> dict[str, Any]:
    _refuse_unlabelled(rows)
    reported = scored
    if threshold is None:
        fitted_on, reported = split(scored)
        threshold = fit_threshold(fitted_on)
    groups = {row.problem.id: row.group for row in rows}
    names = sorted(set(groups.values()))
    by_group = {name: [row for row in reported if groups[row.name] == name] for name in names if len(names) > 1}
    bins = calibration(reported, seed=seed)
    return {
        "num": len(reported),
        "num_fitted_on": len(scored) - len(reported),
        "first_error": asdict(first_error(reported, threshold, seed=seed)),
        "by_group": {name: asdict(first_error(part, threshold, seed=seed)) for name, part in by_group.items()},
        "calibration": [asdict(item) for item in bins],
        "calibration_error": calibration_error(bins),
        "auc": ranking(reported),
    }


def _text(report: dict[str, Any]) -> str:
    lines = [f"{counted(report['num'], 'solution')} of {report['data']}, scored by {report['scorer']}", ""]
    lines.append(f"{'first error':<28} {'with error':>24} {'without':>24} {'F1 (95 %)':>24}")
    for name, figures in [("all", report["first_error"]), *report["by_group"].items()]:
        shares = "".join(f" {_interval(figures[key]):>24}" for key in ("with_error", "without", "f1"))
        lines.append(f"{name:<28}{shares}")
    whole = report["first_error"]
    lines += [
        "",
        f"threshold {whole['threshold']:.4g}"
        + (f", fitted on {counted(report['num_fitted_on'], 'other solution')}" if report["num_fitted_on"] else "")
        + f"; {whole['num_with_error']} with an error, {whole['num_without']} without, "
        + f"{whole['num_unscored']} unscored",
        f"ranking of steps (AUC) {report['auc']:.3f}, calibration error {report['calibration_error']:.3f}",
        "",
        f"{'mean score':>12} {'right % (95 %)':>24} {'steps':>8}",
    ]
    lines += [f"{b['score']:>12.3f} {_interval(b['right']):>24} {b['count']:>8,}" for b in report["calibration"]]
    return "\n".join(lines)


def _interval(found: dict[str, float]) -> str:
    return f"{100 * found['value']:.1f} ({100 * found['low']:.1f} to {100 * found['high']:.1f})"
