"""The interface of an adapter: a small frozen description of one family of reward models.

An adapter writes problem and steps as text in the reward model's own format, cut into segments that are tokenised
separately, and marks where scores are read: a mark is the character at which a token must end. Everything else (which
tokens, how many of them are new, the arithmetic) is done by the scorer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ttc.choosing.selection import How
from ttc.core import Message
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Text that is tokenised separately, and the ends (characters, exclusive) of the tokens where scores are read.

    `special` lets the tokenizer add its beginning-of-sequence token in front.
    """

    text: str
    marks: tuple[int, ...] = ()
    special: bool = False


class ChatTemplate(Protocol):
    """The methods of the reward model's tokenizer that an adapter may call."""

    @property
    def bos(self) -> str:
        """Text of the beginning-of-sequence token; empty without one."""
        ...

    def apply(self, messages: Sequence[Message], *, generation: bool = False) -> str:
        """Apply the chat template; `generation` adds the start of an answer. Raises ConfigError without a template."""
        ...


class Render(Protocol):
    """Writes a problem and its steps so far; one mark per step, in order."""

    def __call__(self, chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str]) -> list[TextSegment]:
        """`messages` is the problem as the generator received it, `steps` has at least one text."""
        ...


@dataclass(frozen=True, slots=True)
class Adapter:
    """One family of reward models.

    `names` are parts of a folder's or hub id's name in lower case and `architectures` entries of config.json by which a
    model is recognised; `families` are the `model_type`s it may have. `kind` label reads a classification head
    (`positive_label` of it through `activation`), token the language-model head (`good` against `bad`). A step ends at
    `step_delimiter`; with `outcome` the whole answer is one step. `tag` is the text of the marked token, which must be
    one token of the model; None where the format itself ends there. `aggregation` makes `Score.value` of the steps.
    `vllm` is the route of a vLLM server that reads the head of a label model, None when vLLM has no code for it.
    """

    name: str
    render: Render
    names: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    families: tuple[str, ...] = ("qwen2",)
    kind: Literal["label", "token"] = "label"
    positive_label: int = 1
    activation: Literal["softmax", "sigmoid"] = "softmax"
    good: str = "+"
    bad: str = "-"
    step_delimiter: str = "\n\n"
    tag: str | None = None
    outcome: bool = False
    aggregation: How = "last"
    vllm: Literal["/pooling", "/classify"] | None = "/pooling"


def question_of(messages: Sequence[Message]) -> str:
    """The problem as one text: every turn but the system's instructions to the generator."""
    return "\n\n".join(message.content for message in messages if message.role != "system")


def conversation(messages: Sequence[Message], system: str | None) -> list[Message]:
    """The turns of the problem after the reward model's own system message (None: the template's default)."""
    turns = [message for message in messages if message.role != "system"]
    return turns if system is None else [Message("system", system), *turns]


def marks_of(text: str, tag: str, num: int, name: str) -> tuple[int, ...]:
    """Ends of every `tag` in `text`; there must be `num` of them.

    Raises:
        ConfigError: the chat template dropped or repeated a tag.
    """
    ends = tuple(match.end() for match in re.finditer(re.escape(tag), text))
    if len(ends) != num:
        raise ConfigError(f"adapter {name}: the chat template shows {len(ends)} of {num} step tags {tag!r}")
    return ends
