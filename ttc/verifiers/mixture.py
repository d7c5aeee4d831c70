"""Verifiers of a mixture of tasks: each answer is judged by that of the task which its problem came from.

    {"part": "sums", "target": "4"}          a target: the part, and what that part's verifier takes

What a verdict says is the part's own; its version names the verifiers of all parts. Cost: that of the part asked. Left
out: several verifiers for one answer (`composite`), which a part may be.

Args:
    parts: name of each part to a table of its verifier and, where it needs some, params.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ttc.config.choices import PartChoice
from ttc.config.registry import VERIFIERS
from ttc.core import Submission, TargetLike, Verdict, Verifier
from ttc.errors import ConfigError
from ttc.identity.digests import InnerPart, reads
from ttc.verifiers.shared.contract import Canary, Card, card_of


def _reads(*, parts: Mapping[str, Any], **_: object) -> list[InnerPart]:
    return [InnerPart(VERIFIERS, *_named(name, table)) for name, table in parts.items()]


@reads(_reads)
def mixture(*, parts: Mapping[str, Any]) -> MixtureVerifier:
    """Return the verifiers of the parts as one; raises ConfigError naming the part that is wrong."""
    if not parts:
        raise ConfigError("mixture: parts is empty")
    choices = {name: PartChoice.of(VERIFIERS, *_named(name, table)) for name, table in parts.items()}
    return MixtureVerifier({name: choice.create_verifier() for name, choice in choices.items()})


def _named(name: str, table: object) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(table, Mapping) or not set(table) <= {"verifier", "params"} or "verifier" not in table:
        raise ConfigError(f"mixture: parts.{name} must be a table of verifier and params, got {table!r}")
    return str(table["verifier"]), table.get("params", {})


class MixtureVerifier:
    """One verifier for each part; see the module."""

    name = "mixture"

    def __init__(self, verifiers: Mapping[str, Verifier]) -> None:
        """`verifiers` by the name of their part."""
        self._verifiers = dict(verifiers)
        rows = [(name, verifier.version) for name, verifier in self._verifiers.items()]
        self.version = f"mixture-1-{hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:8]}"
        self.card = self._card()

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Ask the verifier of the target's part; a target of none has no verdict."""
        try:
            verifier, own = self._of(target)
        except ConfigError as exc:
            return Verdict("error", reason=str(exc), version=self.version)
        return dataclasses.replace(await verifier.verify(own, submission), version=self.version)

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Raise ConfigError, naming `item`, for a target of no part, or one that its part cannot use."""
        verifier, own = self._of(target)
        verifier.check_gold(own, item)

    async def close(self) -> None:
        """Close every part."""
        await asyncio.gather(*(verifier.close() for verifier in self._verifiers.values()))

    def _of(self, target: TargetLike) -> tuple[Verifier, TargetLike]:
        name = target.get("part") if isinstance(target, Mapping) else None
        verifier = self._verifiers.get(name) if isinstance(name, str) else None
        if verifier is None or not isinstance(target, Mapping) or "target" not in target:
            known = ", ".join(self._verifiers)
            raise ConfigError(f"mixture: a target is an object of part (one of {known}) and target, got {target!r}")
        return verifier, target["target"]

    def _card(self) -> Card:
        cards = {name: card for name, verifier in self._verifiers.items() if (card := card_of(verifier)) is not None}
        canaries = [
            dataclasses.replace(canary, target={"part": name, "target": canary.target})
            for name, card in cards.items()
            for canary in card.canaries
        ]
        return Card(
            self.name,
            self.version,
            inputs="an object of part and target; "
            + "; ".join(f"{name}: {card.inputs}" for name, card in cards.items()),
            max_s=max((card.max_s for card in cards.values()), default=1.0),
            limits="; ".join(f"{name}: {card.limits}" for name, card in cards.items()) or "not declared",
            partial_credit="; ".join(f"{name}: {card.partial_credit}" for name, card in cards.items())
            or "not declared",
            correct_when="the verifier of the target's part says so",
            weaknesses=tuple(f"{name}: {text}" for name, card in cards.items() for text in card.weaknesses)
            or ("its parts declare none",),
            canaries=_both(canaries),
        )


def _both(canaries: list[Canary]) -> tuple[Canary, ...]:
    """The known cases of the parts; where they declare none, nothing is known and nothing is asked."""
    if not canaries:
        raise ConfigError("mixture: no part declares known cases (`ttc.verifiers.shared.contract.Card`)")
    return tuple(canaries)
