"""What engines that tokenise here have in common: rendering, stop rules, and the checks before anything is sent.

`Text` is the tokenizer of a model folder. Everything is left to the folder's own files through transformers' fast
tokenizer; nothing is guessed for a model without a chat template. Think markers count only when `<think>` and
`</think>` are single tokens.

`TokenEngine` is the base of the engines `embedded`, `vllm`, `sglang` and `ray_workers`, and `StreamingTokenEngine` of
those of them that can show tokens as they come. The checks also serve `openai`, whose dialects render in their own
ways. `Wrapped` is the base of what stands in front of an engine.

A draw ends (`StopRule`) at end-of-sequence ids, stop ids and stop strings across token boundaries. A stop string is
looked for only when the newest token could complete one: it must bring the string's last character. The search then
decodes just enough of the newest tokens, and only tokens of this call.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ttc.core import (
    Capabilities,
    Completion,
    Engine,
    Message,
    Prompt,
    Sampling,
    StreamingEngine,
    ThinkState,
    Usage,
    UsageSink,
)
from ttc.errors import ConfigError, PromptTooLong, Unsupported

OPEN, CLOSE = "<think>", "</think>"


class Text:
    """Encodes, decodes and renders for one model folder. Raises ConfigError naming the folder when it cannot load."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer: Any = _load(folder)
        except Exception as exc:  # the tokenizers library raises bare exceptions
            raise ConfigError(f"{folder} holds no tokenizer that transformers can read: {exc}") from exc
        if not getattr(self._tokenizer, "is_fast", False):
            raise ConfigError(f"{folder}: only fast tokenizers (tokenizer.json) are supported")
        self._fast: Any = self._tokenizer.backend_tokenizer
        self._folder = folder
        vocab = self._tokenizer.get_vocab()
        if vocab.keys() <= set(self._tokenizer.all_special_tokens):  # what transformers makes of a folder without files
            raise ConfigError(f"{folder} holds no tokenizer (tokenizer.json)")
        self.size = max(vocab.values(), default=-1) + 1
        both = OPEN in vocab and CLOSE in vocab
        self.think_open: tuple[int, ...] = (vocab[OPEN],) if both else ()
        self.think_close: tuple[int, ...] = (vocab[CLOSE],) if both else ()
        self.eos_ids = _eos_ids(folder, self._tokenizer.eos_token_id)
        self.handover: str | None = _read(folder, "config.json").get("ttc", {}).get("handover")

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of `text`, nothing added."""
        return tuple(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return str(self._fast.decode(list(ids), skip_special_tokens=False))

    def pieces(self) -> list[str]:
        """The text of every single id, for stop strings; incomplete characters decode to U+FFFD."""
        return list(self._fast.decode_batch([[i] for i in range(self.size)], skip_special_tokens=False))

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Apply the chat template. Raises ConfigError when the model has none or refuses the messages."""
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"{self._folder} has no chat template: use an instruction-tuned model or add chat_template.jinja"
            )
        turns = [{"role": m.role, "content": m.content} for m in messages]
        options = {} if thinking is None else {"enable_thinking": thinking}
        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
        except TemplateError as exc:
            raise ConfigError(f"the chat template of {self._folder} refuses these messages: {exc}") from exc
        ids = self.encode(text)
        return Prompt(
            text=text,
            token_ids=ids,
            rendered_len=len(ids),
            rendered_chars=len(text),
            messages=tuple(messages),
            think_state=self._state(text, turns, options, thinking),
        )

    def _state(
        self, text: str, turns: list[dict[str, str]], options: dict[str, bool], thinking: bool | None
    ) -> ThinkState:
        """Read the state off what the template added after the conversation: markers in user text are inert."""
        if not self.think_open:
            return "none"
        body = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False, **options)
        added = text[len(body) :] if text.startswith(body) else text[-(len(OPEN) + len(CLOSE) + 8) :]
        opened, closed = added.rfind(OPEN), added.rfind(CLOSE)
        if opened > closed:
            return "open"
        return "closed" if closed >= 0 or thinking is False else "none"


def _load(folder: Path) -> Any:
    """The tokenizer; the automatic class is asked only without a tokenizer.json, since its import takes seconds."""
    if (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(folder))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _eos_ids(folder: Path, extra: int | None) -> tuple[int, ...]:
    """End-of-sequence ids that generation_config.json, config.json and the tokenizer name."""
    values = [_read(folder, name).get("eos_token_id") for name in ("generation_config.json", "config.json")]
    ids = {value for value in (*values, extra) if isinstance(value, int)}
    ids.update(i for value in values if isinstance(value, list) for i in value)
    return tuple(sorted(ids))


class StopRule:
    """`watch` holds every id that may end a draw; `reason` decides."""

    __slots__ = ("_decode", "_eos", "_ids", "_strings", "_window", "watch")

    def __init__(
        self,
        strings: tuple[str, ...],
        ids: tuple[int, ...],
        eos: tuple[int, ...],
        pieces: Sequence[str],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """`pieces` is the text of every id and may be empty when there are no stop strings.

        A piece that is empty or holds an incomplete character is always watched, and every piece is for a stop string
        that ends in a space: some tokenizers drop the leading space of a piece that is decoded on its own.
        """
        self._strings, self._ids, self._eos, self._decode = strings, frozenset(ids), frozenset(eos), decode
        self._window = max((len(s.encode()) for s in strings), default=0) + 4
        last = {s[-1] for s in strings}

        def may_complete(piece: str) -> bool:
            return not piece or "\ufffd" in piece or " " in last or any(char in piece for char in last)

        candidates = (i for i, piece in enumerate(pieces) if may_complete(piece)) if strings else ()
        self.watch = self._ids | self._eos | frozenset(candidates)

    def reason(self, generated: Sequence[int]) -> str | int | None:
        """Why the draw ends after its newest token: "eos", a stop id, a stop string, or None."""
        last = generated[-1]
        if last in self._eos:
            return "eos"
        if last in self._ids:
            return last
        if not self._strings:
            return None
        text = self._decode(generated[-self._window :])
        return next((s for s in self._strings if s in text), None)


OnTokens: TypeAlias = Callable[[tuple[int, ...]], None]
"""Is given the ids of one draw as they are sampled."""


class TokenEngine:
    """An engine over the tokenizer of a model folder; what it can do is decided at its start."""

    def __init__(self, text: Text, capabilities: Capabilities) -> None:
        """`text` is the tokenizer of the model that runs."""
        self._text, self._capabilities = text, capabilities
        self._rules: dict[tuple[tuple[str, ...], tuple[int, ...]], StopRule] = {}
        self._pieces: list[str] = []
        self._total = Usage()

    @property
    def capabilities(self) -> Capabilities:
        """See `ttc.core.Engine`."""
        return self._capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `ttc.core.Engine`."""
        return self._text.render(messages, thinking)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `ttc.core.Engine`."""
        return self._text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `ttc.core.Engine`."""
        return self._text.decode(ids)

    def counters(self) -> Usage:
        """See `ttc.core.Engine`."""
        return self._total

    def _charge(self, usage: Usage, on_usage: UsageSink) -> None:
        self._total += usage
        on_usage(usage)

    def _check(self, prompt: Prompt, sampling: Sampling) -> tuple[int, ...]:
        """Return the ids to continue, once they, the seed and the context are known to do."""
        if not prompt.token_ids:
            raise Unsupported("this engine continues token ids: the prompt has none (render it first)")
        check_seed(sampling)
        self._check_room(len(prompt.token_ids), sampling.max_tokens)
        return prompt.token_ids

    def _check_room(self, length: int, wanted: int) -> None:
        check_room(length, wanted, self._capabilities.max_context)

    def _rule(self, sampling: Sampling) -> StopRule:
        """When draws under `sampling` end; kept, since a stop string is looked up in every token of the vocabulary."""
        name = (sampling.stop, sampling.stop_token_ids)
        if name not in self._rules:
            if sampling.stop and not self._pieces:
                self._pieces = self._text.pieces()
            self._rules[name] = StopRule(
                sampling.stop, sampling.stop_token_ids, self._text.eos_ids, self._pieces, self._text.decode
            )
        return self._rules[name]


class StreamingTokenEngine(TokenEngine, ABC):
    """One that can show the tokens of a draw as they come: `generate` and `stream` are one way to draw."""

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        return await self._draws(prompt, sampling, draws, on_usage, None)

    async def stream(
        self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, on_tokens: OnTokens
    ) -> Completion:
        """See `ttc.core.StreamingEngine`."""
        (completion,) = await self._draws(prompt, sampling, range(draw, draw + 1), on_usage, on_tokens)
        return completion

    @abstractmethod
    async def _draws(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> list[Completion]:
        """Check, draw and charge; `on_tokens` comes with a single draw only."""


def check_seed(sampling: Sampling) -> None:
    """Raise ConfigError when sampling would be random without a seed."""
    if sampling.temperature > 0 and sampling.seed is None:
        raise ConfigError("sampling.seed is missing: every run with temperature > 0 states one")


def check_room(length: int, wanted: int, limit: int) -> None:
    """Raise PromptTooLong when `wanted` tokens after `length` pass the context of `limit`."""
    if length + wanted > limit:
        cure = f"lower sampling.max_tokens to {limit - length}, or " if length < limit else ""
        need = f"{length} prompt tokens + {wanted} requested tokens"
        raise PromptTooLong(f"{need} exceed the context of {limit}: {cure}shorten the prompt")


def check_start(length: int, start: int) -> None:
    """Raise ConfigError when `start` is no token that has one before it, of `length` tokens to score."""
    if not 1 <= start <= length:
        raise ConfigError(f"logprobs: start must lie in 1..{length}, got {start}")


class Wrapped:
    """Does everything as `engine` does, but for `close`: that stays with the engine's owner.

    A subclass spells out only what it changes. Optional protocols (streaming, log-probabilities, new weights) are not
    passed on: they are found by `isinstance`, so a wrapper that offers one says so itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine."""
        return self._engine.capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Render as the engine does."""
        return self._engine.render(messages, thinking)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode as the engine does."""
        return self._engine.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode as the engine does."""
        return self._engine.decode(ids)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Draw as the engine does."""
        return await self._engine.generate(prompt, sampling, draws, on_usage)

    def counters(self) -> Usage:
        """Those of the engine."""
        return self._engine.counters()

    async def close(self) -> None:
        """Leave the engine open: its owner closes it."""


class DrawDisplay(Protocol):
    """What shows one draw while it is sampled."""

    def sync(self, prompt: Prompt) -> None:
        """Take over what `prompt` holds after its rendered part: it is final, injected text included."""
        ...

    def add(self, ids: tuple[int, ...]) -> None:
        """Take new sampled ids."""
        ...


async def draw_shown(
    engine: Engine, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, display: DrawDisplay
) -> Completion:
    """Run one draw and show its tokens as they come; where the engine cannot stream, all at once when it is done.

    What every display of tokens does with one draw.
    """
    display.sync(prompt)
    if isinstance(engine, StreamingEngine):
        return await engine.stream(prompt, sampling, draw, on_usage, display.add)
    (completion,) = await engine.generate(prompt, sampling, range(draw, draw + 1), on_usage)
    display.add(completion.token_ids)
    return completion
