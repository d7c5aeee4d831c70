"""A made-up language: its tokenizer and an endless, seeded supply of texts.

A corpus lets a recipe start from nothing: pretraining on it takes seconds on a CPU, and what the base model can and
cannot do is known by construction. A text is prompt and continuation, both learnt; the prompt is what a task renders.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evals.task import Texts
from train.examples.examples import Example
from ttc import seeds
from ttc.config.plugins import PluginShape
from ttc.config.registry import Registry
from ttc.engines.shared.text import Text

__all__ = ["CORPORA", "THINKING_TEMPLATE", "Corpus", "corpus_examples", "corpus_of", "word_tokenizer"]

CORPORA = Registry("corpus", "train.corpora", "ttc.corpora", PluginShape(("train.examples.corpus:Corpus",)))

THINKING_TEMPLATE = """\
{%- for message in messages -%}{{- message.content -}}{%- endfor -%}
{%- if add_generation_prompt and enable_thinking is defined -%}
{{- '<think>' if enable_thinking else '<think></think>' -}}
{%- endif -%}
"""
"""The prompt as it is; with thinking asked for or forbidden, the opened or the empty block; else the model chooses."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """`tokenizer()` makes the tokenizer; `sample(rng)` gives one text without its end of sequence.

    `pair(rng)` gives it as prompt and answer, where the language knows the two apart: answers can then be learnt alone.
    """

    name: str
    tokenizer: Callable[[], Any]
    sample: Callable[[random.Random], str]
    max_length: int
    pair: Callable[[random.Random], tuple[str, str]] | None = None


def corpus_of(name: str, texts: Texts, context: int) -> Corpus:
    """The corpus of a world's texts, with a word tokenizer for a model of `context` tokens."""
    tokenizer = partial(word_tokenizer, texts.words, texts.pattern, context)
    return Corpus(name, tokenizer, texts.sample, texts.max_length, texts.pair)


def corpus_examples(corpus: Corpus, text: Text, end: int, num: int, seed: int) -> list[Example]:
    """`num` texts of a corpus: answers to their prompts where it knows the two apart, else all from the second id on.

    Whole prompts are held out; a text without one is held out by its number alone.
    """
    rng = random.Random(seeds.derive(seed, "corpus"))
    if corpus.pair is not None:
        pairs = [corpus.pair(rng) for _ in range(num)]
        return [Example(prompt, text.encode(prompt), (*text.encode(answer), end)) for prompt, answer in pairs]
    rows = [text.encode(corpus.sample(rng)) for _ in range(num)]
    return [Example(str(i), ids[:1], (*ids[1:], end)) for i, ids in enumerate(rows)]


def word_tokenizer(words: Sequence[str], pattern: str, max_length: int) -> Any:
    """Return a fast tokenizer with one id per word and none below it.

    Args:
        words: the vocabulary, beside <think>, </think>, the end of sequence, padding and the unknown word.
        pattern: regular expression of one word; words stand without anything between them.
        max_length: the model's context in tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|end|>", "<|unk|>", "<think>", "</think>"]
    vocab = {word: index for index, word in enumerate([*special, *words])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(rf"</?think>|<\|\w+\|>|{pattern}"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens(["<|pad|>", "<|end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        chat_template=THINKING_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )
