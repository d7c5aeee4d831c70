"""`ttc steps`: label the steps of solutions, and judge process reward models by labelled steps.

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
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from evals.data.steps import Labelled, label_rows, read_labelled, sample_labelled, score_rows, write_labelled
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
from evals.worlds.worked_steps import ArithmeticSteps
from ttc.cli.options import (
    StrategyChoice,
    add_engine_options,
    check_parts,
    resolve_engine,
    resolve_scorer,
    resolve_verifier,
)
from ttc.config.ranges import at_least
from ttc.core import Engine, Sampling, Usage
from ttc.errors import ConfigError
from ttc.verifiers.steps import RolloutChecker

SAMPLED = "arithmetic"


def register(subparsers: Any) -> None:
    """Add `ttc steps`."""
    parser = subparsers.add_parser(
        "steps",
        help="label solution steps, judge process reward models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    evaluate = actions.add_parser("eval", help="first-error F1, calibration and ranking of a scorer")
    _add_common(evaluate)
    evaluate.add_argument("--scorer", metavar="NAME[:MODEL]", help="default: the packaged reward model")
    evaluate.add_argument(
        "--threshold", default="0.5", metavar="T|fit", help="a step below it is wrong; fit: chosen on half of the data"
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object instead")
    evaluate.set_defaults(run=run_eval)
    label = actions.add_parser("label", help="write labelled steps")
    _add_common(label)
    label.add_argument("--checker", choices=("exact", "rollouts"), default="exact", help="default: exact")
    label.add_argument("--rollouts", type=int, default=8, metavar="K", help="completions per step (default: 8)")
    label.add_argument("--hard", action="store_true", help="rollouts: 1 when any is correct, else 0")
    label.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines that steps eval reads")
    label.set_defaults(run=run_label)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar=f"FILE|{SAMPLED}", help="labelled solutions, or where from")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="problems or lines (sampled: 100)")
    parser.add_argument("--level", type=int, default=4, metavar="L", help="sampled: difficulty (default: 4)")
    parser.add_argument("--n", type=int, default=4, metavar="N", help="sampled: solutions a problem (default: 4)")
    parser.add_argument("--temperature", type=float, default=0.8, help="of samples and rollouts (default: 0.8)")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="TOKENS", help="of samples and rollouts")
    parser.add_argument("--seed", type=int, default=0, help="of problems, samples and intervals (default: 0)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="engine.KEY=VALUE, scorer.KEY=VALUE"
    )
    add_engine_options(parser)


def run_eval(args: argparse.Namespace) -> int:
    """Score labelled steps and print how well the scores tell right from wrong; returns 0."""
    _check(args, ("engine", "scorer"))
    threshold = _threshold(args.threshold)
    engine_choice = resolve_engine(args)
    user = StrategyChoice("steps eval", "steps eval", cast(Any, score_rows), {})  # needs a scorer, by its signature
    scorer_choice = resolve_scorer(args, [user])
    if scorer_choice is None:
        raise ConfigError("steps eval needs a scorer: add --scorer prm:PATH")

    async def work() -> tuple[list[Labelled], list[Judged], Usage]:
        async with AsyncExitStack() as stack:
            engine = engine_choice.create_engine()
            stack.push_async_callback(engine.close)
            rows, sampled = await _rows(args, engine)
            judged, scored = await score_rows(rows, engine, scorer_choice.create_scorer(engine), seed=args.seed)
            return rows, judged, sampled + scored

    rows, judged, usage = asyncio.run(work())
    report = _report(rows, judged, threshold, args.seed)
    report |= {"scorer": scorer_choice.label, "data": Path(args.data).name, "usage": asdict(usage)}
    print(json.dumps(report) if args.json else _text(report))
    return 0


def run_label(args: argparse.Namespace) -> int:
    """Write labelled steps; returns 0."""
    _check(args, ("engine",))
    at_least("steps label", 1, rollouts=args.rollouts)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    engine_choice = resolve_engine(args)

    async def work() -> tuple[int, str]:
        async with AsyncExitStack() as stack:
            engine = engine_choice.create_engine()
            stack.push_async_callback(engine.close)
            if args.checker == "rollouts":
                verifier = resolve_verifier("math", {"kind": "number"}).create_verifier()
                stack.push_async_callback(verifier.close)
                checker: RolloutChecker | ArithmeticSteps = RolloutChecker(
                    engine, verifier, seed=args.seed, rollouts=args.rollouts, hard=args.hard, sampling=_sampling(args)
                )
            else:
                checker = ArithmeticSteps()
            rows, _ = await _rows(args, engine)
            labelled, _ = await label_rows(rows, checker)
            write_labelled(args.out, labelled, checker.version)
            return len(labelled), checker.version

    num, version = asyncio.run(work())
    print(f"{num} solutions labelled by {version}: {args.out}")
    return 0


def _check(args: argparse.Namespace, parts: Sequence[str]) -> None:
    """Refuse what cannot work, before a model is loaded."""
    check_parts(args, parts)
    at_least("steps", 1, limit=args.limit, n=args.n)
    if args.data != SAMPLED and not Path(args.data).is_file():
        raise ConfigError(f"--data {args.data} does not exist; give a file of labelled solutions, or {SAMPLED}")


async def _rows(args: argparse.Namespace, engine: Engine) -> tuple[list[Labelled], Usage]:
    if args.data != SAMPLED:
        return read_labelled(Path(args.data), args.limit), Usage()
    items = arithmetic(level=args.level).items(args.limit or 100, args.seed)
    return await sample_labelled(engine, items, ArithmeticSteps(), n=args.n, sampling=_sampling(args), seed=args.seed)


def _sampling(args: argparse.Namespace) -> Sampling:
    return Sampling(temperature=args.temperature, max_tokens=args.max_tokens)


def _threshold(text: str) -> float | None:
    """The threshold, None to fit it."""
    if text == "fit":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--threshold must be a number or fit, got {text!r}") from None


def _report(rows: Sequence[Labelled], judged: Sequence[Judged], threshold: float | None, seed: int) -> dict[str, Any]:
    if all(label is None for row in rows for label in row.labels):
        raise ConfigError("no step has a label: nothing to hold scores to (ttc steps label writes them)")
    told = judged
    if threshold is None:
        fitted_on, told = split(judged)
        threshold = fit_threshold(fitted_on)
    groups = {row.problem.id: row.group for row in rows}
    names = sorted(set(groups.values()))
    by_group = {name: [row for row in told if groups[row.name] == name] for name in names if len(names) > 1}
    bins = calibration(told, seed=seed)
    return {
        "num": len(told),
        "num_fitted_on": len(judged) - len(told),
        "first_error": asdict(first_error(told, threshold, seed=seed)),
        "by_group": {name: asdict(first_error(part, threshold, seed=seed)) for name, part in by_group.items()},
        "calibration": [asdict(item) for item in bins],
        "calibration_error": calibration_error(bins),
        "auc": ranking(told),
    }


def _text(report: dict[str, Any]) -> str:
    lines = [f"{report['num']} solutions of {report['data']}, scored by {report['scorer']}", ""]
    lines.append(f"{'first error':<28} {'with error':>24} {'without':>24} {'F1 (95 %)':>24}")
    for name, found in [("all", report["first_error"]), *report["by_group"].items()]:
        shares = "".join(f" {_interval(found[key]):>24}" for key in ("with_error", "without", "f1"))
        lines.append(f"{name:<28}{shares}")
    whole = report["first_error"]
    lines += [
        "",
        f"threshold {whole['threshold']:.4g}"
        + (f", fitted on {report['num_fitted_on']} other solutions" if report["num_fitted_on"] else "")
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
