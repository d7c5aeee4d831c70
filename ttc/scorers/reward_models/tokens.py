"""The reward model's own tokenizer: chat template, ids with their places in the text, single tokens, harmless text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc.core import Message
from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Segment

__all__ = ["Tokens"]


class Tokens:
    """Reads the tokenizer of a model folder. Raises ConfigError naming the folder when it cannot."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
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
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generation)
        except TemplateError as exc:
            raise ConfigError(f"the chat template of {self._folder} refuses these messages: {exc}") from exc
        return str(text)

    def locate(self, segment: Segment, tag: str | None) -> tuple[list[int], list[int]]:
        """Ids of a segment, and the index of the token that ends at each of its marks.

        Raises:
            ConfigError: the tokenizer splits a tag, or joins it with its neighbours.
        """
        encoding = self._tokenizer(segment.text, add_special_tokens=segment.special, return_offsets_mapping=True)
        ids, offsets = list(encoding["input_ids"]), encoding["offset_mapping"]
        ends = {end: (index, start) for index, (start, end) in enumerate(offsets) if end > start}
        found = []
        for mark in segment.marks:
            index, start = ends.get(mark, (-1, mark))
            joined = segment.text[start : mark - len(tag or "")].strip()
            if index < 0 or (tag is not None and (start > mark - len(tag) or joined)):
                raise ConfigError(f"{self._folder}: its tokenizer splits or joins the step tag {tag!r}")
            found.append(index)
        return ids, found

    def harmless(self, text: str, tag: str | None) -> str:
        """`text` with every marker of the model broken by a space, so that only our own markers count."""
        own = [tag] if tag is not None and tag.strip() else []
        for marker in (*self._markers, *own):
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
        return text
