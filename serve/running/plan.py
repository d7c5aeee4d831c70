"""From a request to a plan: every check that can be made before a token is spent, and every default filled in.

The body comes before the preset, and the preset before the server's defaults. What comes out can run as it is; what
cannot run is refused here, by field, so that a bad request never waits in a queue. What strategies, engines and
upstream servers honour is in `serve.running.support`, how prompts are rendered in `serve.running.prompts`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serve.operator.config import PresetSpec, ServeConfig, ServeLimits
from serve.operator.keys import Key
from serve.requests.body import shown
from serve.requests.errors import invalid, unsupported
from serve.requests.fields import ServeRequest
from serve.requests.search import ProgressLevel, ServedStrategies, ServedStrategy
from serve.requests.thinking import ThinkingPlan
from serve.requests.tools import FormReader
from serve.running.catalogue import Catalogue, ServedModel
from serve.running.events import ledger
from serve.running.prompts import for_prefill, num_prompt_tokens, sampling_of, settle_prompts
from serve.running.support import (
    DIRECT,
    check_form,
    check_forward,
    check_strategy,
    left_to_upstream,
    with_extras,
)
from serve.running.watch import CHARS_OF_TOKEN
from ttc.answers.kinds import kind_of
from ttc.config.values import counted
from ttc.core import Answer, AnswerReader, Budget, Price, PricedScorer, Problem, Prompt, Sampling, Usage
from ttc.session.session import Session
from ttc.session.thinking import Thinking

SEED_BITS = 53
"""Seeds are returned as JSON numbers, which many clients read as doubles."""
QUESTION = 200
"""Tokens of what a strategy's own question says beside the problem and the texts that it shows."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """A request bound to a model, a strategy and limits.

    `sequences` is how many draws it may make, `at_once` how many of them may run together; `added` is most characters
    that its strategy adds to its replies, None if it adds none.
    """

    request: ServeRequest
    model: ServedModel
    key: Key
    strategy: str
    params: Mapping[str, Any]
    call: Callable[[Problem, Session], Awaitable[Answer]]
    sampling: Sampling
    settled: ThinkingPlan
    budget: Budget
    seed: int
    answer_kind: str
    answers: AnswerReader
    progress: ProgressLevel
    prompts: tuple[Prompt, ...]
    sequences: int
    at_once: int
    added: int | None
    questions: tuple[int, int] = (0, 0)
    """Most that its strategy asks by itself, and how many of its texts each shows."""
    scorer: object | None = None
    ranks: bool = False
    """Whether its strategy cannot do without the scorer."""
    prepaid: int | None = None
    """Tokens that a key has reserved for one choice beyond its budget and its prompt."""
    adjusted: Mapping[str, Any] = field(default_factory=dict)
    """Values used instead of requested ones, by field: the preset's, or what a quota or a fallback's context leaves."""

    @property
    def direct(self) -> bool:
        """Whether each choice is one draw, which can be streamed as it is sampled."""
        return self.strategy == DIRECT

    @property
    def max_ids(self) -> int | None:
        """Most tokens of a draw, what thinking control puts in included; None where its strategy adds text."""
        return self.sampling.max_tokens if self.added is None else None

    @property
    def most_tokens(self) -> int:
        """Most tokens it may spend: its prompt, its draws and as many again or their scoring; or its budget.

        Questions of the strategy's own are draws, too, each with a prompt that is read beside the budget, as is the
        text that it adds.
        """
        longest, drawn = self.sampling.max_tokens, self.sequences * self.sampling.max_tokens
        if self.direct:
            return self.num_prompt + drawn
        num_questions, num_shown = self.questions
        whole = (self.budget.tokens or 0) * self.request.num_replies
        read = num_questions * (self.num_prompt + min(num_shown * longest, whole) + QUESTION)
        read += (self.added or 0) * self.request.num_replies // CHARS_OF_TOKEN
        return self.num_prompt + read + min(drawn + max(drawn, self._scoring(drawn)) + num_questions * longest, whole)

    @property
    def least_tokens(self) -> int:
        """Its prompt, and what each choice needs, or each draw where an upstream server makes all at once."""
        num_answers = self.sequences if self.request.forward else self.request.num_replies
        return self.num_prompt + num_answers * (self.settled.control.min_tokens + 1)

    def _scoring(self, drawn: int) -> int:
        """Most tokens that its scorer takes for so many tokens of its draws, and for its prompt, once."""
        price = self._price
        return price.fixed * self.request.num_replies + price.per_token * drawn + price.per_draw * self.sequences

    @property
    def _price(self) -> Price:
        """That of its scorer; of one that states none, an estimate."""
        if self.scorer is None:
            return Price()
        if isinstance(self.scorer, PricedScorer):
            return self.scorer.price(replace(self.prompts[0], messages=self.request.messages))
        return Price(fixed=self.num_prompt, per_token=1)

    @property
    def is_bounded(self) -> bool:
        """Whether draws and scores alone keep it below `most_tokens`: the scorer has a price, once for each token."""
        return self.direct or (self.ranks and isinstance(self.scorer, PricedScorer) and not self._price.per_draw)

    @property
    def tells_prompt(self) -> bool:
        """Whether its own prompt is scored, for the log-probabilities of an echo, and nothing of a search."""
        return self.direct and self.request.echo and self.request.logprobs

    @property
    def counts_prompt(self) -> bool:
        """Whether the tokens of the prompt are counted here, and not by an upstream server."""
        return bool(self.prompts) and self.prompts[0].token_ids is not None

    @property
    def num_prompt(self) -> int:
        """Tokens of its prompts, each once; for an upstream server an estimate, once for each request to it."""
        if self.counts_prompt:
            return sum(len(prompt.token_ids or ()) for prompt in self.prompts)
        text = json.dumps(self.request.forward, ensure_ascii=False) if self.request.forward else self.prompts[0].text
        return self.sequences * (len(text) // CHARS_OF_TOKEN)

    def prepaid_for(self, index: int) -> int | None:
        """Tokens that choice `index` may take beside its budget: for prompts, and for text that nobody samples."""
        ids = self.prompts[index // self.request.num_choices].token_ids
        own = self.num_prompt // self.request.num_replies if ids is None else len(ids)
        return None if self.prepaid is None else self.prepaid + own

    def within(self, tokens: int | None) -> RequestPlan:
        """The same plan limited to so many tokens, its prompt included; None changes nothing."""
        if tokens is None:
            return self
        each = max((tokens - self.num_prompt) // self.request.num_replies, 1)
        draws = each if self.direct else max(each // max(self.sequences, 1), 1)
        held = min(self.sampling.max_tokens, draws if self.request.forward else each)
        budget = min(each, self.budget.tokens or each)
        plan = replace(
            self,
            budget=Budget(tokens=budget),
            prepaid=each - budget,
            sampling=replace(self.sampling, max_tokens=held),
        )
        asked = self.request.sampling.max_tokens
        if asked is None and held < self.sampling.max_tokens:  # without a number the answer is cut all the same
            return replace(plan, adjusted={**self.adjusted, "max_tokens": {"asked": None, "used": held}})
        return plan.instead_of(asked)

    def instead_of(self, asked: int | None) -> RequestPlan:
        """The same plan, whose reply says if it draws another number of tokens than `asked`."""
        held = self.sampling.max_tokens
        less = {} if asked is None or held == asked else {"max_tokens": {"asked": asked, "used": held}}
        return replace(self, adjusted={**self.adjusted, **less})

    def report(
        self,
        *,
        final: str | None,
        candidates: Sequence[Mapping[str, Any]],
        chosen: int | None,
        thinking: Mapping[str, Any],
        usage: Usage,
        stop_cause: str | None,
    ) -> dict[str, Any]:
        """The `ttc` object of the reply; see docs/reference/http.md."""
        return {
            "type": "result",
            "model": self.model.name,
            "strategy": self.strategy,
            "parameters": dict(self.params),
            "final": final,
            "candidates": candidates,
            "chosen": chosen,
            "scores": [candidate["score"] for candidate in candidates],
            "thinking": thinking,
            "usage": ledger(usage),
            "seed": self.seed,
            "stop_cause": stop_cause,
            **({"adjusted": self.adjusted} if self.adjusted else {}),
        }


async def make_plan(
    request: ServeRequest, key: Key, catalogue: Catalogue, offers: ServedStrategies, config: ServeConfig
) -> RequestPlan:
    """Check `request` against this server and fill it in; raises ApiError, 400 or 404, naming the field."""
    model, preset = catalogue.find(request.model)
    request = _with_preset(request, preset)
    wish = request.search
    strategy = wish.strategy or (preset.strategy if preset else DIRECT)
    offer = offers[strategy]
    params = {**(preset.params if preset and preset.strategy == strategy else {}), **wish.params}
    scorer = _scorer(request, model, preset, offer)
    arguments = offer.bind(params, scorer)
    width = offer.width(arguments)
    request, adjusted = _with_temperature(request, preset, width)
    check_strategy(request, offer, width)
    _check_replies(request, config.limits)
    form = request.form if model.tools is not None else None
    if form is not None:
        check_form(form, request, offer, offers)
        request = replace(request, forward={})
    if request.prefill is not None:
        request = for_prefill(request, strategy, model)
    if form is None and not request.forward:
        request = left_to_upstream(request, strategy, model)
    total = _total_limit(request, preset, key, config.limits)
    most = _most_tokens(request, config.limits, total.limit if strategy == DIRECT and total.asked is None else None)
    budget = Budget(tokens=max((total.asked or total.limit) // request.num_replies, 1))
    if request.forward:
        check_forward(request, strategy, model)
        request = _with_default_effort(request, config)
        settled, sampling = _as_it_came(request, model, most)
        sampling = _shared(sampling, budget, width, strategy)
        prompts: tuple[Prompt, ...] = ()
    else:
        settled, sampling, prompts = await settle_prompts(request, model, config, most)
        fill = functools.partial(with_extras, sampling, request, key, model, offer, settled.control)
        sampling = await asyncio.to_thread(fill) if form is not None and form.held else fill()  # a schema may be large
    kind = wish.answer_kind or (preset and preset.answer_kind) or config.answer_kind
    _check_total(total, request, strategy, sampling)
    plan = RequestPlan(
        request=request,
        model=model,
        key=key,
        strategy=strategy,
        params={name: value for name, value in params.items() if name != "scorer"},
        call=functools.partial(offer.function, **arguments),
        sampling=sampling,
        settled=settled,
        budget=budget,
        seed=secrets.randbits(SEED_BITS) if wish.seed is None else wish.seed,
        answer_kind=kind,
        answers=FormReader(kind, model.tools, form.offer) if form is not None and form.held else kind_of(kind),
        progress=wish.progress or "off",
        prompts=prompts,
        sequences=width * request.num_replies,
        at_once=offer.at_once(arguments) * request.num_replies,
        added=offer.drawing.added(offer.function, arguments),
        questions=offer.questions(arguments, request.num_replies),
        scorer=scorer,
        ranks=offer.needs_scorer,
        adjusted=adjusted,
    )
    return plan.instead_of(request.sampling.max_tokens)


def _with_preset(request: ServeRequest, preset: PresetSpec | None) -> ServeRequest:
    """Take the preset's thinking if the body says nothing about it."""
    wish = request.thinking
    explicit = wish.effort is not None or wish.budget is not None or wish.enabled is not None
    if preset is None or explicit:
        return request
    return replace(request, thinking=replace(wish, effort=preset.reasoning_effort, budget=preset.thinking_budget))


def _with_default_effort(request: ServeRequest, config: ServeConfig) -> ServeRequest:
    """A request to an upstream server with the operator's level of effort, if it says nothing about thought."""
    wish, effort = request.thinking, config.thinking.default_effort
    is_explicit = wish.effort is not None or wish.budget is not None or wish.enabled is not None
    return request if is_explicit or effort is None else replace(request, thinking=replace(wish, effort=effort))


def _with_temperature(
    request: ServeRequest, preset: PresetSpec | None, width: int
) -> tuple[ServeRequest, Mapping[str, Any]]:
    """Use the preset's temperature if the body has none, and instead of a 0 that would make all draws equal."""
    temperature = request.sampling.temperature
    if preset is None or not (temperature is None or (temperature == 0 and width > 1 and not request.search.strategy)):
        return request, {}
    own = preset.temperature
    default = Sampling().temperature if own is None else own
    sampling = replace(request.sampling, temperature=own if temperature is None else default)
    adjusted = {} if temperature is None else {"temperature": {"asked": temperature, "used": default}}
    return replace(request, sampling=sampling), adjusted


def _scorer(
    request: ServeRequest, model: ServedModel, preset: PresetSpec | None, offer: ServedStrategy
) -> object | None:
    """The scorer of the body, of the preset, or the first one of the model where the strategy needs one."""
    strategy, takes, needs = offer.name, offer.takes_scorer, offer.needs_scorer
    name = request.search.scorer or (preset.scorer if preset else None)
    if request.search.scorer is not None and not takes:
        raise unsupported("ttc.scorer", f"ttc.scorer: strategy {strategy} takes no scorer; leave it out")
    if name is None and needs and model.scorers:
        name = next(iter(model.scorers))
    if name is not None and takes:
        if name not in model.scorers:
            names = ", ".join(sorted(model.scorers)) or "none"
            raise invalid("ttc.scorer", f"ttc.scorer: model {model.name} has no scorer {name!r} (known: {names})")
        return model.scorers[name]
    if needs:
        why = f"strategy {strategy} needs a scorer, and model {model.name} has none here: ask for another strategy"
        raise invalid("ttc.strategy", why)
    return None


@dataclass(frozen=True, slots=True)
class _TotalLimit:
    """Most tokens of all choices of a request: the requested number, if any, the limit, and whose limit it is."""

    asked: int | None
    limit: int
    whose: str


def _total_limit(request: ServeRequest, preset: PresetSpec | None, key: Key, limits: ServeLimits) -> _TotalLimit:
    limit = min(limits.max_total_tokens, key.limits.max_total_tokens or limits.max_total_tokens)
    whose = "this server's limit" if limit == limits.max_total_tokens else f"the limit of key {key.name}"
    asked = request.search.max_total_tokens or (preset.max_total_tokens if preset else None)
    return _TotalLimit(asked, limit, whose)


def _check_total(total: _TotalLimit, request: ServeRequest, strategy: str, sampling: Sampling) -> None:
    """Refuse a total, or plain draws without one, above the limit; raises ApiError."""
    limit, whose = total.limit, total.whose
    if total.asked is not None and total.asked > limit:
        raise invalid("ttc.max_total_tokens", f"ttc.max_total_tokens = {total.asked} exceeds {whose} of {limit}")
    num_tokens = request.num_replies * sampling.max_tokens
    if strategy == DIRECT and total.asked is None and num_tokens > limit:
        name = request.sampling.max_tokens_field
        place, what = (name, name) if request.num_replies == 1 else ("n", f"n x {name}")
        raise invalid(place, f"{what} = {num_tokens} exceeds {whose} of {limit} tokens")


def _check_replies(request: ServeRequest, limits: ServeLimits) -> None:
    """Refuse more replies than this server gives to one request; raises ApiError."""
    if request.num_replies > limits.max_choices:
        name, what = ("prompt", "prompts x n") if len(request.prompts) > 1 else ("n", "n")
        number = shown(request.num_replies)
        raise invalid(name, f"{what} must be at most {limits.max_choices}, this server's limit, got {number}")


def _most_tokens(request: ServeRequest, limits: ServeLimits, total: int | None) -> int:
    """The tokens of a choice if the request has no number; raises ApiError for a number above this server's limit.

    `total` is what all choices may have together, if nothing else limits them to it.
    """
    wish = request.sampling
    if wish.max_tokens is not None and wish.max_tokens > limits.max_tokens:
        name = wish.max_tokens_field
        raise invalid(name, f"{name} = {wish.max_tokens} exceeds this server's limit of {limits.max_tokens}")
    most = min(limits.default_max_tokens, limits.max_tokens)
    return most if total is None else max(min(most, total // request.num_replies), 1)


def _as_it_came(request: ServeRequest, model: ServedModel, most: int) -> tuple[ThinkingPlan, Sampling]:
    """What an upstream server is asked, `most` tokens by default; it renders, counts and thinks by itself.

    Half of its context is the most that is asked for by default, since the length of the prompt is not known here.
    """
    wish = request.sampling
    half = max(model.engine.capabilities.max_context // 2, 1)
    max_tokens = wish.max_tokens or min(most, half)
    return ThinkingPlan(Thinking()), sampling_of(wish, max_tokens, model)


def _shared(sampling: Sampling, budget: Budget, width: int, strategy: str) -> Sampling:
    """`sampling` where each draw has its share of the budget: an upstream server is asked for all draws at once.

    Raises:
        ApiError: there is not a token for each.
    """
    each = (budget.tokens or 0) // width
    if each < 1:
        why = f"does not pay for {counted(width, 'draw')} of strategy {strategy}: raise it"
        raise invalid("ttc.max_total_tokens", f"ttc.max_total_tokens = {budget.tokens} {why}", "budget_exceeded")
    return replace(sampling, max_tokens=min(sampling.max_tokens, each))


async def count_prompt(request: ServeRequest, catalogue: Catalogue, config: ServeConfig) -> int:
    """How many tokens the prompt of `request` has; nothing is sampled, and no prompt is too long.

    Raises:
        ApiError: 404, or 400 where an upstream server renders the prompt, which alone can count it.
    """
    model, preset = catalogue.find(request.model)
    request = _with_preset(request, preset)
    if not model.engine.capabilities.token_ids:
        raise unsupported("model", f"model: {model.name} takes messages only, so its upstream server counts tokens")
    if request.form is not None and model.tools is None:
        name = request.form.field
        raise unsupported(name, f"{name}: model {model.name} is not shown it here, so its tokens cannot be counted")
    if request.prefill is not None:
        request = for_prefill(request, DIRECT, model)
    return await num_prompt_tokens(request, model, config)
