"""A job from its spec to its student: plan it, run it, resume it.

    resolve -> lock -> pre-flight -> smoke gate -> ledger -> filters, selection, mixing, audit -> training ->
    before and after -> gates -> manifest, card -> promotion

Run again, it goes on where it was killed: answers are on the ledger, training in its checkpoints, measurements in their
runs; everything in between is a function of those and is made anew. `promoted` in the job's folder is a link to the
student, moved in one step and only when every declared gate passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from distill import preflight
from distill.data.pipeline import run_pipeline
from distill.data.template import Audit, audit_rows
from distill.generation.generate import Opener
from distill.generation.judging import gather
from distill.generation.ledger import Ledger
from distill.generation.shards import opener_for
from distill.job.card import write_card
from distill.job.dataset import funnel_of, mixed_in, write_data, write_json
from distill.job.manifest import LEDGER, write_manifest
from distill.job.spending import expected_cost, spend, units_by_teacher
from distill.job.training import Trained, train_student
from distill.measure.comparing import recoveries
from distill.measure.evaluate import as_json, measure_model, measure_teacher
from distill.plan.gates import job_checks
from distill.plan.lock import check_lock, claim
from distill.plan.resolve import PROBE, Plan, resolve
from distill.preflight import Finding
from distill.spec.measured import Measured
from distill.spec.method import Data
from distill.spec.sample import Sample
from distill.spec.spec import JobSpec
from evals.numbers.gates import GateCheck
from train.base.models import load_tokenizer
from train.promote.gate import judge, promote
from ttc.durable import replace_link
from ttc.errors import ConfigError, UnknownName
from ttc.records import LineFile

__all__ = ["LOG", "RESULT", "Finished", "Planned", "plan_job", "refused", "run_job"]

RESULT, LOG = "result.json", "log.jsonl"
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what the pre-flight found, and what it will cost, one line each."""

    plan: Plan
    findings: Sequence[Finding]
    cost: Sequence[str]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a job ended. `model` is None when a health rule stopped the training; `promoted` the pointer, if moved."""

    model: Path | None
    checks: Sequence[GateCheck]
    promoted: Path | None
    stopped: str = ""


def plan_job(spec: JobSpec, folder: Path) -> Planned:
    """Resolve a job, run the pre-flight, and write its lock when nothing is wrong; generates and trains nothing.

    Raises:
        ConfigError: it cannot be resolved, or the folder holds another job.
    """
    plan = resolve(spec, folder)
    check_lock(plan)  # first: what the pre-flight would say of a file that was changed is no help
    findings = preflight.run(plan.job)
    if not refused(findings, spec):
        claim(plan)
    return Planned(plan, findings, _cost(plan))


def run_job(spec: JobSpec, folder: Path, log: Log, opener: Opener | None = None) -> Finished:
    """Run a job to its end, or on from where it was; one process at a time.

    Args:
        spec: what is asked.
        folder: the job's folder, new or of this job.
        log: told what happens, line by line.
        opener: how teachers are opened; None is by the spec's shards.

    Raises:
        ConfigError: it cannot be resolved, the pre-flight or the smoke gate refuses it, or the folder is another's.
        TTCError: a teacher, the verifier or the training broke; run it again to go on.
    """
    plan = resolve(spec, folder)
    check_lock(plan)  # first: what the pre-flight would say of a file that was changed is no help
    findings = preflight.run(plan.job)
    wrong = refused(findings, spec)
    if wrong:
        told = "; ".join(f"{finding.check}: {finding.text} ({finding.fix})" for finding in wrong)
        raise ConfigError(f"the pre-flight refuses this job: {told}")
    claim(plan)
    with LineFile(folder / LOG) as lines:

        def say(text: str) -> None:
            log(text)
            lines.write({"text": text}, sync=False)

        say(plan.method.about(plan.job))
        for finding in findings:
            if not finding.ok:
                say(f"waived: {finding.check}: {finding.text}")
        with Ledger(folder / LEDGER) as ledger:
            asyncio.run(spend(plan, ledger, opener or opener_for(spec.shards), say))
            data, funnel, audit = _prepare(plan, ledger, say)
            trained = train_student(plan, data, say)
            if trained.model is None:
                return Finished(None, (), None, trained.results[-1].stopped)
            return _finish(plan, ledger, trained, trained.model, funnel, audit, say)


def _prepare(plan: Plan, ledger: Ledger, log: Log) -> tuple[Data | None, Mapping[str, Any], Audit | None]:
    """From the ledger to audited rows on the disk; nothing for a method that generates while it trains."""
    spec = plan.spec
    if not plan.assignments:
        return None, {}, None
    found = asyncio.run(gather(ledger, plan.assignments, spec.seed, spec.verifier))
    samples = [sample for sample in found.samples if sample.label != PROBE]
    context = replace(plan.context, pass_rates=_pass_rates(found.samples))
    funnel = run_pipeline(samples, plan.filters, context, plan.selection, spec.seed)
    rows = list(plan.method.rows(funnel.kept, plan.job))
    rows += mixed_in(spec.mix, len(rows), spec.seed)
    path = write_data(plan, found.samples, funnel, rows, found.failed)
    told = funnel_of(plan, funnel, len(rows), found.failed)
    log("; ".join(f"{stage['name']} {stage['kept']} of {stage['came']}" for stage in told["answers"]))
    if not rows:
        return Data(path, 0, 0), told, None
    audit = audit_rows(path, rows, plan.job.student, int(load_tokenizer(plan.job.student).model_max_length))
    if audit.problems:
        more = f" and {len(audit.problems) - 1} more" if len(audit.problems) > 1 else ""
        raise ConfigError(f"the rows do not pass the audit: {audit.problems[0]}{more}")
    log(f"{audit.num_rows} rows, {audit.num_tokens} tokens to learn, all with their stop token")
    return Data(path, audit.num_rows, audit.num_tokens), told, audit


def _finish(
    plan: Plan,
    ledger: Ledger,
    trained: Trained,
    model: Path,
    funnel: Mapping[str, Any],
    audit: Audit | None,
    log: Log,
) -> Finished:
    """Measure, judge, write down, promote."""
    folder, spec = plan.job.folder, plan.spec
    replace_link(folder / "model", model)
    log("measuring the start and the student")
    measured: dict[str, Measured] = {
        "start": measure_model(plan, plan.job.student, folder / "eval" / "start"),
        "student": measure_model(plan, model, folder / "eval" / trained.folder.name),
    }
    if spec.eval.teachers:
        for teacher in plan.job.teachers:
            measured[teacher.name] = measure_teacher(plan, teacher, folder / "eval" / "teachers")
    checks = _judge(plan, trained, measured)
    manifest = write_manifest(plan, ledger, model, trained.folder.name)
    write_card(plan, model, manifest, funnel, measured, checks)
    write_json(
        folder / RESULT,
        {
            "measured": {who: as_json(found) for who, found in measured.items()},
            "recovered": recoveries(measured),
            "stages": trained.metrics,
            "audit": None if audit is None else asdict(audit),
            "checks": [asdict(check) for check in checks],
            "training": trained.folder.name,
        },
    )
    pointer = promote(folder, checks) if checks else None
    log(f"promoted: {pointer.name}" if pointer else "not promoted" + ("" if checks else ": the spec declares no gates"))
    return Finished(model, checks, pointer)


def _judge(plan: Plan, trained: Trained, measured: Mapping[str, Measured]) -> list[GateCheck]:
    if plan.gates is None:
        return []
    setting = plan.job.setting
    checks: list[GateCheck] = []
    if plan.gates.train is not None:
        checks += judge(plan.gates.train, trained.folder, plan.job.student, setting)
    teachers = {who: found for who, found in measured.items() if who not in ("start", "student")}
    return checks + job_checks(plan.gates, measured["start"], measured["student"], teachers, plan.spec.seed)


def _pass_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """The student's share of right answers by prompt."""
    right: dict[str, list[bool]] = {}
    for sample in samples:
        if sample.label == PROBE and sample.verdict is not None:
            right.setdefault(sample.prompt, []).append(sample.verdict.correct)
    return {prompt: sum(values) / len(values) for prompt, values in right.items()}


def _cost(plan: Plan) -> list[str]:
    """Units by teacher, with the most they may cost, or what they will by what is on the ledger already."""
    lines = []
    for teacher, units in units_by_teacher(plan):
        most = sum(unit.max_tokens for unit in units)
        bound = "" if teacher.is_searching else f", at most {most:,} tokens"
        lines.append(f"{teacher.name} ({teacher.strategy.label}): {len(units):,} answers{bound}")
    path = plan.job.folder / LEDGER
    if path.is_file():
        with Ledger(path) as ledger:
            lines.append(expected_cost(plan, ledger) or "everything is on the ledger")
    return lines


def refused(findings: Sequence[Finding], spec: JobSpec) -> list[Finding]:
    """What the pre-flight refuses and the spec does not waive; raises UnknownName for a check that does not exist."""
    names = [finding.check for finding in findings]
    for name in spec.waive:
        if name not in names:
            raise UnknownName("pre-flight check", name, names)
    return [finding for finding in findings if not finding.ok and finding.check not in spec.waive]
