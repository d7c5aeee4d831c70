"""Grammars over the tokens of one vocabulary: which tokens may come next, by llguidance.

A grammar is text in llguidance's form of Lark; JSON Schema stands in it as `%json {...}`. The end of the text is
allowed exactly where the grammar is complete. Cost: seconds for a vocabulary, once; then under a millisecond of a core
for the mask of each row and token. Left out: skipping over tokens that a grammar forces: they are sampled one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import llguidance
import llguidance.hf
import numpy as np
import numpy.typing as npt

from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, Unsupported

__all__ = ["Guide", "Guides"]


class Guides:
    """What makes guides for one tokenizer."""

    def __init__(self, text: Text, vocab: int) -> None:
        """`vocab` is the width of the logits; raises Unsupported for a tokenizer that llguidance cannot read."""
        try:
            self._tokens = llguidance.hf.from_tokenizer(text.tokenizer, n_vocab=vocab, eos_token=list(text.eos_ids))
        except ValueError as exc:
            raise Unsupported(
                f"tools and JSON schemas cannot be held with this tokenizer, which llguidance cannot read ({exc}): "
                "serve a model whose tokenizer works on bytes, or ask without them"
            ) from exc

    def follow(self, grammar: str) -> Callable[[], Guide]:
        """What makes a guide at the start of `grammar`; raises ConfigError when that is none."""
        first = llguidance.LLMatcher(self._tokens, grammar)
        if first.is_error():
            raise ConfigError(f"sampling.grammar: {_reason(first)}")
        return lambda: Guide(first.deep_copy())


class Guide:
    """The place of one draw in a grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def words(self) -> npt.NDArray[np.int32]:
        """Which tokens may come next: bit v % 32 of word v // 32, (V / 32 rounded up)."""
        return np.frombuffer(self._matcher.compute_bitmask(), np.int32)

    def mask(self, width: int) -> npt.NDArray[np.bool_]:
        """Whether each of `width` tokens may come next, (V,)."""
        return np.unpackbits(self.words().view(np.uint8), bitorder="little")[:width].astype(np.bool_)

    def take(self, token: int) -> None:
        """Go on behind `token`; raises Unsupported where the grammar has no way on, or is too large to be followed.

        A matcher that has given up allows the end of the text, so that must not count as one.
        """
        if self._matcher.is_error():
            raise Unsupported(f"sampling.grammar: nothing can follow what was written ({_reason(self._matcher)})")
        if not self._matcher.consume_token(token):
            raise Unsupported(f"sampling.grammar: {_reason(self._matcher) or f'token {token} does not follow it'}")


def _reason(matcher: llguidance.LLMatcher) -> str:
    """Why it gave up, without the state of its parser and the grammar that stand below."""
    return str(matcher.get_error()).partition("\n")[0]
