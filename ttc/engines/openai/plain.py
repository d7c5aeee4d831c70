"""The dialect of plain text: `/v1/completions` of a server that takes no ids, or gives none back.

The chat template is the local folder's. Continuations are exact as text only: the server tokenises the whole text anew,
so caps in tokens, thinking control and log-probabilities are refused, and `Prompt.token_ids` is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ttc.core import Message, Prompt, Sampling
from ttc.engines.openai.chat import check_steps, check_stop_ids
from ttc.engines.openai.reply import TextReader
from ttc.engines.openai.request import Features, shared_fields
from ttc.engines.shared.text import Text

__all__ = ["PlainDialect"]


class PlainDialect:
    """Renders with the tokenizer of a local folder, asks and reads text."""

    path = "/completions"

    def __init__(self, text: Text, features: Features) -> None:
        """`features` say whether stop strings can be used."""
        self._text, self._features = text, features
        self._eos_texts = [text.decode([token]) for token in text.eos_ids]

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Apply the folder's chat template; the ids are dropped, since nothing that follows has any."""
        prompt = self._text.render(messages, thinking)
        return replace(prompt, token_ids=None, rendered_len=0, logprobs=None, certainty=None)

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Refuse what text cannot do."""
        check_stop_ids(sampling, self._features)
        check_steps(prompt, sampling, self._features, continues=True)

    def num_prompt(self, prompt: Prompt) -> int | None:
        """Our own count of the context; the server's may differ by a token where text is cut differently."""
        return len(self._text.encode(prompt.text))

    def body(self, prompt: Prompt, sampling: Sampling, seed: int | None) -> dict[str, Any]:
        """The request."""
        fields = shared_fields(sampling, seed, self._features) | {"prompt": prompt.text}
        return fields | ({"add_special_tokens": False} if self._features.extras else {})

    def reader(self, prompt: Prompt, sampling: Sampling) -> TextReader:
        """The reader of its answer."""
        return TextReader(sampling.stop, self._eos_texts, False, lambda text: len(self._text.encode(text)))
