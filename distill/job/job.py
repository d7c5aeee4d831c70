"""A job from its spec to its student: plan it, run it, resume it.

    resolve -> lock -> pre-flight -> smoke gate -> ledger -> filters, selection, mixing, audit -> training ->
    before and after -> gates -> manifest, card -> promotion

A killed job continues when it is run again: answers are on the ledger, training in its checkpoints, measurements in
their runs; everything in between is a function of those and is made again. `promoted` in the job's folder is a link to
the student, moved in one step and only when every declared gate passes.

Training is the method's stages as a run of `train`, in a folder named by a digest of the stages, the rows, the student
and the seed: the same training is resumed or already done; changed data or settings train beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from distill.data.dataset import (
    FUNNEL,
    AuditedRows,
    RowAudit,
    audit_rows,
    check_unmeasured,
    mixed_in,
    refuse_unfit,
    room_of,
    write_data,
    write_json,
)
from distill.data.pipeline import run_pipeline
from distill.generation.generate import Opener
from distill.generation.judging import gather
from distill.generation.ledger import LEDGER, AnswerLedger
from distill.generation.shards import opener_for
from distill.job.manifest import RESULT, write_card, write_manifest
from distill.job.spending import Log, cost_lines, spend, take_over, units_by_teacher
from distill.measure.evaluate import measure_model, measure_teacher, measuring_lines
from distill.measure.measured import Measured, recoveries
from distill.plan.gates import job_checks
from distill.plan.lock import LOCK, check_lock, check_place, claim
from distill.plan.resolve import PROBE, JobPlan, resolve
from distill.preflight import Finding
from distill.preflight import run as run_checks
from distill.spec.method import Data
from distill.spec.sample import Sample, TrainingRow
from distill.spec.spec import JobSpec
from distill.spec.teacher import name_of
from evals.numbers.gates import GateCheck
from evals.task import Task, VerifierSpec
from train.base.stage import StageResult
from train.promote.gate import judge, promote
from train.recipe.recipe import Recipe, RecipeStep, bind_stage
from train.recipe.run import RunOptions, run_recipe
from train.registries import make_task
from ttc.concurrent import Interrupted, StopRequest
from ttc.config.recipes import parse_spec
from ttc.config.values import counted
from ttc.core import NO_VERDICT
from ttc.durable import replace_link
from ttc.errors import ConfigError, UnknownName
from ttc.identity.digests import file_digest


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, the findings of the pre-flight, and the cost, one line each."""

    plan: JobPlan
    findings: Sequence[Finding]
    cost: Sequence[str]


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended.

    `model` is None when a health rule stopped the training; `promoted` is the pointer, if it was moved.
    """

    model: Path | None
    checks: Sequence[GateCheck]
    promoted: Path | None
    stopped: str = ""


def plan_job(spec: JobSpec, folder: Path) -> Planned:
    """Resolve a job, run the pre-flight, and write its lock when nothing is wrong; generates and trains nothing.

    Raises:
        ConfigError: it cannot be resolved, or the folder holds another job.
    """
    plan, findings = _checked(spec, folder)
    if not refused(findings, spec):
        with claim(plan):
            pass
    return Planned(plan, findings, [*cost_lines(plan), *_measuring(plan)])


def _measuring(plan: JobPlan) -> Iterator[str]:
    """The cost of the measurements, which are on no ledger."""
    yield from measuring_lines(plan.job, plan.measured)
    by_gates = plan.gates is not None and plan.gates.train is not None
    more = {"the method's own numbers": bool(plan.method.numbers(plan.job)), "what the gates measure": by_gates}
    names = [name for name, is_more in more.items() if is_more]
    if names:
        yield f"not counted: {' and '.join(names)}"


def _checked(spec: JobSpec, folder: Path) -> tuple[JobPlan, list[Finding]]:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # also hides the progress bars of models that a check loads
    check_place(folder)
    plan = resolve(spec, folder)
    check_lock(plan)  # first: messages below about a changed file would not help
    check_unmeasured(spec.mix, plan.held_out)
    return plan, run_checks(plan.job)


def run_job(
    spec: JobSpec, folder: Path, log: Log, opener: Opener | None = None, stop: StopRequest | None = None
) -> JobResult:
    """Run a job to its end, resuming it if it was started; one process at a time.

    Args:
        spec: what is asked.
        folder: the job's folder, new or of this job.
        log: told what happens, line by line.
        opener: how teachers are opened; None is by the spec's shards.
        stop: what signals ask for, which ends the job with all answers and updates kept.

    Raises:
        Interrupted: a signal asked for an end; it says what is kept.
        ConfigError: it cannot be resolved, the pre-flight or the smoke gate refuses it, or the folder is another's.
        TTCError: a teacher, the verifier or the training broke; run it again to go on.
    """
    plan, findings = _checked(spec, folder)
    wrong = refused(findings, spec)
    if wrong:
        reasons = "; ".join(f"{finding.check}: {finding.text} ({finding.fix})" for finding in wrong)
        raise ConfigError(f"the pre-flight refuses this job: {reasons}")
    with claim(plan) as lines:

        def say(text: str) -> None:
            log(text)
            lines.write({"text": text}, sync=False)

        say(plan.method.about(plan.job))
        for finding in findings:
            if not finding.ok:
                say(f"waived: {finding.check}: {finding.text}")
        with AnswerLedger(folder / LEDGER) as ledger:
            request = stop or StopRequest()
            with _saying_what_is_kept(plan, ledger):
                take_over(plan, ledger, say)
                asyncio.run(spend(plan, ledger, opener or opener_for(spec.shards), say, request))
                data, funnel, audit = _prepare(plan, ledger, say)
                trained = train_student(plan, data, say, request)
                if trained.model is None:
                    return JobResult(None, (), None, trained.results[-1].stopped)
                return _finish(plan, ledger, trained, trained.model, funnel, audit, say)


@contextmanager
def _saying_what_is_kept(plan: JobPlan, ledger: AnswerLedger) -> Iterator[None]:
    """Add the number of answers on the ledger to the message of an interrupt raised inside."""
    try:
        yield
    except KeyboardInterrupt as exc:
        units = [unit for _, several in units_by_teacher(plan) for unit in several]
        total = f"{counted(len(units), 'answer')} {'is' if len(units) == 1 else 'are'}"
        there = f"{len(units) - len(ledger.missing(units)):,} of {total} on the ledger"
        number = exc.number if isinstance(exc, Interrupted) else 0
        raise Interrupted(number, "; ".join(text for text in (there, str(exc)) if text)) from exc


def _prepare(plan: JobPlan, ledger: AnswerLedger, log: Log) -> tuple[Data | None, Mapping[str, Any], RowAudit | None]:
    """From the ledger to audited rows on the disk; None for a method that generates while it trains."""
    spec = plan.spec
    if not plan.assignments:
        return None, {}, None
    answers = asyncio.run(gather(ledger, plan.assignments, spec.seed, spec.verifier))
    samples = [sample for sample in answers.samples if sample.label != PROBE]
    context = replace(plan.context, pass_rates=_pass_rates(answers.samples))
    funnel = run_pipeline(samples, plan.filters, context, plan.selection, spec.seed)
    rows = list(plan.method.rows(funnel.kept, plan.job))
    check_unmeasured(spec.mix, plan.held_out, late=True)
    rows += mixed_in(spec.mix, len(rows), spec.seed)
    audited = _audited(plan, rows, log) if rows else None
    path = write_data(plan.job.folder, plan.prompts, answers.samples, funnel, rows, answers.failed, audited)
    counts = json.loads((path.parent / FUNNEL).read_text(encoding="utf-8"))
    log("; ".join(f"{stage['name']} {stage['kept']} of {stage['came']}" for stage in counts["answers"]))
    if audited is not None:
        refuse_unfit(rows, audited, spec.max_unfit)
    if audited is None or not audited.kept:
        return Data(path, 0, 0), counts, None
    audit = audited.audit
    log(f"{counted(audit.num_rows, 'row')}, {counted(audit.num_tokens, 'token')} to learn, all with their stop token")
    return Data(path, audit.num_rows, audit.num_tokens, [row.notes for row in audited.kept]), counts, audit


def _audited(plan: JobPlan, rows: Sequence[TrainingRow], log: Log) -> AuditedRows:
    """The rows that pass the audit; logs how many do not, and the first of them."""
    audited = audit_rows(rows, plan.job.student, room_of(plan.job.student))
    if audited.unfit:
        log(f"the audit leaves out {len(audited.unfit)} of {counted(len(rows), 'row')}: {audited.audit.problems[0]}")
    return audited


@dataclass(frozen=True, slots=True)
class Trained:
    """A run of `train`: its folder, what its stages reported, and its model; None when a health rule ended it."""

    folder: Path
    results: Sequence[StageResult]
    kinds: Sequence[str]

    @property
    def model(self) -> Path | None:
        """The folder of the student."""
        return None if self.results[-1].stopped.startswith("health rule") else Path(self.results[-1].model)

    @property
    def metrics(self) -> dict[str, Mapping[str, float]]:
        """Numbers of each stage by its folder's name."""
        names = [f"{number}-{kind}" for number, kind in enumerate(self.kinds, start=1)]
        return {name: result.metrics for name, result in zip(names, self.results, strict=False)}


def train_student(plan: JobPlan, data: Data | None, log: Callable[[str], None], stop: StopRequest) -> Trained:
    """Run the method's stages from the student's folder, or resume them; raises ConfigError, TrainingError."""
    import torch

    spec, job = plan.spec, plan.job
    tables = list(plan.method.stages(job, data))
    steps = [
        bind_stage({"kind": kind, **fields}, f"{spec.method}, stage {number}")
        for number, (kind, fields) in enumerate(tables, start=1)
    ]
    named = [replace(step, fields=_portable(step.fields, data)) for step in steps]
    folder = job.folder / "train" / _digest(plan, named)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(spec.threads)
    options = RunOptions(folder, spec.seed, job.student, spec.device, spec.threads, stop=stop)
    results = run_recipe(Recipe(spec.method, plan.method.about(job), tuple(named)), options, log)
    return Trained(folder, results, [kind for kind, _ in tables])


def _portable(fields: Mapping[str, Any], data: Data | None) -> dict[str, Any]:
    """Fields as a run records them, with the file of rows by content, so that a job's folder may be moved."""
    place = None if data is None else str(data.path)
    return {
        key: f"rows {file_digest(Path(value))}" if place is not None and value == place else value
        for key, value in fields.items()
    }


def _digest(plan: JobPlan, steps: Sequence[RecipeStep]) -> str:
    """The digest of what training depends on; a number that `--set` gives as text counts as that number."""
    fields = [{n: step.values[n] if isinstance(v, str) else v for n, v in step.fields.items()} for step in steps]
    settings = [[step.kind, str(sorted(own.items()))] for step, own in zip(steps, fields, strict=True)]
    return name_of([settings, plan.digests["student"], plan.digests["teachers"], plan.spec.seed])


def _finish(
    plan: JobPlan,
    ledger: AnswerLedger,
    trained: Trained,
    model: Path,
    funnel: Mapping[str, Any],
    audit: RowAudit | None,
    log: Log,
) -> JobResult:
    """Measure, check the gates, write the results, promote."""
    folder, spec = plan.job.folder, plan.spec
    replace_link(folder / "model", model)
    log("measuring the start")
    models = {"start": _measure(plan, plan.job.student, folder / "eval" / "start", log)}
    log("measuring the student")
    models["student"] = _measure(plan, model, folder / "eval" / trained.folder.name, log)
    for teacher in plan.job.teachers if spec.eval.teachers else ():
        log(f"measuring {teacher.name}")
        models[teacher.name] = Measured(measure_teacher(plan.job, teacher, folder / "eval" / "teachers", log))
    checks = _judge(plan, trained, models)
    manifest = write_manifest(plan, ledger, model, trained.folder.name)
    write_card(plan, model, manifest, funnel, models, checks)
    write_json(
        folder / RESULT,
        {
            "measured": {who: model.to_json() for who, model in models.items()},
            "recovered": {task: None if isnan(share) else share for task, share in recoveries(models).items()},
            "stages": trained.metrics,
            "audit": None if audit is None else asdict(audit),
            "checks": [asdict(check) for check in checks],
            "training": trained.folder.name,
            "lock": file_digest(folder / LOCK),
        },
    )
    pointer = promote(folder, checks) if checks else None
    log(f"promoted: {pointer.name}" if pointer else _refusal(checks))
    return JobResult(model, checks, pointer)


def _refusal(checks: Sequence[GateCheck]) -> str:
    """Why the pointer was not moved, and what to do about it."""
    names = ", ".join(check.gate for check in checks if not check.passed)
    if not names:
        return "not promoted: the spec declares no gates"
    return (
        f"not promoted: {names} failed. Change the spec and run the same command: answers are not paid for again, and "
        "under other gates nothing is trained again"
    )


def _measure(plan: JobPlan, model: Path, folder: Path, log: Log) -> Measured:
    """Measure a model folder on all measured tasks, and by the method's own numbers."""
    tasks = measure_model(plan.job, plan.measured, model, folder, log)
    return Measured(tasks, dict(plan.method.measure(plan.job, model, plan.job.setting)))


def _judge(plan: JobPlan, trained: Trained, models: Mapping[str, Measured]) -> list[GateCheck]:
    if plan.gates is None:
        return []
    setting = plan.job.setting
    checks: list[GateCheck] = []
    if plan.gates.train is not None:
        checks += judge(plan.gates.train, trained.folder, plan.job.student, setting, partial(_gate_task, plan))
    teachers = {who: model for who, model in models.items() if who not in ("start", "student")}
    return checks + job_checks(plan.gates, models["start"], models["student"], teachers, plan.spec.seed)


def _gate_task(plan: JobPlan, name: str) -> Task:
    """The task of a gate under the spec's sampling; a task that the job also measures is verified in the same way."""
    task, spec = make_task(name), plan.spec
    if spec.verifier is not None and name in plan.measured:
        task = replace(task, verifier=VerifierSpec(*parse_spec(spec.verifier)))
    return replace(task, sampling=spec.sampling_of(task.sampling))


def _pass_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """The student's share of right answers by prompt, among answers with a verdict."""
    right: dict[str, list[bool]] = {}
    for sample in samples:
        if sample.label == PROBE and sample.verdict is not None and sample.verdict.status not in NO_VERDICT:
            right.setdefault(sample.prompt, []).append(sample.verdict.correct)
    return {prompt: sum(values) / len(values) for prompt, values in right.items()}


def refused(findings: Sequence[Finding], spec: JobSpec) -> list[Finding]:
    """Findings that refuse the job and are not waived by the spec; raises UnknownName for an unknown check."""
    names = [finding.check for finding in findings]
    for name in spec.waive:
        if name not in names:
            raise UnknownName("pre-flight check", name, names)
    return [finding for finding in findings if not finding.ok and finding.check not in spec.waive]
