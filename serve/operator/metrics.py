"""What is recorded of requests: Prometheus metrics, and OpenTelemetry's spans.

Metrics have vLLM's suffixes under `ttc_`, and what only a search has. Label values come from the configuration and from
this package's own tables, never from a request, so their number is bounded. The text format is written here; nothing
but counters is kept.

A request is one span, with the semantic conventions of generative AI and the ledger of the search. Spans go wherever
the process's tracer provider sends them; without one they cost nothing. `ttc serve` installs an OTLP exporter itself
where OTEL_EXPORTER_OTLP_ENDPOINT is set. The client's `traceparent` is the parent. No text of prompts or answers is in
a span. Conventions: https://opentelemetry.io/docs/specs/semconv/gen-ai/ (still in development).
"""

from __future__ import annotations

import asyncio
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from serve.operator.keys import NANO
from ttc.core import Usage
from ttc.errors import MissingExtra

Labels: TypeAlias = tuple[tuple[str, str], ...]
LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


@dataclass(slots=True)
class _Counter:
    help: str
    kind: str = "counter"
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        self.values[key] = self.values.get(key, 0.0) + value

    def lines(self, name: str) -> list[str]:
        return [f"{name}{_labels(labels)} {_number(value)}" for labels, value in sorted(self.values.items())]


@dataclass(slots=True)
class _Histogram:
    help: str
    bounds: Sequence[float]
    kind: str = "histogram"
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    sums: dict[Labels, float] = field(default_factory=dict)

    def add(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        self.counts.setdefault(key, [0] * (len(self.bounds) + 1))[bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + value

    def add_all(self, values: Sequence[float], **labels: str) -> None:
        if not values:
            return
        key = tuple(labels.items())
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        for value in values:
            counts[bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + sum(values)

    def lines(self, name: str) -> list[str]:
        rows = []
        for labels, counts in sorted(self.counts.items()):
            total = 0
            for edge, count in zip((*map(_number, self.bounds), "+Inf"), counts, strict=True):
                total += count
                rows.append(f"{name}_bucket{_labels((*labels, ('le', edge)))} {total}")
            rows.append(f"{name}_sum{_labels(labels)} {_number(self.sums[labels])}")
            rows.append(f"{name}_count{_labels(labels)} {total}")
        return rows


@dataclass(frozen=True, slots=True)
class SpentRecord:
    """What one model, the requested one or a fallback, spent on a request.

    `charged` are the tokens that its key was charged: every prompt once, and all that was written. `price` is theirs,
    in billionths of a dollar.
    """

    model: str
    strategy: str
    usage: Usage
    charged: int = 0
    price: int = 0


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What is recorded of a request that ended. Seconds; `first_token_s` None when there was none.

    `model` is the last that was asked; each has its own entry in `spent`. `enforced` says of each choice how its
    thinking budget was held. `gaps_s` are the times between two pieces of a stream, as they were sent.
    """

    model: str
    strategy: str
    outcome: str
    spent: Sequence[SpentRecord]
    seconds: float
    first_token_s: float | None = None
    finish_reasons: tuple[str, ...] = ()
    num_candidates: int = 0
    num_forced_ends: int = 0
    enforced: tuple[str, ...] = ()
    key: str = "anyone"
    gaps_s: Sequence[float] = ()

    @property
    def usage(self) -> Usage:
        """Of all models together."""
        return sum((one.usage for one in self.spent), Usage())


class ServerMetrics:
    """The server's metrics; `gauges` are read when asked, be they counters that are kept elsewhere (`_total`)."""

    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], Mapping[Labels, float]]]]) -> None:
        """`gauges` maps a name to its help text and a function of no arguments."""
        self._gauges = gauges
        self._series: dict[str, _Counter | _Histogram] = {}
        self._success = self._counter("ttc_request_success_total", "Choices returned, by why they ended.")
        self._ended = self._counter(
            "ttc_requests_ended_total",
            "Requests that were admitted and ended, by outcome: done, cancelled or an error code.",
        )
        self._refused = self._counter("ttc_requests_refused_total", "Requests refused before they ran, by error code.")
        self._rejected = self._counter("ttc_admission_rejections_total", "Requests not admitted, by error code.")
        self._tokens = {
            "prompt": self._counter("ttc_prompt_tokens_total", "Context tokens submitted, once per draw."),
            "cached": self._counter("ttc_prefix_cache_hits_total", "Context tokens that were not computed again."),
            "generated": self._counter("ttc_generation_tokens_total", "Tokens sampled and kept."),
            "thinking": self._counter("ttc_thinking_tokens_total", "Tokens sampled inside the think block."),
            "scored": self._counter("ttc_scored_tokens_total", "Tokens computed by scorers."),
            "judged": self._counter("ttc_judged_tokens_total", "Tokens generated by judges."),
            "overrun": self._counter("ttc_overrun_tokens_total", "Tokens sampled and not kept."),
        }
        self._candidates = self._counter("ttc_candidates_total", "Candidates considered.")
        self._forced = self._counter("ttc_thinking_forced_ends_total", "Thoughts ended by the hand-over.")
        self._enforced = self._counter(
            "ttc_thinking_enforced_total", "Choices by how their thinking budget was held: ids, native or none."
        )
        self._first = self._histogram(
            "ttc_time_to_first_token_seconds", "Seconds from admission to the first text.", LATENCY_S
        )
        self._whole = self._histogram(
            "ttc_e2e_request_latency_seconds", "Seconds from admission to the end.", LATENCY_S
        )
        self._between = self._histogram(
            "ttc_inter_token_latency_seconds",
            "Seconds between two pieces of text of a choice that is streamed.",
            TOKEN_S,
        )
        self._queued = self._histogram("ttc_queue_time_seconds", "Seconds that a draw waited for a slot.", LATENCY_S)
        self._of_key = self._counter(
            "ttc_key_tokens_total",
            "Tokens that a key spent, as its tokens_per_minute counts them: prompts and all that was written.",
        )
        self._price = self._counter("ttc_key_dollars_total", "What these tokens cost, by the prices of their models.")

    def _counter(self, name: str, text: str) -> _Counter:
        counter = self._series[name] = _Counter(text)
        return counter

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> _Histogram:
        histogram = self._series[name] = _Histogram(text, bounds)
        return histogram

    def refused(self, code: str, status: int) -> None:
        """Record a request that did not run."""
        (self._rejected if status == 429 else self._refused).add(1, code=code)

    def waited(self, model: str, seconds: float) -> None:
        """Record how long a draw waited for its slot."""
        self._queued.add(seconds, model=model)

    def finished(self, done: RequestRecord) -> None:
        """Record a request that ran."""
        labels = {"model": done.model, "strategy": done.strategy}
        self._ended.add(1, **labels, outcome=done.outcome)
        for one in done.spent:
            own = {"model": one.model, "strategy": one.strategy}
            for name, counter in self._tokens.items():
                counter.add(getattr(one.usage, name), **own)
            self._of_key.add(one.charged, key=done.key, **own)
            self._price.add(one.price / NANO, key=done.key, **own)
        self._between.add_all(done.gaps_s, **labels)
        self._whole.add(done.seconds, **labels)
        if done.first_token_s is not None:
            self._first.add(done.first_token_s, **labels)
        if done.outcome != "done":
            return
        for reason in done.finish_reasons:
            self._success.add(1, **labels, finished_reason=reason)
        self._candidates.add(done.num_candidates, **labels)
        self._forced.add(done.num_forced_ends, **labels)
        for how in done.enforced:
            self._enforced.add(1, **labels, how=how)

    def text(self) -> str:
        """Everything, in the text format 0.0.4."""
        lines = []
        for name, (text, read) in self._gauges.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in sorted(read().items())]
        for name, metric in self._series.items():
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", *metric.lines(name)]
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels) + "}" if labels else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

LAST_SPANS_S = 2.0
"""Seconds that waiting spans may take to be sent when the server ends."""


def configure_tracing() -> Callable[[], object]:
    """Send spans where OTEL_EXPORTER_OTLP_ENDPOINT says, if it is set; returns what sends the last ones and blocks.

    Raises MissingExtra without the SDK.
    """
    if not os.environ.get(ENDPOINT):
        return lambda: None
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise MissingExtra("opentelemetry-sdk", "otel") from exc
    provider = TracerProvider(resource=Resource.create({"service.name": "ttc-serve"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


async def end_tracing(last: Callable[[], object], within_s: float = LAST_SPANS_S) -> None:
    """Send the last spans, but wait only so long: where nobody takes them, `last` tries for ten seconds and more."""
    sending = threading.Thread(target=last, daemon=True)  # which does not keep the process
    sending.start()
    await asyncio.to_thread(sending.join, within_s)


class RequestSpan:
    """The span of one request; does nothing where OpenTelemetry is not installed."""

    def __init__(self, model: str, strategy: str, headers: Mapping[str, str], provider: Any = None) -> None:
        """Start it; `provider` is the tracer provider, None for the process's own."""
        self._span: Any = None
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            return
        tracer = trace.get_tracer("ttc.serve", tracer_provider=provider)
        self._span = tracer.start_span(
            f"chat {model}",
            context=propagate.extract(dict(headers)),
            kind=trace.SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "ttc",
                "gen_ai.request.model": model,
                "ttc.strategy": strategy,
            },
        )

    def end(self, done: RequestRecord) -> None:
        """End it with what the request cost."""
        if self._span is None:
            return
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": done.usage.prompt,
                "gen_ai.usage.output_tokens": done.usage.generated,
                "gen_ai.response.finish_reasons": done.finish_reasons,
                "ttc.outcome": done.outcome,
                "ttc.candidates": done.num_candidates,
                "ttc.forced_ends": done.num_forced_ends,
                "ttc.tokens": done.usage.tokens,
                "ttc.thinking_tokens": done.usage.thinking,
                "ttc.scored_tokens": done.usage.scored,
                "ttc.judged_tokens": done.usage.judged,
                "ttc.overrun_tokens": done.usage.overrun,
                "ttc.cached_tokens": done.usage.cached,
                "ttc.calls": done.usage.calls,
                "ttc.key": done.key,
            }
        )
        if done.outcome not in ("done", "cancelled"):
            self._span.set_attribute("error.type", done.outcome)
            self._span.set_status(Status(StatusCode.ERROR, done.outcome))
        self._span.end()
