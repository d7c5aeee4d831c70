"""Reward models trained with TRL's PRMTrainer: token classifiers, read at the separator after every step.

Format of huggingface/trl, `PRMTrainer.tokenize_row`: beginning of sequence where the tokenizer has one, the prompt,
then every step followed by the separator, each tokenised separately; the score is label 1 of a softmax over two labels
at the separator's last token. Many public models are of this kind (HuggingFaceH4/Qwen2.5-Math-7B-Instruct-PRM-0.2, the
SHARP-PRM series). Set `adapter=trl_prm` for them: a token classifier does not state how it was trained. The separator
is TRL's default, a line break, which also ends a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.core import Message
from ttc.scorers.adapters._base import Adapter, ChatTemplate, TextSegment, question_of

SEPARATOR = "\n"


def _render(chat: ChatTemplate, messages: Sequence[Message], steps: Sequence[str]) -> list[TextSegment]:
    head = TextSegment(chat.bos + question_of(messages))
    return [head, *(part for step in steps for part in (TextSegment(step), TextSegment(SEPARATOR, (len(SEPARATOR),))))]


def trl_prm() -> Adapter:
    """Describe the family."""
    return Adapter(
        name="trl_prm",
        render=_render,
        families=("qwen2", "qwen3", "llama", "mistral"),
        step_delimiter=SEPARATOR,
        tag=SEPARATOR,
        aggregation="min",
    )
