"""Thinking parameters: every spelling that clients use, one meaning, and what this server makes of it.

`ThinkingFields` holds the spellings, `read_thinking` brings them together and refuses contradictions by name, `settle`
applies the server's table of efforts, its ceiling and the reserve of tokens for the answer. Enforcement is not here:
`ttc.session.thinking` counts token ids. A number beats an effort; effort "none", a budget of 0 and a switch that is off
are the same thing, and contradict anything that asks for thought.

    budget = min(asked or table[effort], ceiling, max_tokens - reserve)

The reserve is a share of max_tokens, so it neither vanishes nor pins long answers, and at least what the hand-over and
one token of an answer take: whoever receives the hand-over pays for it, so max_tokens counts it. Default efforts are
those of a context of 40,960 tokens; on a smaller one they shrink in proportion, so that no two of them are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Le
from pydantic import Field

from serve.requests.body import WHOLE, RequestBody
from serve.requests.errors import ApiError, agreed, invalid, unsupported
from ttc.core import Capabilities
from ttc.errors import ConfigError
from ttc.session.thinking import CLOSE, Thinking, check_markers

BUDGETS = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "max_thinking_tokens")
UNLIMITED = -1
CONFLICT = "conflicting_thinking"
"""The error code of fields that exclude each other."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[str, ...] = get_args(Effort)
EFFORT_CONTEXT = 40_960
DEFAULT_EFFORTS: Mapping[str, int] = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 32768,
    "max": UNLIMITED,
}
"""Tokens of thought on a context of EFFORT_CONTEXT or more."""
ThoughtTokens = Annotated[int, Ge(UNLIMITED), Le(1 << 31), WHOLE]
_TYPES = {"enabled": True, "disabled": False}
_SAME = "The same as thinking_budget."


class TemplateOptions(RequestBody):
    """`chat_template_kwargs`: the switch by its names in chat templates."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ThinkingMode(RequestBody):
    """`thinking`, as Anthropic spells it."""

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: ThoughtTokens | None = None


class ThinkingConfig(RequestBody):
    """`thinking_config`, as Google spells it."""

    thinking_budget: ThoughtTokens | None = None
    include_thoughts: bool | None = None


class ReasoningOptions(RequestBody):
    """`reasoning`, as OpenAI and OpenRouter spell it."""

    effort: Effort | None = None
    max_tokens: ThoughtTokens | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ThinkingFields(RequestBody):
    """The fields that control thinking, under every name."""

    reasoning_effort: Effort | None = Field(None, description="How much to think; none is the no-think mode.")
    thinking_budget: ThoughtTokens | None = Field(
        None, description="Most tokens of thought; 0 closes it at once, -1 is unlimited."
    )
    thinking_token_budget: ThoughtTokens | None = Field(None, description=_SAME)
    thinking_budget_tokens: ThoughtTokens | None = Field(None, description=_SAME)
    max_thinking_tokens: ThoughtTokens | None = Field(None, description=_SAME)
    min_thinking_tokens: Annotated[int, Ge(0), Le(1 << 31), WHOLE] | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool | None = Field(None, description="false hides the thought, its ids and log-probabilities.")
    chat_template_kwargs: TemplateOptions | None = None
    thinking: ThinkingMode | None = None
    thinking_config: ThinkingConfig | None = None
    reasoning: ReasoningOptions | None = None


@dataclass(frozen=True, slots=True)
class ThinkingRequest:
    """How to think. `budget` -1 is unlimited; `show` returns the thought.

    `budget_field` and `effort_field` are the names the client used, for messages.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    min_tokens: int = 0
    show: bool = True
    budget_field: str = "thinking_budget"
    effort_field: str = "reasoning_effort"


def laid_over(default: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    """The default table with an operator's own entries; the others keep between those, so that the table still rises.

    Raises:
        ConfigError: his own do not rise.
    """
    _check_rising(own)
    caps = {name: _cap(tokens) for name, tokens in {**default, **own}.items()}
    for number, name in enumerate(EFFORTS):
        if name in caps and name not in own:
            low = max((caps[lower] for lower in EFFORTS[:number] if lower in own), default=1)
            high = min((caps[higher] for higher in EFFORTS[number:] if higher in own), default=math.inf)
            caps[name] = max(min(caps[name], high), low, 1)
    return {name: UNLIMITED if tokens == math.inf else int(tokens) for name, tokens in caps.items()}


def _cap(tokens: int) -> float:
    return math.inf if tokens == UNLIMITED else tokens


def _check_rising(efforts: Mapping[str, int]) -> None:
    """Refuse a higher effort of fewer tokens: a budget is routed by the least effort that covers it."""
    caps = {name: _cap(tokens) for name, tokens in efforts.items()}
    for lower, higher in pairwise(name for name in EFFORTS if name in caps):
        if caps[lower] > caps[higher]:
            raise ConfigError(
                f"thinking.efforts.{lower} = {efforts[lower]} is above thinking.efforts.{higher} = {efforts[higher]}: "
                "a higher effort has as many tokens or more"
            )


@dataclass(frozen=True, slots=True)
class ThinkingPolicy:
    """The operator's side: efforts in tokens (-1: no cap but the reserve), a ceiling, the answer's share of max_tokens.

    `default_effort` is for requests that say nothing; None leaves it to the chat template. `handover` is the sentence
    put where a thought is cut (None: the model's own); it must contain the closing marker. `open` and `close` are the
    markers of models whose tokenizer has none, so that these think too (see `serve.running.catalogue`).
    """

    efforts: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_EFFORTS))
    default_effort: str | None = None
    max_thinking_tokens: int | None = None
    reserve_share: float = 0.25
    handover: str | None = None
    open: str | None = None
    close: str | None = None

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        names = set(EFFORTS) - {"none"}
        if set(self.efforts) != names:
            raise ConfigError(f"thinking.efforts must name {', '.join(sorted(names))}, got {sorted(self.efforts)}")
        for name, value in self.efforts.items():
            if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != UNLIMITED):
                raise ConfigError(f"thinking.efforts.{name} must be a number of tokens >= 1, or -1, got {value!r}")
        _check_rising(self.efforts)
        if self.default_effort is not None and self.default_effort not in EFFORTS:
            raise ConfigError(f"thinking.default_effort must be one of {', '.join(EFFORTS)}")
        if self.max_thinking_tokens is not None and self.max_thinking_tokens < 1:
            raise ConfigError(f"thinking.max_thinking_tokens must be >= 1, got {self.max_thinking_tokens}")
        if not 0 <= self.reserve_share < 1:
            raise ConfigError(f"thinking.reserve_share must lie in [0, 1), got {self.reserve_share}")
        check_markers("thinking", self.open, self.close)
        if self.handover is not None and (self.close or CLOSE) not in self.handover:
            raise ConfigError(f"thinking.handover must contain the end-of-thinking marker {self.close or CLOSE}")

    def reserve(self, max_tokens: int, ends: Sequence[int]) -> int:
        """Tokens of `max_tokens` that thought may not take; `ends` are lengths of what may end it, the best first."""
        least = next((length + 1 for length in ends if length + 1 < max_tokens), 0)
        return max(round(max_tokens * self.reserve_share), least)

    def efforts_on(self, max_context: int) -> dict[str, int]:
        """The table for a model of that context; what the operator has set himself stays as it is."""
        share = min(max_context / EFFORT_CONTEXT, 1.0)
        return {
            name: max(round(value * share), 1) if value == DEFAULT_EFFORTS[name] and value != UNLIMITED else value
            for name, value in self.efforts.items()
        }


def read_thinking(body: ThinkingFields) -> ThinkingRequest:
    """Bring the spellings of `body` together; raises ApiError naming two that contradict each other."""
    budgets = (*BUDGETS, "reasoning.max_tokens", "thinking.budget_tokens", "thinking_config.thinking_budget")
    templates = ("chat_template_kwargs.enable_thinking", "chat_template_kwargs.thinking")
    switches = _spelled(body, "enable_thinking", *templates, "reasoning.enabled")
    kinds = _spelled(body, "thinking.type")
    switches |= {name: _TYPES[kind] for name, kind in kinds.items() if kind in _TYPES}
    shows = _spelled(body, "include_reasoning", "thinking_config.include_thoughts")
    hides = {name: not value for name, value in shows.items()} | _spelled(body, "reasoning.exclude")
    budget_field, budget = agreed(_spelled(body, *budgets), CONFLICT)
    effort_field, effort = agreed(_spelled(body, "reasoning_effort", "reasoning.effort"), CONFLICT)
    switch, enabled = agreed(switches, CONFLICT)
    _, hidden = agreed(hides, CONFLICT)
    wish = ThinkingRequest(
        enabled=enabled,
        effort=effort,
        budget=budget,
        min_tokens=body.min_thinking_tokens or 0,
        show=not hidden,
        budget_field=budget_field or "thinking_budget",
        effort_field=effort_field or "reasoning_effort",
    )
    _check(wish, switch)
    return wish


def _spelled(body: ThinkingFields, *paths: str) -> dict[str, Any]:
    """The values that the client sent at these paths, by path."""
    values = {}
    for path in paths:
        value: Any = body
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        if value is not None:
            values[path] = value
    return values


def _check(wish: ThinkingRequest, switch: str) -> None:
    """Refuse a request that both switches thinking off and asks for it."""
    offs = {
        switch: wish.enabled is False,
        f"{wish.effort_field} = 'none'": wish.effort == "none",
        f"{wish.budget_field} = 0": wish.budget == 0,
    }
    wants = {
        wish.budget_field: wish.budget not in (None, 0),
        "min_thinking_tokens": wish.min_tokens > 0,
        switch: wish.enabled is True,
        wish.effort_field: wish.effort not in (None, "none") and wish.budget != 0,  # a number beats an effort
    }
    off = next((name for name, applies in offs.items() if applies), None)
    on = next((name for name, applies in wants.items() if applies), None)
    if off is not None and on is not None:
        raise invalid(on, f"{on} asks for thought, but {off} switches it off: send one", CONFLICT)
    if wish.budget is not None and 0 < wish.budget < wish.min_tokens:
        text = f"min_thinking_tokens = {wish.min_tokens} exceeds {wish.budget_field} = {wish.budget}"
        raise invalid("min_thinking_tokens", text, CONFLICT)


@dataclass(frozen=True, slots=True)
class ThinkingPlan:
    """How this request thinks: the control, and what the reply reports about it."""

    control: Thinking
    requested: int | None = None
    reserve: int = 0
    effort: str | None = None


def settle(
    wish: ThinkingRequest,
    policy: ThinkingPolicy,
    capabilities: Capabilities,
    max_tokens: int,
    *,
    raw: bool = False,
    opened: bool = False,
    name: str | None = None,
    length_field: str = "max_tokens",
    ends: Callable[[], Sequence[int]] = tuple,
) -> ThinkingPlan:
    """Apply the operator's policy to what the client asked.

    `raw` is for prompts without a chat template; `opened` says that the prompt, rendered without any wish, ends inside
    a think block: only then is a reserve kept for requests that say nothing of thinking. `name` is the model's public
    one, for messages (absent: the engine's). `ends` are those of `ThinkingPolicy.reserve`.

    Raises:
        ApiError: the model does not think, cannot be held to a budget, or the number is above the ceiling.
    """
    explicit = wish.effort is not None or wish.budget is not None or wish.enabled is not None or wish.min_tokens > 0
    effort = wish.effort if explicit else policy.default_effort
    if effort == "none" or wish.enabled is False or wish.budget == 0:
        return _off(wish, capabilities, effort, raw=raw, explicit=explicit)
    if not (explicit or effort is not None or opened):
        return ThinkingPlan(Thinking())
    if not _countable(wish, capabilities, name or capabilities.model):
        return ThinkingPlan(
            Thinking(mode="on") if not capabilities.token_ids and not raw else Thinking(), effort=effort
        )
    ceiling = policy.max_thinking_tokens
    if wish.budget is not None and ceiling is not None and wish.budget > ceiling:
        name = wish.budget_field
        raise invalid(name, f"{name} = {wish.budget} exceeds this server's ceiling of {ceiling}", "budget_too_large")
    request = (
        wish.budget
        if wish.budget is not None or effort is None
        else policy.efforts_on(capabilities.max_context)[effort]
    )
    reserve = 0 if wish.budget == UNLIMITED else policy.reserve(max_tokens, ends())
    limits = [ceiling, max_tokens - reserve if reserve else None, None if request == UNLIMITED else request]
    caps = [limit for limit in limits if limit is not None]
    cap = max(min(caps), 1) if caps else None
    room, length = max_tokens - max(reserve, 1), f"{length_field} = {max_tokens}"
    if wish.min_tokens > room:
        raise _too_much(wish, room, length)
    if cap is not None and wish.min_tokens > cap:
        asked = f"{wish.effort_field} = {effort!r}" if wish.budget is None else f"{wish.budget_field} = {wish.budget}"
        raise _too_much(wish, cap, "this server's ceiling" if cap == ceiling else asked)
    control = Thinking(
        mode="auto" if raw else "on", max_tokens=cap, min_tokens=wish.min_tokens, handover=policy.handover
    )
    return ThinkingPlan(control, request, reserve, effort)


def _too_much(wish: ThinkingRequest, left: int, owner: str) -> ApiError:
    """The refusal of a minimum of thought above what `owner` leaves."""
    tokens = f"{left} token{'' if left == 1 else 's'} of thought"
    text = f"min_thinking_tokens = {wish.min_tokens} exceeds the {tokens} that {owner} leaves"
    return invalid("min_thinking_tokens", text, CONFLICT)


def _off(
    wish: ThinkingRequest, capabilities: Capabilities, effort: str | None, *, raw: bool, explicit: bool
) -> ThinkingPlan:
    """No thought: the template's own switch, where there is a template and a thought to switch off."""
    if raw and explicit:
        name = wish.budget_field if wish.budget == 0 else wish.effort_field
        raise unsupported(
            name, f"{name}: a raw prompt has no template that could switch thinking off; leave it out, or use a chat"
        )
    thinks = bool(capabilities.think_close) or not capabilities.token_ids
    return ThinkingPlan(Thinking(mode="off" if thinks and not raw else "auto"), wish.budget, 0, effort)


def _countable(wish: ThinkingRequest, capabilities: Capabilities, model: str) -> bool:
    """Whether tokens of thought can be counted; raises for a wish that the model cannot meet."""
    if capabilities.token_ids and capabilities.think_close:
        return True
    counted = wish.budget_field if wish.budget is not None else "min_thinking_tokens" if wish.min_tokens else None
    name = counted
    if capabilities.token_ids:
        why = "has no thinking markers, so it does not think: leave it out; an operator can set thinking.open, .close"
        name = counted or (
            wish.effort_field if wish.effort is not None else "enable_thinking" if wish.enabled else None
        )
    else:
        why = f"takes no token ids, so its thinking cannot be counted: leave it out, or send {wish.effort_field}"
    if name is not None:
        raise unsupported(name, f"{name}: {model} {why}")
    return False
