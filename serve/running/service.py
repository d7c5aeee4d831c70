"""The service: plans and admits requests; knows what runs and when to stop.

The model `auto` takes the requested effort, or the lowest effort whose tokens cover the requested budget, and chooses
the target that the operator named for the nearest level at or below it; without targets, the cheapest model up to
medium and the most expensive one above. A target may be a preset, so effort can pick model, mode and strategy at once.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from serve.operator.config import ModelSpec, ServeConfig
from serve.operator.keys import Key, KeyRing
from serve.operator.metrics import Labels, RequestSpan, ServerMetrics
from serve.requests.errors import ApiError, unavailable
from serve.requests.fields import ServeRequest
from serve.requests.search import NOT_SERVED, ServedStrategies
from serve.requests.thinking import EFFORTS, UNLIMITED, ThinkingRequest
from serve.running.active import ActiveRequest, tokens_left
from serve.running.admission import Admission, FairGate
from serve.running.catalogue import AUTO, Catalogue
from serve.running.plan import RequestPlan, count_prompt, make_plan
from serve.running.quotas import FREE, Expense, Quotas
from serve.running.support import DIRECT, passes_effort
from ttc.errors import ConfigError, UnknownName

_ENDING_S = 5.0
"""Seconds that stopped requests may take to end."""
NOTICE_S = 5.0
"""Seconds for which a server that shuts down still accepts requests while any runs: load balancers notice late."""


class InferenceService:
    """Plans, admits and runs requests."""

    def __init__(self, config: ServeConfig, catalogue: Catalogue, quotas: Quotas | None = None) -> None:
        """Serve the loaded models of `catalogue`; `quotas` are those of this process where none are given.

        Raises ConfigError for a preset that could never run.
        """
        self.config, self.catalogue = config, catalogue
        self.offers = check_presets(config, {model.name: tuple(model.scorers) for model in catalogue})
        self.admission = Admission(config.limits.max_sequences, quotas)
        self.keys = KeyRing(config.keys)
        self.leaving = self.draining = False
        self._until = 0.0
        self._jobs: set[ActiveRequest] = set()
        self.metrics = ServerMetrics(self._gauges())
        for model in catalogue:
            model.gate.tell = functools.partial(self.metrics.waited, model.name)

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self._jobs

    async def open(
        self, request: ServeRequest, key: Key, name: str, headers: Mapping[str, str] | None = None
    ) -> ActiveRequest:
        """Check and admit a request; `headers` may hold its trace. Raises ApiError: 400, 404, 503 or 429."""
        routed, notes = route(request, self.catalogue, self.config)
        plan = await self.plan(routed, key)
        if self.draining:
            left_s = max(self._until - time.monotonic(), 1.0)
            raise unavailable("draining", "the server is shutting down", retry_after_s=left_s)
        most, least = (0, 1) if key.limits.tokens_per_minute is None else (self._most_tokens(plan), plan.least_tokens)
        cost = FREE if key.limits.budget is None else self._cost(plan)
        is_wide = plan.sequences > 1
        ticket = await self.admission.admit(key, plan.at_once, search=is_wide, most=most, least=least, cost=cost)
        if not (ticket.is_whole and plan.is_bounded):  # a budget beside a whole reservation would stop a search early,
            plan = plan.within(tokens_left(ticket, plan))  # since each path must be able to pay for its whole scoring
        job = ActiveRequest(self, plan, ticket, name, RequestSpan(plan.model.name, plan.strategy, headers or {}), notes)
        self._jobs.add(job)
        return job

    def _most_tokens(self, plan: RequestPlan) -> int:
        """What a request may spend at most, with every fallback that may answer for it."""
        return plan.most_tokens + len(self._fallbacks(plan)) * (plan.num_prompt + self._each(plan))

    def _cost(self, plan: RequestPlan) -> Expense:
        """The money for that, and for the least that has an answer."""
        read, own = plan.num_prompt, plan.model.spec
        most = own.most_price(read, plan.most_tokens - read)
        most += sum(spec.most_price(read, self._each(plan)) for spec in self._fallbacks(plan))
        return Expense(most, own.price(read, plan.least_tokens - read))

    def _each(self, plan: RequestPlan) -> int:
        """Most tokens that a fallback may draw."""
        limits = self.config.limits
        return plan.request.sampling.max_tokens or min(limits.default_max_tokens, limits.max_tokens)

    def _fallbacks(self, plan: RequestPlan) -> list[ModelSpec]:
        """The models that may answer in place of the plan's, one after another."""
        chain = [plan.model.spec]
        while (name := chain[-1].fallback) is not None and plan.request.num_replies == 1:
            spec = self.catalogue.find(name)[0].spec
            if spec in chain:
                break
            chain.append(spec)
        return chain[1:]

    async def plan(self, request: ServeRequest, key: Key) -> RequestPlan:
        """Check a request for a model that is named; raises ApiError."""
        return await make_plan(request, key, self.catalogue, self.offers, self.config)

    async def count(self, request: ServeRequest) -> int:
        """How many tokens the prompt of `request` has; raises ApiError."""
        routed, _ = route(request, self.catalogue, self.config)
        return await count_prompt(routed, self.catalogue, self.config)

    def forget(self, job: ActiveRequest) -> None:
        """Remove a job that has ended."""
        self._jobs.discard(job)
        self.metrics.finished(job.finished())

    def _gauges(self) -> dict[str, tuple[str, Callable[[], dict[Labels, float]]]]:
        def per_model(read: Callable[[FairGate], int]) -> Callable[[], dict[Labels, float]]:
            return lambda: {(("model", model.name),): read(model.gate) for model in self.catalogue}

        return {
            "ttc_num_requests_running": ("Requests admitted.", lambda: {(): self.admission.requests}),
            "ttc_num_sequences_running": ("Draws in the engine.", per_model(lambda gate: gate.held)),
            "ttc_num_sequences_waiting": ("Draws that wait for a slot.", per_model(lambda gate: gate.num_waiting)),
            "ttc_upstreams_healthy": (
                "Upstream servers that have not failed.",
                lambda: {(("model", name),): servers.num_healthy for name, servers in self.catalogue.upstreams.items()},
            ),
            "ttc_upstream_retries_total": (
                "Requests sent to an upstream server again, by what had failed.",
                lambda: {
                    (("model", name), ("reason", reason)): count
                    for name, servers in self.catalogue.upstreams.items()
                    for reason, count in servers.retried.counts.items()
                },
            ),
            "ttc_draining": ("Whether the server is shutting down.", lambda: {(): self.leaving}),
        }

    async def drain(self, hurried: asyncio.Event | None = None, notice_s: float = 0.0) -> None:
        """Take nothing new, let what runs finish until the deadline or until `hurried` is set, then abort it.

        For `notice_s`, at most half of that time, it takes what comes while anything runs.
        """
        begun, drain_s = time.monotonic(), self.config.limits.drain_s
        self.leaving, self._until = True, begun + drain_s
        await self._until_idle(begun + min(notice_s, drain_s / 2), hurried)
        self.draining = True
        await self._until_idle(self._until, hurried)
        for job in list(self._jobs):
            job.stop(unavailable("shutting_down", "the server is shutting down", retry_after_s=_ENDING_S))
        await self._until_idle(time.monotonic() + _ENDING_S)

    async def _until_idle(self, deadline: float, hurried: asyncio.Event | None = None) -> None:
        while self._jobs and time.monotonic() < deadline and not (hurried and hurried.is_set()):
            await asyncio.sleep(0.02)


def check_presets(config: ServeConfig, scorers: Mapping[str, Sequence[str]]) -> ServedStrategies:
    """The strategies of this server; `scorers` are the names of each model's. No model is needed for it.

    Raises:
        ConfigError: a strategy that is not installed or not served, none for requests that name none, or a preset that
            would be refused every time.
    """
    offers = ServedStrategies(
        config.strategies, {name for names in scorers.values() for name in names}, config.limits.max_width
    )
    for name in config.strategies or ():
        if name in NOT_SERVED:
            raise ConfigError(f"strategies: {name} is not served, leave it out: {NOT_SERVED[name]}")
    if DIRECT not in offers:
        raise ConfigError("strategies must include direct, which answers requests that name none")
    for preset in config.presets:
        own = scorers[preset.model]
        if preset.strategy not in offers:
            raise UnknownName(f"strategy of presets.{preset.name}", preset.strategy, offers.names)
        offer = offers[preset.strategy]
        if offer.needs_scorer and not own:
            raise ConfigError(f"presets.{preset.name}: {preset.strategy} needs a scorer, and {preset.model} has none")
        if preset.scorer is not None and preset.scorer not in own:
            raise UnknownName(f"scorer of presets.{preset.name}", preset.scorer, own)
        try:
            arguments = offer.bind(preset.params, None)
        except ApiError as exc:
            raise ConfigError(f"presets.{preset.name}: {exc.message.replace('ttc.', '')}") from exc
        if preset.temperature == 0 and offer.width(arguments) > 1:
            raise ConfigError(f"presets.{preset.name}.temperature = 0 makes all draws of {preset.strategy} equal")
    return offers


UNSAID = "low"
"""The level of a request with neither effort nor budget."""
HARD = ("high", "xhigh", "max")


def route(request: ServeRequest, catalogue: Catalogue, config: ServeConfig) -> tuple[ServeRequest, Mapping[str, Any]]:
    """Return the request for the model that `auto` picks, and what the reply says of it; others pass unchanged."""
    if request.model != AUTO:
        return request, {}
    level = _level(request.thinking, config)
    target = _target(level, catalogue, config)
    model, preset = catalogue.find(target)
    if preset is not None and level != "none" and not passes_effort(preset.strategy, model):
        request = replace(request, thinking=replace(request.thinking, effort=None))  # which has picked the preset
    return replace(request, model=target), {"routed": {"from": AUTO, "level": level, "to": target}}


def _level(wish: ThinkingRequest, config: ServeConfig) -> str:
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
