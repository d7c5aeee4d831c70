"""The engine for OpenAI-compatible servers: requests with retries, balancing and accounting.

A draw with a seed, or one that is displayed, is a streamed request of its own: after an abort its decoded tokens are
known, silence is noticed, and thinking can be shown as it arrives. Streaming is not used with a server that returns ids
or token counts only with whole answers. Draws without seeds (`seeded=false`) of one prompt are one request for several
whole choices: fewer messages, but if such a request is cut off, the number of tokens it had decoded is unknown and
missing from the ledger. Cancelling closes the connection, which aborts the request in the server. A retry sends the
same seed; the tokens of a failed attempt are `overrun`, and if it had begun to answer, its prompt is charged, too, with
the length counted for the successful attempt (an estimate where only the server counts). The dialect is chosen at the
start (`ttc.engines.openai.probe`).

There are two ledgers. If ids are returned, our own count is used, and the server's is only compared: a difference is
recorded and warned of once, never adopted silently. Otherwise the server's counts are used, or the local tokenizer's if
it reports none; without a tokenizer, thinking that the server does not count separately is estimated by its share of
the characters. A draw that was cut off has no usage report; its streamed tokens are our `overrun`, and the server may
have decoded a few more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ttc.concurrent import gather
from ttc.core import Capabilities, Completion, Message, Prices, Prompt, Sampling, Tools, Usage, UsageSink
from ttc.engines.openai.chat import CURE
from ttc.engines.openai.client import Chunk, Client
from ttc.engines.openai.refusals import Access, ContextShared, CutShort
from ttc.engines.openai.wire import Features, Outcome, Reader, ServerUsage, cut_short, finish_of, outcomes, seed_of
from ttc.engines.shared.balance import Balancer, Retry, ServerState, Transient
from ttc.engines.shared.text import LONG_TEXT, Text
from ttc.engines.shared.tokens import OnTokens
from ttc.errors import EngineError, Unsupported
from ttc.session.thinking import OPEN, split_text

MOST_TOGETHER = 64
"""Most choices in one request."""
LONG = 16
"""Length in tokens from which two draws are rarely equal by chance."""
MANY_PROMPTS, MANY_REPEATS = 4, 12
"""Number of such repeats, with no differing draw between them, that suggests a server which does not sample."""


class Dialect(Protocol):
    """How requests to an endpoint are written and its answers read."""

    path: str

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """The root prompt of a conversation."""
        ...

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Refuse what the endpoint does not support (Unsupported, PromptTooLong), before anything is sent."""
        ...

    def num_prompt(self, prompt: Prompt) -> int | None:
        """Tokens of the prompt by our own count; None without a tokenizer."""
        ...

    def body(self, prompt: Prompt, sampling: Sampling, seed: int | None) -> dict[str, Any]:
        """The request body of one draw."""
        ...

    def reader(self, prompt: Prompt, sampling: Sampling) -> Reader:
        """A new reader for its answer."""
        ...


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses, access and retries; `max_in_flight` limits concurrent requests over all servers."""

    urls: tuple[str, ...]
    access: Access
    retry: Retry
    max_in_flight: int


class _Wires:
    """Clients and concurrency limit of one event loop."""

    def __init__(self, connection: Connection) -> None:
        self.clients = {url: Client(url, connection.access) for url in connection.urls}
        self._slots, self._num_slots = asyncio.Semaphore(connection.max_in_flight), connection.max_in_flight
        self._is_warned = False
        self.guard = _closing(self.clients)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot; if too many requests share the server's context, the limit is lowered by one."""
        await self._slots.acquire()
        is_free = True
        try:
            yield
        except Transient as failure:
            if isinstance(failure.error, ContextShared) and self._num_slots > 1:
                self._num_slots, is_free = self._num_slots - 1, False
                text = (
                    f"{failure.error} Its slots share it, so fewer requests go there at once; a larger -c allows more"
                )
                if not self._is_warned:
                    warnings.warn(text, RuntimeWarning, stacklevel=3)
                self._is_warned = True
            raise
        finally:
            if is_free:
                self._slots.release()


class _Loops:
    """The wires of every event loop that uses the engine; several threads may each run one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wires: dict[asyncio.AbstractEventLoop, _Wires] = {}

    async def here(self) -> _Wires:
        """The wires of the running loop."""
        loop = asyncio.get_running_loop()
        wires = self._wires.get(loop)
        if wires is None:
            for ended in [other for other in list(self._wires) if other.is_closed()]:
                self._wires.pop(ended, None)  # in place, since other threads may add theirs meanwhile
            wires = self._wires[loop] = _Wires(self._connection)
            await anext(wires.guard)
        return wires

    async def close(self) -> None:
        """Close the connections of this loop; those of an ended loop are closed already."""
        wires = self._wires.pop(asyncio.get_running_loop(), None)
        if wires is not None:
            await wires.guard.aclose()


async def _closing(clients: Mapping[str, Client]) -> AsyncGenerator[None, None]:
    """Close the clients when this is closed: by the engine, or by a loop that ends before the engine is closed."""
    try:
        yield
    finally:
        for client in clients.values():
            await client.close()


@dataclass(slots=True)
class Attempts:
    """All attempts of one draw; `begun` counts failed ones that had begun to answer."""

    attempts: int = 0
    begun: int = 0
    lost: int = 0
    emitted: int = 0


class RemoteEngine:
    """Implements Engine; the dialect decides whether token ids are used."""

    def __init__(
        self,
        dialect: Dialect,
        features: Features,
        capabilities: Capabilities,
        connection: Connection,
        tokens: Text | None,
    ) -> None:
        """`tokens` is the local tokenizer, None where there is none."""
        self.urls = connection.urls
        self._dialect, self._features, self._capabilities = dialect, features, capabilities
        self._tokens, self._retry = tokens, connection.retry
        self._balancer = Balancer(connection.urls)
        self._wires = _Loops(connection)
        self._ledger = Ledger(features.model)

    @property
    def capabilities(self) -> Capabilities:
        """See `ttc.core.Engine`."""
        return self._capabilities

    @property
    def features(self) -> Features:
        """The features that the probe has found."""
        return self._features

    @property
    def served(self) -> Mapping[str, str]:
        """See `ttc.core.Served`."""
        return self._features.served

    @property
    def prices(self) -> Prices | None:
        """See `ttc.core.Priced`."""
        return self._features.prices

    @property
    def failures(self) -> Mapping[str, int]:
        """See `ttc.core.Retrying`."""
        return self._balancer.failures

    @property
    def balancer(self) -> Balancer:
        """The balancer of the servers, for other code that sends requests to them."""
        return self._balancer

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """The state of every server."""
        return self._balancer.servers

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `ttc.core.Engine`; without a local tokenizer the prompt has no ids."""
        return self._dialect.render(messages, thinking)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `ttc.core.Engine`; raises Unsupported without a local tokenizer."""
        return self._tokenizer().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `ttc.core.Engine`; raises Unsupported without a local tokenizer."""
        return self._tokenizer().decode(ids) if ids else ""

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        self._dialect.check(prompt, sampling)
        completions = await gather(self._draw(prompt, sampling, draw, on_usage, None) for draw in draws)
        self._ledger.note_draws(completions)
        return completions

    def counters(self) -> Usage:
        """See `ttc.core.Engine`: our own counts; the probe at the start is not in them."""
        return self._ledger.totals

    def estimated(self, messages: Sequence[Message], said: str) -> Usage:
        """The usage of a reply to `messages` by the local tokenizer, for a server that reports none; 0 without one.

        Without messages it is the usage of the reply alone.
        """
        if self._tokens is None:
            return Usage()
        prompt = self._dialect.num_prompt(self._dialect.render(messages, None)) if messages else 0
        return Usage(prompt=prompt or 0, generated=len(self._tokens.encode(said)))

    def reconciliation(self) -> Reconciliation:
        """How the servers' counts compare with ours."""
        return self._ledger.compared

    async def beside(self, url: str, route: str, body: Mapping[str, Any] | None = None) -> Chunk:
        """Request a route outside the API of a server: by GET, or with a `body` by POST.

        Raises what `Client.stream` raises.
        """
        client, path = (await self._wires.here()).clients[url], url.removesuffix("/v1") + route
        return await (client.get(path) if body is None else client.post(path, body))

    async def close(self) -> None:
        """See `ttc.core.Engine`; may be called twice."""
        await self._wires.close()

    def _tokenizer(self) -> Text:
        if self._tokens is None:
            raise Unsupported(f"{self._features.model} takes messages only, so there are no token ids: {CURE}")
        return self._tokens

    async def _draw(
        self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> Completion:
        body = self._dialect.body(prompt, sampling, seed_of(prompt, sampling, draw, self._features.seed_bits))
        counted, tally = await self._counted(prompt), Attempts()

        async def attempt(url: str) -> Outcome:
            return await self._attempt(url, body, self._dialect.reader(prompt, sampling), tally, on_tokens)

        # the requests of a problem stay on one server
        problem = prompt.problem_id or prompt.text[: prompt.rendered_chars]
        try:
            outcome = await self._balancer.send(problem, attempt, self._retry)
        except BaseException:
            prompt_read = (counted or 0) * max(tally.begun, 1)
            lost = Usage(prompt=prompt_read, overrun=tally.lost, calls=1, attempts=tally.attempts)
            self._ledger.report(lost, on_usage)
            raise
        usage = self._usage(counted, outcome, tally)
        self._ledger.report(usage, on_usage)
        if self._capabilities.token_ids:
            self._ledger.compare(counted, outcome.num_streamed, outcome.server)
        else:
            self._ledger.compare(counted, None, outcome.server)
        return self._completion(prompt, draw, outcome, usage)

    async def _counted(self, prompt: Prompt) -> int | None:
        """Tokens of the prompt by our own count; a long text is encoded outside the event loop."""
        if prompt.token_ids is not None or len(prompt.text) <= LONG_TEXT:
            return self._dialect.num_prompt(prompt)
        return await asyncio.to_thread(self._dialect.num_prompt, prompt)

    def _completion(self, prompt: Prompt, draw: int, outcome: Outcome, usage: Usage) -> Completion:
        if outcome.finish_reason == "abort":
            self._ledger.note_end(str(outcome.stop_reason))
        is_block = prompt.think_state == "closed" and outcome.text.startswith(OPEN)
        if is_block and split_text(outcome.text, False).thinking.strip():  # the template's own block is empty
            self._ledger.note_thought()
        return Completion(
            path=(*prompt.path, draw),
            text=outcome.text,
            token_ids=outcome.token_ids,
            finish_reason=outcome.finish_reason,
            stop_reason=outcome.stop_reason,
            logprobs=outcome.logprobs,
            usage=usage,
        )

    async def _attempt(
        self, url: str, body: Mapping[str, Any], reader: Reader, tally: Attempts, on_tokens: OnTokens | None
    ) -> Outcome:
        tally.attempts += 1
        wires, received, begun = await self._wires.here(), 0, False
        try:
            async with wires.slot(), wires.clients[url].stream(self._dialect.path, body) as chunks:
                async for chunk in chunks:
                    begun = True
                    try:
                        ended, new = reader.add(chunk)
                    except ValueError as exc:
                        raise Transient(EngineError(f"{url} sent something unreadable: {exc}")) from exc
                    received += len(new)
                    fresh = new[len(new) - max(min(received - tally.emitted, len(new)), 0) :]
                    if on_tokens is not None and fresh:
                        on_tokens(fresh)
                    tally.emitted += len(fresh)
                    if ended:
                        break
                return reader.result()
        except CutShort:
            return cut_short(reader, body[self._features.limit_field])
        except BaseException:
            tally.lost += reader.num_streamed
            tally.begun += begun
            raise

    def _usage(self, counted: int | None, outcome: Outcome, tally: Attempts) -> Usage:
        """Our counts where there are ids, else the server's."""
        server = outcome.server
        if self._capabilities.token_ids:
            prompt, thinking = counted or 0, 0  # the session counts thinking by ids
        else:
            prompt = server.prompt if server.prompt is not None else counted or 0
            thinking = outcome.num_thinking
        cached = min(server.cached or 0, prompt)
        return Usage(
            prompt=prompt * (1 + tally.begun),
            cached=cached,
            generated=outcome.num_generated,
            thinking=thinking,
            overrun=tally.lost + outcome.num_streamed - outcome.num_generated,
            calls=1,
            attempts=tally.attempts,
            flops=self._capabilities.flops(prompt - cached + outcome.num_streamed, cached),
        )


class RemoteTokenEngine(RemoteEngine):
    """The same with token ids: also a StreamingEngine and a ToolEngine."""

    @property
    def tool_format(self) -> str:
        """See `ttc.core.ToolEngine`."""
        return self._tokenizer().tool_format

    def render_tools(self, messages: Sequence[Message], thinking: bool | None, tools: Tools) -> Prompt:
        """See `ttc.core.ToolEngine`; uses the template of the local folder."""
        return self._tokenizer().render(messages, thinking, tools)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`; without seeds, draws of one prompt are one request."""
        if self._features.seeds or self._features.verbose:  # llama.cpp returns the ids of one choice only
            return await super().generate(prompt, sampling, draws, on_usage)
        self._dialect.check(prompt, sampling)
        groups = [draws[at : at + MOST_TOGETHER] for at in range(0, len(draws), MOST_TOGETHER)]
        done = await gather(self._together(prompt, sampling, group, on_usage) for group in groups)
        return [completion for group in done for completion in group]

    async def _together(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink
    ) -> list[Completion]:
        """One request for all of `draws`; choices that a server without support for `n` omits are requested again."""
        body = self._dialect.body(prompt, sampling, None) | {"n": len(draws), "stream": False}
        body.pop("stream_options", None)
        counted, tally = self._dialect.num_prompt(prompt) or 0, Attempts()

        async def attempt(url: str) -> list[Outcome]:
            tally.attempts += 1
            wires = await self._wires.here()
            async with wires.slot():
                answer = await wires.clients[url].post_patiently(self._dialect.path, body)
            try:
                return outcomes(answer, len(draws), lambda: self._dialect.reader(prompt, sampling))
            except ValueError as exc:
                raise Transient(EngineError(f"{url} sent something unreadable: {exc}")) from exc

        problem = prompt.problem_id or prompt.text[: prompt.rendered_chars]
        try:
            results = await self._balancer.send(problem, attempt, self._retry)
        except BaseException:
            self._ledger.report(Usage(prompt=counted, calls=1, attempts=tally.attempts), on_usage)
            raise
        self._ledger.compare(counted, sum(outcome.num_streamed for outcome in results), results[0].server)
        completions: list[Completion] = []
        for draw, outcome in zip(draws, results, strict=False):
            usage = self._usage(counted, outcome, tally) if not completions else self._beside(counted, outcome)
            self._ledger.report(usage, on_usage)
            completions.append(self._completion(prompt, draw, outcome, usage))
        rest = draws[len(completions) :]
        return completions + (await self._together(prompt, sampling, rest, on_usage) if rest else [])

    def _beside(self, counted: int, outcome: Outcome) -> Usage:
        """The usage of a choice in a request whose prompt was charged to another choice."""
        return Usage(
            generated=outcome.num_generated,
            overrun=outcome.num_streamed - outcome.num_generated,
            calls=1,
            attempts=1,
            flops=self._capabilities.flops(outcome.num_streamed, counted),
        )

    async def stream(
        self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, on_tokens: OnTokens
    ) -> Completion:
        """See `ttc.core.StreamingEngine`; after a retry, tokens that were passed on already are not passed on again."""
        self._dialect.check(prompt, sampling)
        return await self._draw(prompt, sampling, draw, on_usage, on_tokens)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """How the server's counts compare with ours, over finished draws.

    `agreed` + `differed` + `unreported` + `taken` is the number of finished draws: both counts known and equal, or not;
    no usage from the server; only the server's count known. The token sums are over the compared draws.
    """

    agreed: int = 0
    differed: int = 0
    unreported: int = 0
    taken: int = 0
    our_prompt: int = 0
    our_generated: int = 0
    server_prompt: int = 0
    server_generated: int = 0


class Ledger:
    """The totals of one engine."""

    def __init__(self, model: str) -> None:
        """Start at zero; `model` is for the warning."""
        self._model = model
        self._noted, self._lock = set[str](), threading.Lock()
        self._repeats, self._differed = list[int](), False
        self.totals = Usage()
        self.compared = Reconciliation()

    def report(self, usage: Usage, sink: UsageSink) -> None:
        """Charge one draw to the engine's totals and to its session."""
        with self._lock:
            self.totals += usage
        sink(usage)

    def note_end(self, word: str) -> None:
        """Warn once of an unknown finish reason."""
        if finish_of(word.lower()) is None and word not in self._noted:
            self._noted.add(word)
            text = (
                f"the server ended with finish_reason {word!r}, which is unknown: such an answer counts as unfinished"
            )
            warnings.warn(f"{self._model}: {text}, and counts as cut", RuntimeWarning, stacklevel=3)

    def note_thought(self) -> None:
        """Warn once of a model that thinks although thinking is off."""
        if OPEN not in self._noted:
            self._noted.add(OPEN)
            text = f"{self._model} thinks although thinking is off: none of the known switches works on its server"
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def note_draws(self, done: Sequence[Completion]) -> None:
        """Warn once if all draws of each prompt are the same text: a vote over them is meaningless."""
        if len(done) < 2 or min(completion.usage.generated for completion in done) < LONG:
            return
        self._differed = self._differed or len({completion.text for completion in done}) > 1
        self._repeats.append(len(done) - 1)
        if self._differed or len(self._repeats) < MANY_PROMPTS or sum(self._repeats) < MANY_REPEATS:
            return
        self._differed = True
        warnings.warn(
            f"{self._model}: all draws of a prompt were the same text, for each of {len(self._repeats)} prompts: does "
            "its server sample at all? (`transformers serve` does where generation_config.json of the model says "
            "do_sample)",
            RuntimeWarning,
            stacklevel=3,
        )

    def compare(self, prompt: int | None, streamed: int | None, server: ServerUsage) -> None:
        """Compare our counts of prompt and received tokens (None: unknown) with the server's, for one finished draw."""
        before = self.compared
        if server.prompt is None or server.generated is None:
            if prompt is None and not before.unreported:
                self._warn("a finished draw came without usage; its tokens are counted by chunks, which is too few")
            self.compared = replace(before, unreported=before.unreported + 1)
        elif prompt is None or streamed is None:
            self.compared = replace(before, taken=before.taken + 1)
        else:
            equal = (prompt, streamed) == (server.prompt, server.generated)
            self.compared = replace(
                before,
                agreed=before.agreed + equal,
                differed=before.differed + (not equal),
                our_prompt=before.our_prompt + prompt,
                our_generated=before.our_generated + streamed,
                server_prompt=before.server_prompt + server.prompt,
                server_generated=before.server_generated + server.generated,
            )
            if not equal and not before.differed:
                self._warn(
                    f"the server counts {server.prompt} prompt and {server.generated} generated tokens, we count "
                    f"{prompt} and {streamed}; the ledger keeps ours"
                )

    def _warn(self, text: str) -> None:
        warnings.warn(f"{self._model}: {text} (engine.reconciliation() has the totals)", RuntimeWarning, stacklevel=3)
