"""A byte-level tokenizer whose digits stay single, with a Qwen3-style chat template.

Its tokens are 256 bytes, the empty line and a few fixed words as merges, so that a problem costs about a third fewer
tokens, and the markers of Qwen3. Any text round-trips. The think block is opened by the template, not by the model:
`enable_thinking=false` closes it at once.

Cost: 0.1 s to build. Left out: tool calls, and keeping the thinking of earlier turns.
"""

from pathlib import Path
from typing import Any

CONTEXT = 2048  # tokens; training texts stay far below
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>")
WORDS = (
    "\n\n",
    "I must answer now.",
    "assistant",
    "system",
    "user",
    "Compute ",
    "Calculate ",
    "What is ",
    "Wait",
    ", ",
    "The answer is ",
    "\\boxed{",
    "}.",
    "Time is up",
)
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- else -%}
{{- '<think>\\n' -}}
{%- endif -%}
{%- endif -%}
"""


def build() -> Any:
    """Return the tokenizer as a `transformers` fast tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab, merges = _vocabulary(pre_tokenizers.ByteLevel)
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def save(folder: Path) -> Any:
    """Build the tokenizer, save it in `folder` and return it."""
    tokenizer = build()
    tokenizer.save_pretrained(folder)
    return tokenizer


def _vocabulary(byte_level: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary and the merges, in order: each word is built from left to right."""
    vocab = {piece: index for index, piece in enumerate(sorted(byte_level.alphabet()))}
    merges: list[tuple[str, str]] = []
    splitter = byte_level(add_prefix_space=False, use_regex=False)
    for word in WORDS:
        pieces = splitter.pre_tokenize_str(word)[0][0]
        for end in range(1, len(pieces)):
            merge = (pieces[:end], pieces[end])
            if "".join(merge) not in vocab:
                vocab["".join(merge)] = len(vocab)
                merges.append(merge)
    return vocab, merges
