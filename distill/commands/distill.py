"""`ttc distill`: from a spec to a gated student checkpoint.

ttc distill plan SPEC.toml --out runs/d1      what it will do and cost; pre-flight checks; writes the lock
ttc distill run SPEC.toml --out runs/d1       do it; run it again to resume
ttc distill run --method rejection --teacher DIR --student DIR --task cipher:split=train --seed 1 --out runs/d1
ttc distill status runs/d1                    how far it is
ttc distill report runs/d1                    the funnel, the data, before and after; writes a page
ttc distill trace runs/d1 17                  where a training row came from
ttc distill verify runs/d1                    compare the files with the manifest
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ttc.config.specs import overrides

__all__ = ["register"]


def register(subparsers: Any) -> None:
    """Add `ttc distill`."""
    parser = subparsers.add_parser(
        "distill",
        help="distil a teacher, or a strategy, into a student",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, act, told in (
        ("plan", _plan, "resolve a job, check it, and say what it will cost"),
        ("run", _run, "run a job; run it again to resume"),
    ):
        verb = verbs.add_parser(name, help=told)
        _add_spec(verb)
        verb.set_defaults(run=act)
    for name, act, told in (
        ("status", _status, "how far a job is"),
        ("report", _report, "write the page of a job, and print its summary"),
        ("verify", _verify, "compare the files of a finished job with its manifest"),
    ):
        verb = verbs.add_parser(name, help=told)
        verb.add_argument("folder", type=Path, help="folder of the job")
        verb.set_defaults(run=act)
        if name == "report":
            verb.add_argument("--out", type=Path, help="where to write the page; JOB/report.html by default")
    trace = verbs.add_parser("trace", help="where a training row came from, and what was decided about an answer")
    trace.add_argument("folder", type=Path, help="folder of the job")
    trace.add_argument("row", help="number of a row of data/train.jsonl, from 0, or the key of an answer")
    trace.set_defaults(run=_trace)


def _add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="?", type=Path, help="a TOML file; flags are laid over it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the job")
    parser.add_argument("--method", help="see: ttc list methods")
    parser.add_argument("--teacher", metavar="DIR", help="model folder of the teacher")
    parser.add_argument(
        "--strategy", metavar="NAME[:KEY=VALUE,...]", help="the teacher's strategy (see: ttc list strategies)"
    )
    parser.add_argument("--student", metavar="DIR", help="model folder the student starts from")
    parser.add_argument("--task", metavar="NAME[:KEY=VALUE,...]", help="what is learnt")
    parser.add_argument("--held-out", metavar="NAME[:KEY=VALUE,...]", help="what it is measured on")
    parser.add_argument("--n", type=int, help="answers per problem")
    parser.add_argument("--limit", type=int, help="most problems")
    parser.add_argument("--seed", type=int, help="seed of what is drawn, chosen and trained")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="any key of a spec: train.lr=1e-3, filters.near=true, gates.min_gain=0",
    )  # fmt: skip


def _spec(args: argparse.Namespace) -> Any:
    from distill.spec.spec import read_spec

    names = ("method", "student", "task", "held_out", "n", "limit", "seed")
    flags: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    flags |= {
        f"teacher.{key}": value
        for key, value in (("model", args.teacher), ("strategy", args.strategy))
        if value is not None
    }
    return read_spec(args.spec, {**flags, **overrides(args.settings)})


def _plan(args: argparse.Namespace) -> int:
    from distill.job.job import plan_job, refused

    planned = plan_job(_spec(args), args.out)
    plan = planned.plan
    print(plan.method.about(plan.job))
    for name, prompts in plan.prompts.items():
        print(f"domain {name}: {len(prompts.items)} problems, {len(prompts.dropped)} dropped")
        for problem, reason in list(prompts.dropped)[:5]:
            print(f"    {problem}: {reason}")
    for line in planned.cost:
        print(line)
    print(f"filters: {', '.join(plan.filters)}; select: {plan.selection.rule}, {plan.selection.per_prompt} per prompt")
    for finding in planned.findings:
        mark = "ok" if finding.ok else ("waived" if finding.check in plan.spec.waive else "FAIL")
        print(f"{mark:6}  {finding.check:18} {finding.text}")
        if not finding.ok:
            print(f"        {finding.fix}")
    return 3 if refused(planned.findings, plan.spec) else 0


def _run(args: argparse.Namespace) -> int:
    from distill.job.job import run_job
    from distill.plan.gates import told

    finished = run_job(_spec(args), args.out, lambda text: print(text, file=sys.stderr, flush=True))
    if finished.model is None:
        print(f"stopped: {finished.stopped}")
        return 3
    for line in told(finished.checks):
        print(line)
    from distill.report import render_text, write_page

    print(render_text(args.out), end="")
    write_page(args.out, None)
    print(f"student: {args.out / 'model'}")
    return 3 if finished.checks and finished.promoted is None else 0


def _status(args: argparse.Namespace) -> int:
    from distill.job.status import status_lines

    for line in status_lines(args.folder):
        print(line)
    return 0


def _report(args: argparse.Namespace) -> int:
    from distill.report import render_text, write_page

    print(render_text(args.folder), end="")
    print(f"wrote {write_page(args.folder, args.out)}", file=sys.stderr)
    return 0


def _trace(args: argparse.Namespace) -> int:
    from distill.job.tracing import trace_row

    for line in trace_row(args.folder, args.row):
        print(line)
    return 0


def _verify(args: argparse.Namespace) -> int:
    from distill.job.manifest import verify_manifest

    wrong = verify_manifest(args.folder)
    for line in wrong or ["everything is as the manifest says"]:
        print(line)
    return 3 if wrong else 0
