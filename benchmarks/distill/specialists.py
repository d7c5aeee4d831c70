"""Two specialists merged into one student: sums and products, each known to one teacher only.

Claims: each specialist answers at least 90 % of its own domain, greedily, and the student is within 3 points of it
there. The accuracy of each specialist on the other's domain is reported, too, to show that the domains differ.
"""

from __future__ import annotations

from typing import Any

from benchmarks.distill.place import Place, gap, told
from benchmarks.distill.stock import base, student

DOMAINS = {"sums": "chain:operations=+-,count=1000", "products": "chain:operations=*,count=1000"}


def measure(place: Place) -> dict[str, Any]:
    """Both specialists, the student's start and the student, on both domains."""
    specialists = {name: place.train(name, f"specialist-{name}", model=base(place)) for name in DOMAINS}
    settings = {"student": str(student(place)), "seed": place.seed}
    made = place.distill("specialists", "specialists", {**settings, "teacher": teachers(specialists)})
    models = {**specialists, "start": student(place), "student": made}
    found: dict[str, Any] = {}
    for domain, task in DOMAINS.items():
        answers = {who: place.answers(model, task) for who, model in models.items()}
        found[domain] = {
            **{who: told(one, place.seed) for who, one in answers.items()},
            "below_specialist": gap(answers["student"], answers[domain], place.seed),
        }
    return {**found, "cpu_seconds": {name: place.spent(name) for name in (*specialists, "specialists")}}


def teachers(specialists: dict[str, Any]) -> list[dict[str, str]]:
    """The tables [[teacher]] of the example, with the folders of this seed."""
    return [{"name": name, "model": str(model)} for name, model in specialists.items()]
