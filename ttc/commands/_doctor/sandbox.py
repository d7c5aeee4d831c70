"""The sandbox: what contains programs of a model on this machine, shown by really trying it."""

from __future__ import annotations

from ttc.commands._doctor.check import Check
from ttc.errors import ConfigError

__all__ = ["sandbox"]


def sandbox() -> list[Check]:
    """Run the canary program of the first tier that works here."""
    from ttc.sandbox.probe import probe

    try:
        tier = probe(unsafe=False)
    except ConfigError as exc:
        return [Check("sandbox", "programs", "missing", str(exc), None)]
    return [Check("sandbox", "programs", "ok", f"contained by {tier.label}")]
