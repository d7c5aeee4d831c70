"""The tokenizer of a model folder: chat template, ids, text, end-of-sequence ids and think markers.

Everything is left to the folder's own files through transformers' fast tokenizer; nothing is guessed for a model
without a chat template. Thinking markers are what config.json declares (`{"ttc": {"thinking": {"open", "close"}}}`, as
`ttc train adapt` writes it), else a pair of `MARKERS` that are single tokens, else one that the chat template writes.

What stands in a message is text, whoever wrote it: a control token spelled out there is encoded as characters, so that
nobody forges a turn, or the end of a thought. Only then is a prompt encoded in pieces, cut at those spellings. An
assistant's thought at the head of an earlier turn stays as the template knows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ttc.core import (
    Message,
    Prompt,
    TextMarker,
    ThinkState,
    Tools,
)
from ttc.engines.shared.toolformats import plain_turns, shows_tools, texts_of, tool_format_of, turn_of
from ttc.errors import ConfigError, missing_extra
from ttc.session.thinking import default_handover

MARKERS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<thinking>", "</thinking>"))
"""Pairs that models are trained with."""

SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch of thinking: Qwen3 and most; DeepSeek V3.1 and Granite."""

LONG_TEXT = 20_000
"""Characters beyond which a text takes long enough to encode that nobody should wait for it."""


class Text:
    """Encodes, decodes and renders for one model folder. Raises ConfigError naming the folder when it cannot load."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer: Any = load_tokenizer(folder)
        except ImportError as exc:
            raise missing_extra(exc) from exc
        except Exception as exc:  # the tokenizers library raises bare exceptions
            raise ConfigError(f"{folder} holds no tokenizer that transformers can read: {exc}") from exc
        if not getattr(self._tokenizer, "is_fast", False):
            raise ConfigError(f"{folder}: only fast tokenizers (tokenizer.json) are supported")
        self._fast: Any = self._tokenizer.backend_tokenizer
        self._fast.no_truncation()  # both stay in a tokenizer.json as training left them
        self._fast.no_padding()
        self._folder = folder
        vocab = self._tokenizer.get_vocab()
        if vocab.keys() <= set(self._tokenizer.all_special_tokens):  # what transformers makes of a folder without files
            raise ConfigError(f"{folder} holds no tokenizer (tokenizer.json)")
        self.size = max(vocab.values(), default=-1) + 1
        about = _read(folder, "config.json").get("ttc", {})
        self.markers = _markers(about.get("thinking"), vocab, template_of(self._tokenizer))
        self.think_open, self.think_close = (self._marker(text) for text in self.markers or ("", ""))
        self.think_texts: tuple[TextMarker, TextMarker] | None = None
        if self.markers is not None and not len(self.think_open) == 1 == len(self.think_close):
            self.think_texts = TextMarker(self.markers[0], self.decode), TextMarker(self.markers[1], self.decode)
        self._control = sorted(_control(self._tokenizer), key=len, reverse=True)
        self.eos_ids = _eos_ids(folder, self._tokenizer.eos_token_id)
        authors = _read(folder, "generation_config.json")
        self.recommended = _recommended(authors)
        self.handover: str | None = about.get("handover") or (
            None if self.markers is None or self.markers == MARKERS[0] else default_handover(self.markers[1])
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of `text`, nothing added; while a long one is cut, other threads run."""
        if len(text) <= LONG_TEXT:
            return tuple(self._fast.encode(text, add_special_tokens=False).ids)
        # Of its ways to encode, only that for several texts lets go of the interpreter.
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=False)
        return tuple(encoding.ids)

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """Ids of a turn of the model as the template shows it: behind the words or white space that it writes there."""
        if not self._lead or text.startswith(self._lead):
            return self.encode_said(text)
        return self.encode_said(f"a{self._lead}{text}")[len(self.encode("a")) :]  # some begin a text with a space

    def encode_said(self, text: str) -> tuple[int, ...]:
        """Ids of what a turn says: a token that ends a text, where the words spell it out, is its characters."""
        stops = [token for token in self._control if token in text and self.encode(token)[-1] in self.eos_ids]
        pieces = re.split(f"({'|'.join(map(re.escape, stops))})", text) if stops else [text]
        return tuple(i for piece in pieces for i in (self._plain if piece in stops else self.encode)(piece))

    @cached_property
    def _lead(self) -> str:
        """What stands between what asks for a turn of the model and its content: white space, or a channel's name.

        An empty thought is none of it: who asks decides whether there is one.
        """
        plain = [{"role": "user", "content": "a"}]
        try:
            prompt = self._applied(plain, {}, asks=True)
            whole = self._applied([*plain, {"role": "assistant", "content": _PROBE}], {}, asks=False)
        except ConfigError:  # a template of other conversations shows none
            return ""
        lead = whole.removeprefix(prompt).partition(_PROBE)[0] if whole.startswith(prompt) else ""
        return "" if any(marker in lead for pair in (*MARKERS, self.markers or ()) for marker in pair) else lead

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return str(self._fast.decode(list(ids), skip_special_tokens=False))

    def pieces(self) -> list[str]:
        """The text of every single id, for stop strings; incomplete characters decode to U+FFFD."""
        return list(self._fast.decode_batch([[i] for i in range(self.size)], skip_special_tokens=False))

    @property
    def tokenizer(self) -> Any:
        """Transformers' fast tokenizer."""
        return self._tokenizer

    @property
    def tool_format(self) -> str:
        """How the template shows the model to write calls; "" where it does so in a way that is not read here."""
        return tool_format_of(template_of(self._tokenizer, tools=True))

    def render(self, messages: Sequence[Message], thinking: bool | None, tools: Tools = ()) -> Prompt:
        """Apply the chat template. Raises ConfigError when the model has none or refuses the messages."""
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"{self._folder} has no chat template: use an instruction-tuned model, add chat_template.jinja, or "
                "make a copy that has one: ttc train adapt MODEL --out DIR"
            )
        turns, offer, spelled = self._spelled(messages, tools)
        options: dict[str, Any] = {} if thinking is None else dict.fromkeys(SWITCHES, thinking)
        if shows_tools(template_of(self._tokenizer, tools=bool(offer))):
            options |= {"tools": offer} if offer else {}
        else:
            turns = plain_turns(turns, offer)
        text = self._applied(turns, options, asks=True)
        state = self._state(text, turns, options)
        if thinking is False and state != "closed" and self.markers is not None:
            text, state = self._without_thought(text, turns, options), "closed"
        pieces, plain = _split(text, spelled), {piece: self._plain(token) for piece, token in spelled.items()}
        ids = tuple(i for piece in pieces for i in (plain[piece] if piece in plain else self.encode(piece)))
        text = "".join(spelled.get(piece, piece) for piece in pieces)
        return Prompt(
            text=text,
            token_ids=ids,
            rendered_len=len(ids),
            rendered_chars=len(text),
            messages=tuple(messages),
            think_state=state,
        )

    def _applied(self, turns: list[dict[str, Any]], options: Mapping[str, Any], *, asks: bool) -> str:
        """The conversation as text; `asks` adds what a turn of the model begins with."""
        from jinja2 import TemplateError

        shown = in_parts(turns, self._in_parts)
        try:
            return str(
                self._tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=asks, **options)
            )
        except TemplateError as exc:
            raise ConfigError(f"the chat template of {self._folder} refuses these messages: {exc}") from exc
        except Exception as exc:  # a template is a program: it may fail as any other does
            raise ConfigError(
                f"the chat template of {self._folder} fails on these messages: {type(exc).__name__}: {exc}"
            ) from exc

    @cached_property
    def _in_parts(self) -> frozenset[str]:
        return roles_in_parts(self._tokenizer)

    def _spelled(
        self, messages: Sequence[Message], tools: Tools
    ) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]], dict[str, str]]:
        """Turns and tools with a stand-in for every control token that somebody spells out; token by stand-in."""
        stand_ins = {token: _STAND_IN.format(number) for number, token in enumerate(self._control)}
        offer = json.dumps(list(tools), ensure_ascii=False)
        texts = [offer, *(text for message in messages for text in texts_of(message))]
        if not any(token in text for text in texts for token in self._control):
            return [turn_of(message) for message in messages], list(tools), {}

        def spell(text: str) -> str:
            text = re.sub(_STANDS, "", text)  # nobody spells a stand-in either
            for token, stand_in in stand_ins.items():
                text = text.replace(token, stand_in)
            return text

        turns = []
        for message in messages:
            head = self._thought(message.content) if message.role == "assistant" else ""
            turns.append(turn_of(message, spell) | {"content": head + spell(message.content[len(head) :])})
        return turns, json.loads(spell(offer)), {stand_in: token for token, stand_in in stand_ins.items()}

    def _thought(self, text: str) -> str:
        """The thought at the head of a turn, markers included; "" without one."""
        opening, closing = self.markers or MARKERS[0]
        inside, marker, _ = text.partition(closing)
        return inside + marker if marker and inside.lstrip().startswith(opening) else ""

    def _marker(self, text: str) -> tuple[int, ...]:
        """The ids of a marker by itself."""
        return self.encode(text) if text else ()

    def _plain(self, token: str) -> tuple[int, ...]:
        """The ids of a control token's characters: cut in two, it is none."""
        return self.encode(token[:1]) + self.encode(token[1:])

    def _without_thought(self, text: str, turns: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """A rendering that asks for no thought, where the template has written no end of one.

        A template that opens a thought whatever is asked of it is closed at once. One that knows thoughts, but no
        switch, leaves the model to open its own: an empty one is put before it (Ma et al. 2025, "Reasoning Models Can
        Be Effective Without Thinking"). Who has a switch has said what there is to say.
        """
        opening, closing = self.markers or MARKERS[0]
        if self._state(text, turns, options) == "open":
            return f"{text.rstrip()}\n\n{closing}\n\n"
        knows = any(marker in template_of(self._tokenizer, tools="tools" in options) for marker in (opening, closing))
        if knows and text == self._applied(turns, options | dict.fromkeys(SWITCHES, True), asks=True):
            return f"{text}{opening}\n\n{closing}\n\n"
        return text

    def _state(self, text: str, turns: list[dict[str, Any]], options: dict[str, Any]) -> ThinkState:
        """Read the state off what the template added after the conversation: markers in user text are inert."""
        if self.markers is None:
            return "none"
        opening, closing = self.markers
        body = self._applied(turns, options, asks=False)
        added = text[len(body) :] if text.startswith(body) else text[-(len(opening) + len(closing) + 8) :]
        opened, closed = added.rfind(opening), added.rfind(closing)
        if opened > closed:
            return "open"
        return "closed" if closed >= 0 else "none"


def template_of(tokenizer: Any, *, tools: bool = False) -> str:
    """The chat template that transformers takes; of several that one named tool_use where tools are shown."""
    templates = tokenizer.chat_template or ""
    if isinstance(templates, str):
        return templates
    plain = str(templates.get("default", ""))
    return str(templates.get("tool_use", plain)) if tools else plain


_PROBE = "ttc{}probe"


def roles_in_parts(tokenizer: Any) -> frozenset[str]:
    """The roles whose content a chat template reads as a list of parts, and would leave out as a plain text.

    Templates of models that also see images have such loops. What is found is how the template shows a conversation of
    stand-ins; a template that refuses it takes plain texts.
    """
    template = str(tokenizer.chat_template)
    if "text" not in template:
        return frozenset()
    roles = ("system", "user", "assistant")
    plain = _probe(tokenizer, roles, ())
    if all(_PROBE.format(role) in plain for role in roles):
        return frozenset()
    parts = _probe(tokenizer, roles, roles)
    mine = {role for role in roles if _PROBE.format(role) not in plain and _PROBE.format(role) in parts}
    spelled = {role for role in mine if f"'{_PROBE.format(role)}'" in parts}  # a list, printed as Python does
    return frozenset(mine - spelled) | ({"tool"} if "user" in mine - spelled else frozenset())


def _probe(tokenizer: Any, roles: Sequence[str], listed: Sequence[str]) -> str:
    """What the template makes of a turn of each role, or of as many as it takes; those of `listed` in parts."""
    turns = [{"role": role, "content": _PROBE.format(role)} for role in roles]
    for conversation in ([*turns, turns[-2]], [*turns[1:], turns[-2]], [turns[-2]]):
        try:
            return str(tokenizer.apply_chat_template(in_parts(conversation, listed), tokenize=False))
        except Exception:  # a template is a program: it says by failing that it takes no such turns
            continue
    return ""


def in_parts(turns: Iterable[Mapping[str, Any]], roles: Collection[str]) -> list[dict[str, Any]]:
    """`turns`, the contents of `roles` as the list of parts that transformers knows."""
    return [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]} if turn["role"] in roles else dict(turn)
        for turn in turns
    ]


_STAND_IN = "\ue0f0{}\ue0f1"
_STANDS = re.compile("\ue0f0[0-9]*\ue0f1")


def _markers(declared: Any, vocab: Mapping[str, int], template: str) -> tuple[str, str] | None:
    """The markers of a thought: declared, single tokens, or written by the template."""
    if isinstance(declared, Mapping):
        return str(declared["open"]), str(declared["close"])
    single = (pair for pair in MARKERS if all(marker in vocab for marker in pair))
    written = (pair for pair in MARKERS if all(marker in template for marker in pair))
    return next(single, None) or next(written, None)


def _control(tokenizer: Any) -> set[str]:
    """What is one id however it is written: special tokens, and markers that were added to the vocabulary."""
    added = tokenizer.added_tokens_decoder.values()
    marks = {str(token.content) for token in added if token.special or str(token.content)[:1] in ("<", "[")}
    return {mark for mark in marks if len(mark) > 1}


def _split(text: str, spelled: dict[str, str]) -> list[str]:
    """`text` cut before and after each stand-in."""
    return [piece for piece in re.split(f"({_STANDS.pattern})", text) if piece] if spelled else [text]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer; the automatic class is asked only without a tokenizer.json, since its import takes seconds."""
    if (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(folder))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return values


_BELOW = {"temperature": 100.0, "top_p": 1.0, "top_k": 1 << 20, "min_p": 1.0, "repetition_penalty": 100.0}
"""Settings that a model's authors may recommend, all above 0; what is not below these is off, or a mistake."""
_OFF = {"repetition_penalty": 1.0}
"""What is off although it lies in that range."""


def _recommended(stated: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """The settings of sampling that generation_config.json states."""
    values = {name: stated.get(name) for name in _BELOW}
    numbers = {name: v for name, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return tuple((name, v) for name, v in numbers.items() if 0 < v < _BELOW[name] and v != _OFF.get(name))


def _eos_ids(folder: Path, extra: int | None) -> tuple[int, ...]:
    """End-of-sequence ids that generation_config.json, config.json and the tokenizer name."""
    values = [_read(folder, name).get("eos_token_id") for name in ("generation_config.json", "config.json")]
    ids = {value for value in (*values, extra) if isinstance(value, int)}
    ids.update(i for value in values if isinstance(value, list) for i in value)
    return tuple(sorted(ids))
