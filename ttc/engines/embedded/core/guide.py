"""Grammar-constrained decoding: which tokens of one vocabulary may come next, by llguidance.

A grammar is text in llguidance's variant of Lark; JSON Schema is embedded as `%json {...}`. The end of the text is
allowed exactly where the grammar is complete. Cost: seconds per vocabulary, once; then under a millisecond of one core
for the mask of each row and token. Left out: skipping tokens that the grammar forces; they are sampled one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import llguidance
import llguidance.hf
import numpy as np
import numpy.typing as npt

from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, Unsupported


class Guides:
    """Makes guides for one tokenizer."""

    def __init__(self, text: Text, vocab: int) -> None:
        """`vocab` is the width of the logits; raises Unsupported for a tokenizer that llguidance cannot read."""
        try:
            self._tokens = llguidance.hf.from_tokenizer(text.tokenizer, n_vocab=vocab, eos_token=list(text.eos_ids))
        except ValueError as exc:
            raise Unsupported(
                f"tools and JSON schemas cannot be enforced with this tokenizer, which llguidance cannot read ({exc}): "
                "serve a model with a byte-level tokenizer, or leave them out of the request"
            ) from exc

    def follow(self, grammar: str) -> Callable[[], Guide]:
        """Compile `grammar`; returns a factory of guides at its start. Raises ConfigError for an invalid grammar."""
        first = llguidance.LLMatcher(self._tokens, grammar)
        if first.is_error():
            raise ConfigError(f"sampling.grammar: {_reason(first)}")
        return lambda: Guide(first.deep_copy())


class Guide:
    """The state of one draw in a grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def words(self) -> npt.NDArray[np.int32]:
        """Which tokens may come next: bit v % 32 of word v // 32, shape (ceil(V / 32),)."""
        return np.frombuffer(self._matcher.compute_bitmask(), np.int32)

    def mask(self, width: int) -> npt.NDArray[np.bool_]:
        """Whether each of `width` tokens may come next, shape (V,)."""
        return np.unpackbits(self.words().view(np.uint8), bitorder="little")[:width].astype(np.bool_)

    def take(self, token: int) -> None:
        """Advance by `token`; raises Unsupported where the grammar allows nothing after it, or is too large to follow.

        A matcher that has failed allows only the end of the text, which must not be mistaken for a finished one.
        """
        if self._matcher.is_error():
            raise Unsupported(f"sampling.grammar: the grammar allows no further token ({_reason(self._matcher)})")
        if not self._matcher.consume_token(token):
            raise Unsupported(f"sampling.grammar: {_reason(self._matcher) or f'token {token} does not follow it'}")


def _reason(matcher: llguidance.LLMatcher) -> str:
    """The matcher's error without the parser state and grammar that follow it."""
    return str(matcher.get_error()).partition("\n")[0]
