"""The packaged fake engine: it answers from a script, for tests of strategies (ours and users').

Everything but the model is real: ids (one per character), think markers, stop strings, caps, seeds by path, usage,
counters, cancellation, and a `jitter` that changes the schedule without changing the result. Left out:
log-probabilities (constant) and caching (every prompt is computed anew).
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

from ttc.concurrent import gather
from ttc.core import (
    Capabilities,
    Completion,
    Message,
    ModelShape,
    Path,
    Prompt,
    Sampling,
    ThinkState,
    Tools,
    Usage,
    UsageSink,
)
from ttc.errors import ConfigError, PromptTooLong
from ttc.seeds import derive
from ttc.toolformats.families import PLAIN, plain_turns, turns_of

THINK_OPEN, THINK_CLOSE, EOS = 0x110000, 0x110001, 0x110002
_MARKERS = {"<think>": THINK_OPEN, "</think>": THINK_CLOSE, "<eos>": EOS}
_TEXTS = {value: text for text, value in _MARKERS.items()}
_PIECES = re.compile("|".join(map(re.escape, _MARKERS)) + "|.", re.DOTALL)


def encode(text: str) -> tuple[int, ...]:
    """Ids of `text`: code points, and one id per marker."""
    if "<" not in text:
        return tuple(map(ord, text))
    return tuple(_MARKERS.get(piece) or ord(piece) for piece in _PIECES.findall(text))


def decode(ids: Sequence[int]) -> str:
    """Text of `ids`; inverse of `encode`."""
    if not ids or max(ids) < THINK_OPEN:
        return "".join(map(chr, ids))
    return "".join(_TEXTS.get(i) or chr(i) for i in ids)


def first_stop(ids: Sequence[int], stop: Sequence[str], stop_ids: Sequence[int]) -> tuple[int, str | int] | None:
    """Number of ids up to and including the first stop in `ids`, and the stop; None without one.

    Of stops that end at the same id, an id takes precedence over a string.
    """
    end = ids.index(EOS) if EOS in ids else len(ids)
    kept = ids[:end]
    stops: list[tuple[int, str | int]] = [(kept.index(token) + 1, token) for token in stop_ids if token in kept]
    text = decode(kept) if stop else ""
    stops += [(count, string) for string in stop if (count := _first_end(kept, text, string))]
    if end < len(ids):
        stops.append((end + 1, "eos"))
    return min(stops, key=lambda place: place[0], default=None)


def _first_end(ids: Sequence[int], text: str, string: str) -> int:
    """The smallest number of ids whose text ends with `string`; 0 if none does. `text` is that of all ids."""
    if len(text) == len(ids):  # no marker, so each id is one character
        return text.find(string) + len(string) if string in text else 0
    counts = range(1, len(ids) + 1)
    return next((n for n in counts if decode(ids[max(0, n - len(string)) : n]).endswith(string)), 0)


Script = Callable[[Prompt, Path, int], str]
"""(prompt, path of the draw, its 64-bit key) -> the text that follows the prompt; `<eos>` is appended."""

SHAPE = ModelShape(num_params=1000, num_layers=1, attention_width=1)
"""A nominal model, so that FLOPs are counted here too."""


class ScriptedEngine:
    """Continues prompts by a script."""

    def __init__(
        self,
        script: Script,
        *,
        max_context: int = 1 << 20,
        thinking: bool = False,
        jitter: int | None = None,
        max_concurrency: int = 64,
    ) -> None:
        """`thinking` opens a think block in the template; `jitter` seeds a random schedule of the event loop."""
        self._script, self._thinking, self._jitter = script, thinking, jitter
        self._counters = Usage()
        self.max_live = self._live = 0
        self._capabilities = Capabilities(
            model="scripted",
            max_context=max_context,
            logprobs=True,
            schedule_invariant=True,
            think_open=(THINK_OPEN,),
            think_close=(THINK_CLOSE,),
            eos_ids=(EOS,),
            shape=SHAPE,
            max_concurrency=max_concurrency,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Ids, log-probabilities, think markers; schedule-invariant."""
        return self._capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Render as `role: content` lines, then an open, an empty or no think block."""
        return self._rendered(
            [(f"{message.role}: {message.content}", "\n") for message in messages], messages, thinking
        )

    @property
    def tool_format(self) -> str:
        """See `ttc.core.ToolEngine`."""
        return PLAIN

    def render_tools(self, messages: Sequence[Message], thinking: bool | None, tools: Tools) -> Prompt:
        """The same with functions, calls and results as text in the Hermes format; `<eos>` ends the model's turns."""
        turns = plain_turns(turns_of(messages), tools)
        ends = ("<eos>\n" if turn["role"] == "assistant" else "\n" for turn in turns)
        texts = (f"{turn['role']}: {turn['content']}" for turn in turns)
        return self._rendered(list(zip(texts, ends, strict=True)), messages, thinking)

    def _rendered(self, turns: Sequence[tuple[str, str]], messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """A prompt of turns, each with what ends it; only in the ends is a marker one id."""
        opened = self._thinking if thinking is None else thinking
        block = "<think>" if opened else "<think></think>" if thinking is False else ""
        state: ThinkState = "open" if opened else "closed" if thinking is False else "none"
        ids = (*(i for turn, end in turns for i in (*map(ord, turn), *encode(end))), *encode(f"assistant: {block}"))
        text = "".join(turn + end for turn, end in turns) + f"assistant: {block}"
        return Prompt(
            text=text,
            token_ids=ids,
            rendered_len=len(ids),
            rendered_chars=len(text),
            think_state=state,
            messages=tuple(messages),
        )

    encode = staticmethod(encode)
    decode = staticmethod(decode)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Continue by the script; see `ttc.core.Engine.generate`."""
        if prompt.token_ids is None:
            raise ConfigError("scripted engine needs token ids; render the prompt with this engine")
        if len(prompt.token_ids) >= self._capabilities.max_context:
            raise PromptTooLong(
                f"prompt has {len(prompt.token_ids)} tokens, context is {self._capabilities.max_context}"
            )
        context = len(prompt.token_ids)
        return await gather(self._draw(prompt, context, sampling, draw, on_usage) for draw in draws)

    async def _draw(
        self, prompt: Prompt, context: int, sampling: Sampling, draw: int, on_usage: UsageSink
    ) -> Completion:
        path = (*prompt.path, draw)
        key = derive(sampling.seed or 0, path)
        ids = (*encode(self._script(prompt, path, key)), EOS)
        stop = first_stop(ids[: sampling.max_tokens], sampling.stop, sampling.stop_token_ids)
        token_ids = ids[: stop[0] if stop else sampling.max_tokens]
        self._live += 1
        self.max_live = max(self.max_live, self._live)
        try:
            await self._wait(path)
        except asyncio.CancelledError:
            self._report(Usage(prompt=context, overrun=len(token_ids), calls=1, attempts=1), on_usage)
            raise
        finally:
            self._live -= 1
        flops = SHAPE.flops(context + len(token_ids), 0)
        usage = Usage(prompt=context, generated=len(token_ids), calls=1, attempts=1, flops=flops)
        self._report(usage, on_usage)
        reason = stop[1] if stop else None
        return Completion(
            path=path,
            text=decode(token_ids[:-1] if reason == "eos" else token_ids),
            token_ids=token_ids,
            finish_reason="stop" if stop else "length",
            stop_reason=reason,
            logprobs=(-0.5,) * len(token_ids),
            certainty=(0.5,) * len(token_ids),
            usage=usage,
        )

    async def _wait(self, path: Path) -> None:
        """Yield to the event loop a number of times that depends on the path and the jitter seed."""
        turns = 1 if self._jitter is None else 1 + derive(self._jitter, path) % 7
        for _ in range(turns):
            await asyncio.sleep(0)

    def _report(self, usage: Usage, on_usage: UsageSink) -> None:
        self._counters += usage
        on_usage(usage)

    def counters(self) -> Usage:
        """Totals since the engine was made."""
        return self._counters

    async def close(self) -> None:
        """Nothing to free."""


def replies(table: Mapping[str, Sequence[str]]) -> Script:
    """A script from {last user message: replies}: draw i of the root gets reply i (modulo their number).

    A continued path continues its reply while the text generated so far is a prefix of it; after injected text that the
    reply does not contain it continues after the longest common prefix.
    """

    def script(prompt: Prompt, path: Path, key: int) -> str:
        question = prompt.messages[-1].content
        if question not in table:
            raise ConfigError(f"scripted engine has no reply to {question!r}")
        options = table[question]
        reply = options[path[0] % len(options)]
        generated = prompt.generated_text
        common = next(
            (i for i, (a, b) in enumerate(zip(generated, reply, strict=False)) if a != b),
            min(len(generated), len(reply)),
        )
        return reply[common:]

    return script


def scripted(model: str | None = None, *, thinking: bool = False) -> ScriptedEngine:
    """Answer from a JSON file.

    Args:
        model: path of a JSON file {question: [reply, ...]}.
        thinking: whether the template opens a think block.

    Raises:
        ConfigError: no file, or one that cannot be read.
    """
    if model is None:
        raise ConfigError("engine scripted needs model=PATH of a JSON file {question: [reply, ...]}")
    try:
        table = json.loads(pathlib.Path(model).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"engine scripted cannot read model={model!r}: {exc}") from exc
    return ScriptedEngine(replies(table), thinking=thinking)
