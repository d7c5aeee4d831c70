"""Which model answers: `auto` by how hard the client says the question is, and a fallback when a model cannot.

`auto` looks at the effort asked for, or the effort whose tokens cover the budget asked for, and takes the target the
operator named for the nearest level at or below it; without targets, the cheapest model up to medium, the dearest
above. A target may be a preset, so that effort picks model, mode and strategy at once.

A fallback answers when its model is down, is too slow (`fallback_after_s`), or has spent its tokens on thought and said
nothing, as long as nothing of an answer has been sent. It answers directly, with the sampling that was asked for, and
the reply says so: `ttc.fallback: {from, reason}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from serve.operator.config import ServeConfig
from serve.requests.errors import ApiError
from serve.requests.request import SearchWish, ServeRequest, ThinkingWish
from serve.requests.thinking import EFFORTS, UNLIMITED
from serve.running.catalogue import AUTO, Catalogue
from serve.running.plan import Plan

__all__ = ["OutOfBudget", "fallback_request", "reason_of", "route"]

UNSAID = "low"
"""The level of a request that says nothing of effort or budget."""
HARD = ("high", "xhigh", "max")


class OutOfBudget(ApiError):
    """The model spent its tokens on thought and has said nothing."""

    def __init__(self) -> None:
        super().__init__(503, "out_of_budget", "the model spent all tokens on thought, and its fallback cannot answer")


def route(request: ServeRequest, catalogue: Catalogue, config: ServeConfig) -> tuple[ServeRequest, Mapping[str, Any]]:
    """Return the request for the model that `auto` picks, and what the reply says of it; others pass unchanged."""
    if request.model != AUTO:
        return request, {}
    level = _level(request.thinking, config)
    target = _target(level, catalogue, config)
    return replace(request, model=target), {"routed": {"from": AUTO, "level": level, "to": target}}


def _level(wish: ThinkingWish, config: ServeConfig) -> str:
    if wish.budget == 0 or wish.enabled is False:
        return "none"
    if wish.budget is not None:
        covering = [
            level
            for level in EFFORTS[1:]
            if config.thinking.efforts[level] == UNLIMITED or 0 < wish.budget <= config.thinking.efforts[level]
        ]
        return covering[0] if wish.budget != UNLIMITED and covering else "max"
    return wish.effort or UNSAID


def _target(level: str, catalogue: Catalogue, config: ServeConfig) -> str:
    for lower in reversed(EFFORTS[: EFFORTS.index(level) + 1]):
        if lower in config.auto:
            return config.auto[lower]
    ranked = sorted(catalogue, key=lambda model: model.spec.cost)
    return ranked[-1 if level in HARD else 0].name


def reason_of(error: BaseException) -> str | None:
    """Why a fallback may answer in place of what raised `error`; None when it may not."""
    if isinstance(error, OutOfBudget):
        return "out_of_budget"
    if isinstance(error, ApiError):
        return {503: "unavailable", 504: "timeout"}.get(error.status)
    return None


def fallback_request(plan: Plan) -> ServeRequest | None:
    """The request as the fallback of the plan's model gets it; None where there is none, or several choices."""
    name = plan.model.spec.fallback
    if name is None or plan.request.num_choices > 1:
        return None
    wish = ThinkingWish(show=plan.request.thinking.show)
    return replace(plan.request, model=name, thinking=wish, search=SearchWish(seed=plan.seed))
