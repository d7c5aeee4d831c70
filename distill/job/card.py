"""The model card of a student: who taught it, on what, and what that brought; written into its model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.measure.comparing import HEAD, Line, compared
from distill.plan.resolve import Plan
from distill.spec.measured import Measured
from evals.numbers.gates import GateCheck
from ttc.durable import replace_text

__all__ = ["write_card"]


def write_card(
    plan: Plan,
    model: Path,
    manifest: Mapping[str, Any],
    funnel: Mapping[str, Any],
    measured: Mapping[str, Measured],
    checks: Sequence[GateCheck],
) -> Path:
    """Write README.md into the model folder; `measured` by who: start, student, and teachers by name."""
    spec = plan.spec
    lines = compared(measured, spec.seed)
    taught = [
        f"- {teacher.name}: engine {teacher.engine.name}, strategy {teacher.strategy.label}, digest {teacher.digest}"
        for teacher in plan.job.teachers
    ]
    rows = [f"{stage['name']}: {stage['kept']} of {stage['came']}" for stage in funnel.get("answers", ())]
    parts = [
        "---\npipeline_tag: text-generation\ntags: [distillation]\n---",
        f"# {spec.name}",
        f"Made by `ttc distill run`, method `{spec.method}`: {manifest['about']}.",
        "## Teachers\n\n" + ("\n".join(taught) or "- the student itself"),
        "## Data\n\n"
        + "\n".join(f"- {domain.name}: {domain.task}" for domain in spec.domains)
        + (f"\n- {funnel['rows']} rows; {'; '.join(rows)}" if funnel else "\n- drawn while training"),
        "## Before and after\n\n" + _table(lines),
        "## Gates\n\n"
        + ("\n".join(f"- {'pass' if c.passed else 'FAIL'}: {c.text}" for c in checks) or "None declared."),
        "## Digests\n\n" + "\n".join(f"- {name}: {value}" for name, value in _flat(manifest["out"])),
        "Limits: measured on the tasks above only. Who publishes this model answers for the licences of its teachers' "
        "output and of the data.",
    ]
    path = model / "README.md"
    replace_text(path, "\n\n".join(parts) + "\n")
    return path


def _table(lines: Sequence[Line]) -> str:
    head = f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}"
    return "\n".join([head, *(f"| {' | '.join(line.cells)} |" for line in lines)])


def _flat(out: Mapping[str, Any]) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in out.items():
        if isinstance(value, Mapping):
            flat += [(f"{name}, {part}", str(digest)) for part, digest in value.items()]
        else:
            flat.append((name, str(value)))
    return flat
