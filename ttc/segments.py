"""A draw put together from segments: what was sampled, what was injected between, and what each of it cost."""

from __future__ import annotations

from dataclasses import replace

from ttc.core import Completion, Engine, Logprobs, Prompt, Usage

__all__ = ["Growth", "recount"]


def recount(usage: Usage, dropped: int) -> Usage:
    """Move sampled tokens that were not kept from `generated` to `overrun`."""
    return replace(usage, generated=usage.generated - dropped, overrun=usage.overrun + dropped)


class Growth:
    """A draw being assembled from segments and injections; private to one call, so it may change."""

    def __init__(self, prompt: Prompt, draw: int) -> None:
        self.start, self.prompt, self.path = prompt, prompt, (*prompt.path, draw)
        self.ids: list[int] = []
        self.logprobs: Logprobs | None = ()
        self.certainty: Logprobs | None = ()
        self.injected: list[tuple[int, int]] = []
        self.usage = Usage()
        self.num_sampled = self.num_waits = 0

    def append(self, engine: Engine, segment: Completion, kept: int, forced: tuple[int, int] | None = None) -> None:
        """Take the first `kept` ids of a segment; `forced` is the span that the engine itself put in."""
        ids = segment.token_ids[:kept]
        logprobs = segment.logprobs
        if forced is not None:  # the engine put these there; of a first segment, so its places are those of the draw
            self.injected.append(forced)
            logprobs = logprobs and tuple(
                None if forced[0] <= at < forced[1] else value for at, value in enumerate(logprobs)
            )
        self.ids += ids
        self.logprobs = _extend(self.logprobs, logprobs, kept)
        self.certainty = _extend(self.certainty, segment.certainty, kept)
        self.num_sampled += kept
        self.usage += recount(segment.usage, len(segment.token_ids) - kept)
        self.prompt = self.prompt.extend(ids, engine.decode(ids))

    def inject(self, engine: Engine, text: str, waits: int = 0) -> None:
        """Put in words that nobody sampled; `waits` says how many ends of thinking they stand for."""
        ids = engine.encode(text)
        self.injected.append((len(self.ids), len(self.ids) + len(ids)))
        self.ids += ids
        unknown: Logprobs = (None,) * len(ids)
        self.logprobs = _extend(self.logprobs, unknown, len(ids))
        self.certainty = _extend(self.certainty, unknown, len(ids))
        self.num_waits += waits
        self.prompt = replace(self.prompt.extend(ids, text), num_waits=self.prompt.num_waits + waits)

    def finish(self, engine: Engine, reason: str, stop: str | int | None) -> Completion:
        """The whole draw as one completion."""
        ids = tuple(self.ids)
        return Completion(
            path=self.path,
            text=engine.decode(ids[:-1] if stop == "eos" else ids),
            token_ids=ids,
            finish_reason="stop" if reason == "stop" else "length",
            stop_reason=stop,
            logprobs=self.logprobs,
            certainty=self.certainty,
            injected=tuple(self.injected),
            num_waits=self.num_waits,
            usage=self.usage,
        )


def _extend(before: Logprobs | None, new: Logprobs | None, kept: int) -> Logprobs | None:
    return None if before is None or new is None else before + new[:kept]
