"""What every registered verifier declares and keeps."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.timing import patience
from tests.ttc.any_verifier import make
from tests.ttc.hostile import hostile_texts
from ttc.cli.cli import main
from ttc.config.registry import VERIFIERS
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError, MissingExtra
from ttc.verifiers.shared.contract import Canary, Card, card_of

HOSTILE = [text for name, text in hostile_texts().items() if len(text) < 20_000]
"""The small hostile texts; the fuzz run of benchmarks/ has all of them."""


@pytest.fixture
def verifier(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The verifier of the test's parameter; skips where an optional package is missing."""
    try:
        return make(request.param, tmp_path)
    except MissingExtra as exc:
        pytest.skip(str(exc))


every = pytest.mark.parametrize("verifier", VERIFIERS.names(), indirect=True, ids=str)


async def verdicts(verifier: Any, cases: list[tuple[Any, Submission]]) -> list[Verdict]:
    try:
        return list(await asyncio.gather(*(verifier.verify(target, submission) for target, submission in cases)))
    finally:
        await verifier.close()


def settled(verdict: Verdict) -> Verdict:
    return dataclasses.replace(verdict, seconds=0.0)


@every
def test_every_verifier_has_a_full_card(verifier: Any) -> None:
    card = card_of(verifier)
    assert card is not None
    assert (card.name, card.version) == (verifier.name, verifier.version)
    assert card.name in VERIFIERS.names()
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.version = "2"  # type: ignore[misc]


@every
def test_every_canary_gets_its_verdict_twice_and_in_any_order(verifier: Any) -> None:
    card = verifier.card
    cases = [(canary.target, canary.submission) for canary in card.canaries]
    found = asyncio.run(verdicts(verifier, [*cases, *reversed(cases)]))
    wanted = [canary.status for canary in card.canaries]
    assert [verdict.status for verdict in found] == [*wanted, *reversed(wanted)]
    forward, backward = found[: len(cases)], found[len(cases) :]
    assert [settled(verdict) for verdict in forward] == [settled(verdict) for verdict in reversed(backward)]
    assert all(verdict.version == card.version for verdict in found)


@every
def test_no_verifier_raises_on_hostile_text_or_targets(verifier: Any) -> None:
    target = verifier.card.canaries[0].target
    cases = [(target, Submission(text)) for text in HOSTILE[::9]]
    cases += [(hostile, Submission(verifier.card.canaries[0].text)) for hostile in (None, [], {"no": "field"}, 5, "")]
    found = asyncio.run(verdicts(verifier, cases))
    assert all(isinstance(verdict, Verdict) for verdict in found)
    assert max(verdict.seconds for verdict in found) < 2 * verifier.card.max_s * patience()


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


def test_the_list_of_verifiers_shows_each_card_or_why_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "verifiers"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("    card") == len(VERIFIERS.names())
    assert "correct  the one letter of the final answer is the target's" in shown
    assert "card: depends on spec" in shown
    assert "card: unavailable: verifier judge needs a model" in shown
    assert main(["list", "verifier", "choice", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["card"]["version"] == "choice-17"
    assert len(found["card"]["canaries"]) == 6
