"""`ttc distill`: from a spec to a gated student checkpoint.

    ttc distill plan SPEC.toml --out runs/d1      what it will do and cost; pre-flight checks; writes the lock
    ttc distill run SPEC.toml --out runs/d1       do it; run it again to resume
    ttc distill run --method rejection --teacher DIR --student DIR --task cipher:split=train --seed 1 --out runs/d1
    ttc distill status runs/d1                    how far it is
    ttc distill report runs/d1                    the funnel, the data, before and after; writes a page
    ttc distill trace runs/d1 17                  where a training row came from
    ttc distill verify runs/d1                    compare the files with the manifest

A spec is a short TOML file; examples are in distill/examples. Methods and their parameters: ttc list methods.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc.config.recipes import overrides
from ttc.config.values import counted

if TYPE_CHECKING:
    from distill.plan.resolve import JobPlan
    from distill.spec.spec import JobSpec

_FLAGS = (
    ("--method", "method", "METHOD", "see: ttc list methods"),
    ("--teacher", "teacher.model", "DIR", "model folder of the teacher"),
    ("--strategy", "teacher.strategy", "NAME[:KEY=VALUE,...]", "the teacher's strategy (see: ttc list strategies)"),
    ("--student", "student", "MODEL", "model folder or hub id the student starts from"),
    ("--task", "task", "NAME[:KEY=VALUE,...]", "what is learnt"),
    ("--held-out", "held_out", "NAME[:KEY=VALUE,...]", "what it is measured on"),
    ("--n", "n", "N", "answers per problem"),
    ("--limit", "limit", "LIMIT", "most problems"),
    ("--seed", "seed", "SEED", "seed of what is drawn, chosen and trained"),
)
"""Flags for keys of a spec: flag, key, what stands for its value in the help, and the help. The spec reads the text."""


def register(subparsers: Any) -> None:
    """Add `ttc distill`."""
    parser = subparsers.add_parser("distill", description=__doc__)
    verbs = parser.add_subparsers(metavar="ACTION", required=True)
    for name, act, help_text in (
        ("plan", _plan, "resolve a job, check it, and say what it will cost"),
        ("run", _run, "run a job; run it again to resume"),
    ):
        verb = verbs.add_parser(name, help=help_text)
        _add_spec(verb)
        verb.set_defaults(run=act, continues=act is _run)
    for name, act, help_text in (
        ("status", _status, "how far a job is"),
        ("report", _report, "write the page of a job, and print its summary"),
        ("verify", _verify, "compare the files of a finished job with its manifest"),
    ):
        verb = verbs.add_parser(name, help=help_text)
        verb.add_argument("folder", type=Path, help="folder of the job")
        verb.set_defaults(run=act)
        if name == "report":
            verb.add_argument("--out", type=Path, help="where to write the page; JOB/report.html by default")
    trace = verbs.add_parser("trace", help="where a training row came from, and what was decided about an answer")
    trace.add_argument("folder", type=Path, help="folder of the job")
    trace.add_argument("row", help="number of a row of data/train.jsonl, from 0, or the key of an answer")
    trace.set_defaults(run=_trace)


def _add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="?", type=Path, help="a TOML file; flags override it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the job")
    for flag, key, metavar, text in _FLAGS:
        parser.add_argument(flag, dest=key, metavar=metavar, help=text)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="any key of a spec: train.lr=1e-3, filters.near=true, gates.min_gain=0",
    )  # fmt: skip


def _spec(args: argparse.Namespace) -> JobSpec:
    from distill.spec.spec import read_spec
    from ttc.cli.parts import check_writable
    from ttc.engines.shared.folder import resolve

    check_writable("--out", args.out)
    keys = {key for _, key, _, _ in _FLAGS}
    flags = {key: value for key, value in vars(args).items() if key in keys and value is not None}
    spec = read_spec(args.spec, {**flags, **overrides(args.settings)})
    return replace(spec, student=str(resolve(spec.student)))


def _plan(args: argparse.Namespace) -> int:
    from distill.job.job import plan_job, refused

    planned = plan_job(_spec(args), args.out)
    plan = planned.plan
    print(plan.method.about(plan.job))
    for name, prompts in plan.prompts.items():
        print(f"domain {name}: {counted(len(prompts.items), 'problem')}, {len(prompts.dropped)} dropped")
        for problem, reason in list(prompts.dropped)[:5]:
            print(f"    {problem}: {reason}")
    for line in (*planned.cost, *_training(plan)):
        print(line)
    print(f"filters: {', '.join(plan.filters)}; select: {plan.selection.rule}, {plan.selection.per_prompt} per prompt")
    for finding in planned.findings:
        mark = "ok" if finding.ok else ("waived" if finding.check in plan.spec.waive else "FAIL")
        print(f"{mark:6}  {finding.check:18} {finding.text}")
        if not finding.ok:
            print(f"        {finding.fix}")
    return 3 if refused(planned.findings, plan.spec) else 0


def _training(plan: JobPlan) -> Iterator[str]:
    """What training the student would take if every answer were kept: memory by part, tokens, steps."""
    from distill.spec.method import planned_data
    from train.recipe.plan import config_of, lines, plan_recipe
    from train.recipe.recipe import Recipe, bind_stage

    tables = enumerate(plan.method.stages(plan.job, planned_data(plan.job, plan.assignments)), start=1)
    steps = [bind_stage({"kind": kind, **fields}, f"stage {number}") for number, (kind, fields) in tables]
    recipe = Recipe(plan.spec.method, "", tuple(steps))
    yield from lines(plan_recipe(recipe, config_of(plan.job.student), None, None))


def _run(args: argparse.Namespace) -> int:
    from distill.job.job import run_job
    from evals.numbers.gates import check_lines
    from ttc.concurrent import SteadyLog, StopRequest

    with SteadyLog(partial(print, file=sys.stderr, flush=True)) as log:
        finished = run_job(_spec(args), args.out, log, stop=StopRequest(armed=True))
    if finished.model is None:
        print(f"stopped: {finished.stopped}")
        return 3
    for line in check_lines(finished.checks):
        print(line)
    from distill.report.page import write_page
    from distill.report.tables import render

    print(render(args.out), end="")
    write_page(args.out, None)
    failed = ", ".join(check.gate for check in finished.checks if not check.passed)
    print(f"student: {args.out / 'model'}" + (f", not promoted: {failed} failed" if failed else ""))
    return 3 if failed else 0


def _status(args: argparse.Namespace) -> int:
    from distill.job.status import status_lines

    for line in status_lines(args.folder):
        print(line)
    return 0


def _report(args: argparse.Namespace) -> int:
    from distill.report.page import write_page
    from distill.report.tables import render
    from ttc.cli.parts import check_file

    check_file("--out", args.out or args.folder / "report.html")
    print(render(args.folder), end="")
    print(f"wrote {write_page(args.folder, args.out)}", file=sys.stderr)
    return 0


def _trace(args: argparse.Namespace) -> int:
    from distill.job.status import trace_row

    for line in trace_row(args.folder, args.row):
        print(line)
    return 0


def _verify(args: argparse.Namespace) -> int:
    from distill.job.manifest import verify_manifest

    wrong = verify_manifest(args.folder)
    for line in wrong or ["everything is as the manifest says"]:
        print(line)
    return 3 if wrong else 0
