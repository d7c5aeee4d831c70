"""The tokenizer of a model folder: chat template, ids, text, end-of-sequence ids and think markers.

Everything is read from the folder's own files through transformers' fast tokenizer; nothing is assumed for a model
without a chat template. Think markers are those declared in config.json (`{"ttc": {"thinking": {"open", "close"}}}`,
written by `ttc train adapt`), else a pair of `MARKERS` that are single tokens, else a pair that the chat template
writes, else gpt-oss's `CHANNELS`.

The content of a message is plain text, whoever wrote it: a control token spelled out in it is encoded as characters, so
that nobody can forge a turn or the end of a thought. Only in that case is a prompt encoded in pieces, split at those
spellings. An assistant's thought at the start of an earlier turn keeps the markers that the template expects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ttc.core import (
    Message,
    Prompt,
    TextMarker,
    ThinkState,
    ToolMessage,
    Tools,
)
from ttc.errors import ConfigError, missing_extra
from ttc.session.thinking import default_handover
from ttc.toolformats.families import PLAIN, Writing, plain_turns, shows_tools, texts_of, turns_of, writing_of

_TIGHT = (("<|channel>thought", "<channel|>"), ("<|START_THINKING|>", "<|END_THINKING|>"))
"""Pairs beside which no line ends: of Gemma 4; of Command A and R7B."""
MARKERS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<think:opensource>", "</think:opensource>"),  # Hunyuan 3
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("◁think▷", "◁/think▷"),  # Kimi VL
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    *_TIGHT,
    ("<thinking>", "</thinking>"),
)
"""Marker pairs that models are trained with: of those that a model has, the first is its own."""

CHANNELS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
"""gpt-oss's: a thought is a message of one channel, and the answer one of another."""
COMMENTARY = "<|end|><|start|>assistant<|channel|>commentary"
"""What ends a thought of gpt-oss before a call of a function."""

_ANSWER = "<|START_RESPONSE|>"
"""What begins an answer of Command A in the prompt itself, behind where a thought would stand."""

SWITCHES = ("enable_thinking", "thinking")
"""Template variables that switch thinking: of Qwen3 and most others; of DeepSeek V3.1 and Granite."""

LONG_TEXT = 20_000
"""Longer texts, in characters, take long enough to encode that the event loop should not wait for it."""


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
        self._fast.no_truncation()  # tokenizer.json may contain the truncation of its training
        self._fast.no_padding()
        self._folder = folder
        vocab = self._tokenizer.get_vocab()
        # transformers builds such a tokenizer for a folder without files
        if vocab.keys() <= set(self._tokenizer.all_special_tokens):
            raise ConfigError(f"{folder} holds no tokenizer (tokenizer.json)")
        self.size = max(vocab.values(), default=-1) + 1
        about = _read(folder, "config.json").get("ttc", {})
        self.markers = _markers(about.get("thinking"), vocab, template_of(self._tokenizer))
        self.think_open, self.think_close = (self._marker(text) for text in self.markers or ("", ""))
        self.think_texts: tuple[TextMarker, TextMarker] | None = None
        if self.markers is not None and not len(self.think_open) == 1 == len(self.think_close):
            others = (COMMENTARY,) if self.markers == CHANNELS else ()
            opening, closing = self.markers
            self.think_texts = TextMarker(opening, self.decode), TextMarker(closing, self.decode, others)
        self._control = sorted(_control(self._tokenizer), key=len, reverse=True)
        self.eos_ids = _eos_ids(folder, self._tokenizer.eos_token_id)
        authors = _read(folder, "generation_config.json")
        self.recommended = _recommended(authors)
        self._gap = "" if self.markers in (CHANNELS, *_TIGHT) else "\n\n"
        self.handover: str | None = about.get("handover") or (
            None if self.markers is None or self.markers == MARKERS[0] else default_handover(self.markers[1], self._gap)
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of `text` without special tokens added; a long text is encoded without holding the GIL."""
        if len(text) <= LONG_TEXT:
            return tuple(self._fast.encode(text, add_special_tokens=False).ids)
        # of the tokenizer's methods, only batch encoding releases the GIL
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=False)
        return tuple(encoding.ids)

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """Ids of a model's turn as the template renders it, after the text that the template puts before it."""
        if not self._lead or text.startswith(self._lead):
            return self.encode_said(text)
        # some tokenizers start a text with a space
        return self.encode_said(f"a{self._lead}{text}")[len(self.encode("a")) :]

    def encode_said(self, text: str) -> tuple[int, ...]:
        """Ids of a turn's content: an end-of-text token that is spelled out in it is encoded as characters."""
        stops = [token for token in self._control if token in text and self.encode(token)[-1] in self.eos_ids]
        pieces = re.split(f"({'|'.join(map(re.escape, stops))})", text) if stops else [text]
        return tuple(i for piece in pieces for i in (self._plain if piece in stops else self.encode)(piece))

    @cached_property
    def _lead(self) -> str:
        """The text between the generation prompt and the turn's content: white space, or the name of a channel.

        An empty thought is not part of it, since whether there is one depends on the request.
        """
        plain = [{"role": "user", "content": "a"}]
        try:
            prompt = self._applied(plain, {}, add_generation_prompt=True)
            whole = self._applied([*plain, {"role": "assistant", "content": _PROBE}], {}, add_generation_prompt=False)
        except ConfigError:  # the template refuses this conversation
            return ""
        lead = whole.removeprefix(prompt).partition(_PROBE)[0] if whole.startswith(prompt) else ""
        return "" if any(marker in lead for pair in (*MARKERS, self.markers or ()) for marker in pair) else lead

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return str(self._fast.decode(list(ids), skip_special_tokens=False))

    def pieces(self) -> list[str]:
        """The text of each single id, for stop strings; incomplete characters decode to U+FFFD."""
        return list(self._fast.decode_batch([[i] for i in range(self.size)], skip_special_tokens=False))

    @property
    def tokenizer(self) -> Any:
        """Transformers' fast tokenizer."""
        return self._tokenizer

    @property
    def tool_format(self) -> str:
        """The format in which the template writes calls; "" if it is not supported here."""
        return self._writing.name

    @cached_property
    def _writing(self) -> Writing:
        def render(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
            return self._applied([dict(turn) for turn in turns], {"tools": list(tools)}, add_generation_prompt=False)

        return writing_of(template_of(self._tokenizer, tools=True), self._control, render)

    def render(self, messages: Sequence[Message], thinking: bool | None, tools: Tools = ()) -> Prompt:
        """Apply the chat template. Raises ConfigError when the model has none or refuses the messages."""
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"{self._folder} has no chat template: use an instruction-tuned model, add chat_template.jinja, or "
                "make a copy that has one: ttc train adapt MODEL --out DIR"
            )
        turns, offer, spelled = self._spelled(messages, tools)
        options: dict[str, Any] = {} if thinking is None else dict.fromkeys(SWITCHES, thinking)
        if self._tells_calls(messages, offer):
            options |= {"tools": offer} if offer else {}
        else:
            turns = plain_turns(turns, offer)
        text = self._applied(turns, options, add_generation_prompt=True)
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

    def _tells_calls(self, messages: Sequence[Message], offer: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the template itself shows the functions, calls and results of a conversation, if there are any."""
        if not offer and not any(isinstance(message, ToolMessage) for message in messages):
            return True
        return shows_tools(template_of(self._tokenizer, tools=bool(offer))) and self._writing.name != PLAIN

    def _applied(self, turns: list[dict[str, Any]], options: Mapping[str, Any], *, add_generation_prompt: bool) -> str:
        """The conversation as text, optionally with the generation prompt."""
        from jinja2 import TemplateError

        messages = in_parts(turns, self._in_parts)
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=add_generation_prompt, **options
                )
            )
        except TemplateError as exc:
            raise ConfigError(f"the chat template of {self._folder} refuses these messages: {exc}") from exc
        except Exception as exc:  # a template is a program and may raise anything
            raise ConfigError(
                f"the chat template of {self._folder} fails on these messages: {type(exc).__name__}: {exc}"
            ) from exc

    @cached_property
    def _in_parts(self) -> frozenset[str]:
        return roles_in_parts(self._tokenizer)

    def _spelled(
        self, messages: Sequence[Message], tools: Tools
    ) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]], dict[str, str]]:
        """Replace spelled-out control tokens in turns and tools by placeholders; returns also token by placeholder."""
        stand_ins = {token: _STAND_IN.format(number) for number, token in enumerate(self._control)}
        offer = json.dumps(list(tools), ensure_ascii=False)
        texts = [offer, *(text for message in messages for text in texts_of(message))]
        if not any(token in text for text in texts for token in self._control):
            return self._turns(messages, str), list(tools), {}

        def spell(text: str) -> str:
            text = re.sub(_STANDS, "", text)  # user text must not contain placeholders either
            for token, stand_in in stand_ins.items():
                text = text.replace(token, stand_in)
            return text

        turns = self._turns(messages, spell)
        for turn, message in zip(turns, messages, strict=True):
            if message.role == "assistant" and (head := self._thought(message.content)):
                turn["content"] = head + turn["content"][len(spell(head)) :]
        return turns, json.loads(spell(offer)), {stand_in: token for token, stand_in in stand_ins.items()}

    def _turns(self, messages: Sequence[Message], spell: Callable[[str], str]) -> list[dict[str, Any]]:
        """`messages` as this model's template expects them."""
        has_calls = any(isinstance(message, ToolMessage) and message.calls for message in messages)
        return turns_of(messages, spell, self._writing if has_calls else None)

    def _thought(self, text: str) -> str:
        """The thought at the start of a turn, markers included; "" without one."""
        opening, closing = self.markers or MARKERS[0]
        inside, marker, _ = text.partition(closing)
        return inside + marker if marker and inside.lstrip().startswith(opening) else ""

    def _marker(self, text: str) -> tuple[int, ...]:
        """The ids of a marker encoded alone."""
        return self.encode(text) if text else ()

    def _plain(self, token: str) -> tuple[int, ...]:
        """The ids of a control token's characters: split in two, it is not recognised as one."""
        return self.encode(token[:1]) + self.encode(token[1:])

    def _without_thought(self, text: str, turns: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """The rendering for a request without thinking, where the template has not ended a thought itself.

        A thought that the template opens unconditionally is closed at once. A template that supports thoughts but has
        no switch leaves it to the model to open one: an empty thought is put before the answer (Ma et al. 2025,
        "Reasoning Models Can Be Effective Without Thinking"). A template with a switch is left as it is.
        """
        opening, closing = self.markers or MARKERS[0]
        if self._state(text, turns, options) == "open":
            return f"{text.rstrip()}{self._gap}{closing}{self._gap}"
        if text.endswith(_ANSWER):
            return text
        knows = any(marker in template_of(self._tokenizer, tools="tools" in options) for marker in (opening, closing))
        if knows and text == self._applied(turns, options | dict.fromkeys(SWITCHES, True), add_generation_prompt=True):
            return f"{text}{opening}{self._gap}{closing}{self._gap}"
        return text

    def _state(self, text: str, turns: list[dict[str, Any]], options: dict[str, Any]) -> ThinkState:
        """Read the thinking state from what the template added, so that markers in user text have no effect."""
        if self.markers is None:
            return "none"
        opening, closing = self.markers
        body = self._applied(turns, options, add_generation_prompt=False)
        added = text[len(body) :] if text.startswith(body) else text[-(len(opening) + len(closing) + 8) :]
        opened, closed = added.rfind(opening), added.rfind(closing)
        if opened > closed:
            return "open"
        return "closed" if closed >= 0 else "none"


def template_of(tokenizer: Any, *, tools: bool = False) -> str:
    """The chat template that transformers uses; of several, the one named tool_use where tools are given."""
    templates = tokenizer.chat_template or ""
    if isinstance(templates, str):
        return templates
    plain = str(templates.get("default", ""))
    return str(templates.get("tool_use", plain)) if tools else plain


_PROBE = "ttc{}probe"


def roles_in_parts(tokenizer: Any) -> frozenset[str]:
    """The roles whose content a chat template expects as a list of parts; it would omit plain text.

    Templates of models that also see images have such loops. Found by rendering a conversation of probe texts; a
    template that refuses it is assumed to take plain text.
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
    spelled = {role for role in mine if f"'{_PROBE.format(role)}'" in parts}  # the template printed a Python list
    return frozenset(mine - spelled) | ({"tool"} if "user" in mine - spelled else frozenset())


def _probe(tokenizer: Any, roles: Sequence[str], listed: Sequence[str]) -> str:
    """Render a probe turn of each role, or of as many as the template accepts; those of `listed` in parts."""
    turns = [{"role": role, "content": _PROBE.format(role)} for role in roles]
    for conversation in ([*turns, turns[-2]], [*turns[1:], turns[-2]], [turns[-2]]):
        try:
            return str(tokenizer.apply_chat_template(in_parts(conversation, listed), tokenize=False))
        except Exception:  # a template raises for turns that it does not accept
            continue
    return ""


def in_parts(turns: Iterable[Mapping[str, Any]], roles: Collection[str]) -> list[dict[str, Any]]:
    """`turns`, with the contents of `roles` as the list of parts that transformers expects."""
    return [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]}
        if turn["role"] in roles and turn["content"] is not None
        else dict(turn)
        for turn in turns
    ]


_STAND_IN = "\ue0f0{}\ue0f1"
_STANDS = re.compile("\ue0f0[0-9]*\ue0f1")


def _markers(declared: Any, vocab: Mapping[str, int], template: str) -> tuple[str, str] | None:
    """The markers of a thought: declared, single tokens, or written by the template."""
    if isinstance(declared, Mapping):
        return str(declared["open"]), str(declared["close"])
    single = (pair for pair in MARKERS if all(_CHANNEL.sub("", marker) in vocab for marker in pair))
    by_template = (pair for pair in MARKERS if all(marker in template for marker in pair))
    channels = all(marker[marker.rindex("<|channel|>") :] in template for marker in CHANNELS)
    return next(single, None) or next(by_template, None) or (CHANNELS if channels else None)


_CHANNEL = re.compile(r"(?<=<\|channel>)thought")
"""The word behind the token that opens a thought of Gemma 4."""


def _control(tokenizer: Any) -> set[str]:
    """Strings that are encoded as one id wherever they appear: special tokens, and markers added to the vocabulary."""
    added = tokenizer.added_tokens_decoder.values()
    marks = {str(token.content) for token in added if token.special or str(token.content)[:1] in ("<", "[")}
    return {mark for mark in marks if len(mark) > 1}


def _split(text: str, spelled: dict[str, str]) -> list[str]:
    """Split `text` before and after each placeholder."""
    return [piece for piece in re.split(f"({_STANDS.pattern})", text) if piece] if spelled else [text]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer; the auto class is used only without a tokenizer.json, since its import takes seconds."""
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
"""Upper bounds of settings that a model's authors may recommend, all above 0; other values are off or invalid."""
_OFF = {"repetition_penalty": 1.0}
"""Values within these bounds that are off."""


def _recommended(stated: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """The sampling settings in generation_config.json."""
    values = {name: stated.get(name) for name in _BELOW}
    numbers = {name: v for name, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return tuple((name, v) for name, v in numbers.items() if 0 < v < _BELOW[name] and v != _OFF.get(name))


def _eos_ids(folder: Path, extra: int | None) -> tuple[int, ...]:
    """End-of-sequence ids of generation_config.json, config.json and the tokenizer."""
    values = [_read(folder, name).get("eos_token_id") for name in ("generation_config.json", "config.json")]
    ids = {value for value in (*values, extra) if isinstance(value, int)}
    ids.update(i for value in values if isinstance(value, list) for i in value)
    return tuple(sorted(ids))
