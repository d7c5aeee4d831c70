"""From a path of the search to what the reward model reads: its ids, and the positions at which scores are read.

`SameIds` serves reward models with the generator's own tokenizer: the sampled ids themselves, a tag behind every step.
`OwnText` serves all others: problem and steps are written in the reward model's format (an `Adapter`) and tokenised by
its own tokenizer. Both are pure functions of the path, so a longer path shares all ids up to where it grew.

`RewardTokenizer` is the reward model's tokenizer: chat template, ids with their places in the text, single tokens,
harmless text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ttc.core import Message, Prompt
from ttc.engines.shared.text import in_parts, load_tokenizer, roles_in_parts
from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Adapter, TextSegment


class RewardTokenizer:
    """Reads the tokenizer of a model folder. Raises ConfigError naming the folder when it cannot."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer: Any = load_tokenizer(folder)
        except Exception as exc:  # the tokenizers library raises bare exceptions
            raise ConfigError(f"{folder} holds no tokenizer that transformers can read: {exc}") from exc
        if not getattr(self._tokenizer, "is_fast", False):
            raise ConfigError(f"{folder}: only fast tokenizers (tokenizer.json) are supported")
        self._folder = folder
        self._texts: dict[int, str] = {}
        added = self._tokenizer.added_tokens_decoder.values()
        self._markers = [token.content for token in added if token.special or re.fullmatch(r"<.+>", token.content)]

    @property
    def bos(self) -> str:
        """Text of the beginning-of-sequence token; empty without one."""
        return self._tokenizer.bos_token or ""

    def text(self, token: int) -> str:
        """Text of one id."""
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token])
        return self._texts[token]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def single(self, name: str, text: str) -> int:
        """The one id of `text`; a text that the tokenizer splits is refused."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1:
            raise ConfigError(f"prm {name}={text!r} must be one token of {self._folder}, it is {len(ids)}")
        return int(ids[0])

    def apply(self, messages: Sequence[Message], *, generation: bool = False) -> str:
        """Apply the chat template. Raises ConfigError when there is none or it refuses the messages."""
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise ConfigError(f"{self._folder} has no chat template, which this kind of reward model needs")
        plain = ({"role": message.role, "content": message.content} for message in messages)
        turns = in_parts(plain, self._in_parts)
        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generation)
        except TemplateError as exc:
            raise ConfigError(f"the chat template of {self._folder} refuses these messages: {exc}") from exc
        return str(text)

    @cached_property
    def _in_parts(self) -> frozenset[str]:
        return roles_in_parts(self._tokenizer)

    def locate(self, segment: TextSegment, tag: str | None) -> tuple[list[int], list[int]]:
        """Ids of a segment, and the index of the token that ends at each of its marks.

        Raises:
            ConfigError: the tokenizer splits a tag, or joins it with its neighbours.
        """
        encoding = self._tokenizer(segment.text, add_special_tokens=segment.special, return_offsets_mapping=True)
        ids, offsets = list(encoding["input_ids"]), encoding["offset_mapping"]
        ends = {end: (index, start) for index, (start, end) in enumerate(offsets) if end > start}
        positions = []
        for mark in segment.marks:
            index, start = ends.get(mark, (-1, mark))
            between = segment.text[start : mark - len(tag or "")].strip()
            if index < 0 or (tag is not None and (start > mark - len(tag) or between)):
                raise ConfigError(f"{self._folder}: its tokenizer splits or joins the step tag {tag!r}")
            positions.append(index)
        return ids, positions

    def harmless(self, text: str, tag: str | None) -> str:
        """`text` with every marker of the model broken by a space, so that only our own markers count."""
        own = [tag] if tag is not None and tag.strip() else []
        for marker in (*self._markers, *own):
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
        return text


_THINK = re.compile(r"</?think>")


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What the model reads for one path: `reads` are the positions of the scores in `ids`, one per step, ascending."""

    ids: tuple[int, ...]
    reads: tuple[int, ...]


class Layout(Protocol):
    """Lays a path out for the model. Raises ConfigError for a path it cannot serve."""

    per_token: int
    """How many ids a generated token adds, on the safe side."""

    whole_answers: bool
    """Whether only a whole answer can be scored, rather than each step."""

    def key(self, prompt: Prompt) -> Hashable:
        """What the root depends on: equal for all paths of one rendering of a problem."""
        ...

    def root(self, prompt: Prompt) -> tuple[int, ...]:
        """Ids that all paths of the prompt's problem share."""
        ...

    def lay(self, prompt: Prompt) -> ModelInput:
        """Ids and reads of the path so far; no reads when it has no step yet. `root` has accepted its key before."""
        ...


class SameIds:
    """The generator's ids. A step ends at `delimiter`; the token `tag` is inserted there when the model wants one."""

    whole_answers = False

    def __init__(self, tokens: RewardTokenizer, vocab: int, delimiter: str, tag: int | None) -> None:
        self._tokens, self._vocab, self._delimiter, self._tag = tokens, vocab, delimiter, tag
        self.per_token = 1 if tag is None else 2

    def key(self, prompt: Prompt) -> Hashable:
        """The rendered ids."""
        return None if prompt.token_ids is None else prompt.token_ids[: prompt.rendered_len]

    def root(self, prompt: Prompt) -> tuple[int, ...]:
        """The rendered prompt, when this tokenizer reads it as the generator's does."""
        if prompt.token_ids is None:
            raise ConfigError("scorer prm needs an engine that gives token ids, or an adapter that reads text")
        ids = prompt.token_ids[: prompt.rendered_len]
        known = max(ids, default=0) < self._vocab
        # Tokenizers after SentencePiece's write a space behind control tokens, which the template's text has not.
        if not known or _unspaced(self._tokens.decode(ids)) != _unspaced(prompt.text[: prompt.rendered_chars]):
            raise ConfigError(
                "scorer prm: its tokenizer does not match the generator's; use a reward model with the same tokenizer, "
                "or name its format: --set scorer.adapter=NAME"
            )
        return ids

    def lay(self, prompt: Prompt) -> ModelInput:
        """Insert tags; scores are read at them, or at the last token of each step."""
        ids = list((prompt.token_ids or ())[: prompt.rendered_len])
        closed: list[int] = []
        previous = ""
        for token in prompt.generated_ids:
            text = self._tokens.text(token)
            ids.append(token)
            joint = previous + text
            ends = self._delimiter in joint and self._delimiter not in previous
            previous = "" if ends else text
            if ends:
                if self._tag is not None:
                    ids.append(self._tag)
                closed.append(len(ids) - 1)
        if len(ids) > prompt.rendered_len and (not closed or closed[-1] != len(ids) - 1):
            if self._tag is not None:
                ids.append(self._tag)
            closed.append(len(ids) - 1)
        return ModelInput(tuple(ids), tuple(closed))


class OwnText:
    """The reward model's own format and tokenizer. Markers in the texts are broken, so nobody can forge a step."""

    per_token = 2

    def __init__(self, adapter: Adapter, tokens: RewardTokenizer, delimiter: str) -> None:
        """Raises ConfigError at once when the tokenizer cannot write this format (a split tag, no chat template)."""
        self._adapter, self._tokens, self._delimiter = adapter, tokens, delimiter
        self.whole_answers = adapter.outcome
        self._encode((Message("user", "1 + 1?"),), ("It is 2.", "So 2."))

    def key(self, prompt: Prompt) -> Hashable:
        """The messages."""
        return prompt.messages

    def root(self, prompt: Prompt) -> tuple[int, ...]:
        """Everything before the first step: what two different first steps have in common."""
        messages = self._messages(prompt)
        one, other = self._encode(messages, ("0",)), self._encode(messages, ("x",))
        return one.ids[: min(common(one.ids, other.ids), one.reads[0])]

    def lay(self, prompt: Prompt) -> ModelInput:
        """Write the steps so far."""
        texts = steps_of(prompt, None if self._adapter.outcome else self._delimiter)
        steps = [self._tokens.harmless(text, self._adapter.tag) for text in texts]
        return self._encode(self._messages(prompt), steps) if steps else ModelInput((), ())

    def _messages(self, prompt: Prompt) -> list[Message]:
        if not prompt.messages:
            raise ConfigError(f"adapter {self._adapter.name} needs the problem's messages, this prompt has none")
        return [Message(m.role, self._tokens.harmless(m.content, self._adapter.tag)) for m in prompt.messages]

    def _encode(self, messages: Sequence[Message], steps: Sequence[str]) -> ModelInput:
        ids: list[int] = []
        reads: list[int] = []
        for segment in self._adapter.render(self._tokens, messages, steps):
            new, at = self._tokens.locate(segment, self._adapter.tag)
            reads += [len(ids) + index for index in at]
            ids += new
        return ModelInput(tuple(ids), tuple(reads))


def _unspaced(text: str) -> str:
    return "".join(text.split())


def steps_of(prompt: Prompt, delimiter: str | None) -> list[str]:
    """The texts of the steps so far, without thinking marks and blank ones; the whole answer without a delimiter."""
    text = _THINK.sub("", prompt.generated_text)
    pieces = [text] if delimiter is None else text.split(delimiter)
    return [stripped for piece in pieces if (stripped := piece.strip())]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    if one[: len(other)] == other[: len(one)]:
        return min(len(one), len(other))
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
