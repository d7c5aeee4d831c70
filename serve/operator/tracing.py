"""OpenTelemetry: one span per request, with the semantic conventions of generative AI and the ledger of the search.

Spans go wherever the process's tracer provider sends them; without one they cost nothing. `ttc serve` installs an OTLP
exporter itself where OTEL_EXPORTER_OTLP_ENDPOINT is set. The client's `traceparent` is the parent. No text of prompts
or answers is in a span. Conventions: https://opentelemetry.io/docs/specs/semconv/gen-ai/ (still in development).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from serve.operator.metrics import RequestRecord
from ttc.errors import MissingExtra

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def configure_tracing() -> None:
    """Send spans where OTEL_EXPORTER_OTLP_ENDPOINT says; nothing without it.

    Raises:
        MissingExtra: it is set, and the SDK is not installed.
    """
    if not os.environ.get(ENDPOINT):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise MissingExtra("opentelemetry-sdk", "otel") from exc
    provider = TracerProvider(resource=Resource.create({"service.name": "ttc-serve"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


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
            }
        )
        if done.outcome not in ("done", "cancelled"):
            self._span.set_attribute("error.type", done.outcome)
            self._span.set_status(Status(StatusCode.ERROR, done.outcome))
        self._span.end()
