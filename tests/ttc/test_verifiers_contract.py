"""What every registered verifier declares and keeps."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from tests.ttc.hostile import hostile_texts
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError, MissingExtra
from ttc.registry import VERIFIERS
from ttc.verifiers.contract import Canary, Card, card_of

HOSTILE = [text for name, text in hostile_texts().items() if len(text) < 20_000]
"""The small hostile texts; the fuzz run of benchmarks/ has all of them."""


def make(name: str) -> Any:
    """A verifier with its defaults; skips where it needs a model, or a package that is not installed."""
    described = VERIFIERS.describe(name)
    if described.takes_model or any(parameter.required for parameter in described.parameters):
        pytest.skip(f"{name} is made with more than its defaults; its own tests check its card")
    try:
        return VERIFIERS.load(name)()
    except MissingExtra as exc:
        pytest.skip(str(exc))


async def verdicts(verifier: Any, cases: list[tuple[Any, Submission]]) -> list[Verdict]:
    try:
        return list(await asyncio.gather(*(verifier.verify(target, submission) for target, submission in cases)))
    finally:
        await verifier.close()


def settled(verdict: Verdict) -> Verdict:
    return dataclasses.replace(verdict, seconds=0.0)


@pytest.mark.parametrize("name", VERIFIERS.names())
def test_every_verifier_has_a_full_card(name: str) -> None:
    verifier = make(name)
    card = card_of(verifier)
    assert card is not None
    assert (card.name, card.version) == (verifier.name, verifier.version)
    assert name == card.name
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.version = "2"  # type: ignore[misc]


@pytest.mark.parametrize("name", VERIFIERS.names())
def test_every_canary_gets_its_verdict_twice_and_in_any_order(name: str) -> None:
    verifier = make(name)
    card = verifier.card
    cases = [(canary.target, canary.submission) for canary in card.canaries]
    found = asyncio.run(verdicts(verifier, [*cases, *reversed(cases)]))
    wanted = [canary.status for canary in card.canaries]
    assert [verdict.status for verdict in found] == [*wanted, *reversed(wanted)]
    forward, backward = found[: len(cases)], found[len(cases) :]
    assert [settled(verdict) for verdict in forward] == [settled(verdict) for verdict in reversed(backward)]
    assert all(verdict.version == card.version for verdict in found)


@pytest.mark.parametrize("name", VERIFIERS.names())
def test_no_verifier_raises_on_hostile_text_or_targets(name: str) -> None:
    verifier = make(name)
    target = verifier.card.canaries[0].target
    cases = [(target, Submission(text)) for text in HOSTILE[::9]]
    cases += [(hostile, Submission(verifier.card.canaries[0].text)) for hostile in (None, [], {"no": "field"}, 5, "")]
    found = asyncio.run(verdicts(verifier, cases))
    assert all(isinstance(verdict, Verdict) for verdict in found)
    assert max(verdict.seconds for verdict in found) < 2 * verifier.card.max_s


CARD: dict[str, Any] = {
    "name": "x",
    "version": "1",
    "inputs": "a text",
    "max_s": 1.0,
    "limits": "none",
    "partial_credit": "none",
    "correct_when": "equal",
    "weaknesses": ("all",),
    "canaries": (Canary("a", "a", "correct"), Canary("a", "b", "incorrect")),
}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weaknesses", (), "weaknesses is empty"),
        ("limits", "", "limits is empty"),
        ("max_s", float("inf"), "max_s must be"),
        ("max_s", -1.0, "max_s must be"),
        ("canaries", (Canary("a", "a", "correct"),), "canaries must show"),
    ],
)
def test_a_card_that_says_nothing_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Card(**{**CARD, field: value})
