"""The corpus of a made-up language: a world's texts (`evals.task`) and a tokenizer with one id per word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from evals.task import Texts
from train.examples.examples import Corpus

THINKING_TEMPLATE = """\
{%- for message in messages -%}{{- message.content -}}{%- endfor -%}
{%- if add_generation_prompt and enable_thinking is defined -%}
{{- '<think>' if enable_thinking else '<think></think>' -}}
{%- endif -%}
"""
"""The prompt as it is; with thinking asked for or forbidden, the opened or the empty block; else the model chooses."""


def corpus_of(name: str, texts: Texts, context: int) -> Corpus:
    """The corpus of a world's texts, with a word tokenizer for a model of `context` tokens."""
    tokenizer = partial(word_tokenizer, texts.words, texts.pattern, context)
    return Corpus(name, tokenizer, texts.sample, texts.max_length, texts.pair)


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
