"""What only some engines honour: fields of a draw beyond `Sampling`, and how an engine says which of them it takes.

An engine lists the names of the fields in `extras` of its capabilities; whoever sets one looks there first and refuses
by name, since an engine ignores what it does not know. Sessions, strategies and thinking control pass them on as they
are. Cost: penalties and `top_logprobs` are passes over the vocabulary for every token.

Presence and frequency penalties count the tokens of one request: a draw that is continued (by a search, or after its
thought was cut) would count anew.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

from ttc.core import Capabilities, Completion, Sampling

__all__ = ["PENALTIES", "ExtraCapabilities", "ExtraCompletion", "ExtraSampling", "Top", "extras_of", "with_extra"]

Top: TypeAlias = tuple[tuple[int, float], ...]
"""The likeliest ids of one position with their log-probabilities in nats, the likeliest first."""

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ExtraSampling(Sampling):
    """`presence_penalty` and `frequency_penalty` lie in [-2, 2], `repetition_penalty` is > 0 and 1 is none.

    `top_logprobs` asks for so many of the likeliest tokens of each position; draws with another `cache_salt` share no
    cached prefix; `thinking_cap` is a cap on thinking that the engine is to hold itself, in tokens.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    top_logprobs: int = 0
    cache_salt: str | None = None
    thinking_cap: int | None = None


@dataclass(frozen=True, slots=True)
class ExtraCompletion(Completion):
    """`top_logprobs` aligns with `token_ids`."""

    top_logprobs: tuple[Top, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtraCapabilities(Capabilities):
    """`extras` names the fields of `ExtraSampling` that the engine honours."""

    extras: frozenset[str] = frozenset()


def with_extra(capabilities: Capabilities, name: str) -> ExtraCapabilities:
    """`capabilities` with one more extra."""
    known = {field.name: getattr(capabilities, field.name) for field in fields(Capabilities)}
    return ExtraCapabilities(**known, extras=extras_of(capabilities) | {name})


def extras_of(capabilities: Capabilities) -> frozenset[str]:
    """The fields of `ExtraSampling` that an engine honours; none for most."""
    return capabilities.extras if isinstance(capabilities, ExtraCapabilities) else frozenset()
