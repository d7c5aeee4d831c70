"""Tiny random reward models in the true formats of the public families: folder, tokenizer, chat template, head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIZE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
WIDTH = SIZE["hidden_size"]
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>")
QWEN_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nPlease reason.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
LLAMA_TEMPLATE = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024<|eot_id|>"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_tokenizer(folder: Path, special: tuple[str, ...], template: str | None, *, bos: str | None = None) -> None:
    """Byte-level with the two merges that matter here: a double line break, and a line break behind a full stop."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.pre_tokenizers import ByteLevel

    words = [*sorted(ByteLevel.alphabet()), "ĊĊ", ".Ċ"]
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "Ċ"), (".", "Ċ")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA_SPLIT), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    save_tokenizer(folder, tokenizer, template, bos=bos)


def sentence_tokenizer(folder: Path) -> None:
    """Like Mistral's: spaces become U+2581, one is put in front, a beginning of sequence is added."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    letters = sorted({chr(i) for i in range(33, 127)} | {"\n", "▁", "к", "и"})
    merged = ["▁к", "▁ки", "▁+", "▁-"]
    vocab = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *letters, *merged])}
    merges = [("▁", "к"), ("▁к", "и"), ("▁", "+"), ("▁", "-")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    save_tokenizer(folder, tokenizer, None, bos="<s>")


def save_tokenizer(folder: Path, tokenizer: Any, template: str | None, *, bos: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {} if bos is None else {"bos_token": bos}
    settings |= {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save_model(folder: Path, config: Any, model: Any, head: dict[str, Any], **stated: Any) -> Path:
    """Write `model` and the tensors of `head` as one checkpoint; `stated` goes to config.json."""
    from safetensors.torch import save_file

    prefix = "" if any(name.startswith("model.") for name in model.state_dict()) else "model."
    tensors = {f"{prefix}{name}": tensor.clone() for name, tensor in model.state_dict().items()} | head
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), **stated}))
    return folder


def num_words(folder: Path) -> int:
    from transformers import AutoTokenizer

    return len(AutoTokenizer.from_pretrained(folder))


def qwen_head(folder: Path, num_outputs: int, architecture: str) -> Path:
    """Qwen2 with the two-layer head of the Qwen2.5-Math reward models, which name remote code that nobody runs."""
    import torch
    from transformers import Qwen2Config, Qwen2Model

    byte_tokenizer(folder, QWEN_SPECIAL, QWEN_TEMPLATE)
    torch.manual_seed(1)
    config = Qwen2Config(**SIZE, vocab_size=num_words(folder))
    first, second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, num_outputs)
    head = {"score.0.weight": first.weight, "score.0.bias": first.bias}
    head |= {"score.2.weight": second.weight, "score.2.bias": second.bias}
    head = {name: tensor.detach() for name, tensor in head.items()}
    remote = {"AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig", "AutoModel": f"modeling_qwen2_rm.{architecture}"}
    return save_model(folder, config, Qwen2Model(config), head, architectures=[architecture], auto_map=remote)


def value_head(folder: Path) -> Path:
    """Qwen2 with the value head of Skywork-o1-Open-PRM."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    byte_tokenizer(folder, QWEN_SPECIAL, QWEN_TEMPLATE, bos="<|endoftext|>")
    torch.manual_seed(2)
    config = Qwen2Config(**SIZE, vocab_size=num_words(folder))
    summary = torch.nn.Linear(WIDTH, 1)
    head = {"v_head.summary.weight": summary.weight.detach(), "v_head.summary.bias": summary.bias.detach()}
    return save_model(folder, config, Qwen2ForCausalLM(config), head, architectures=["Qwen2ForPrmModel"])


def language_model(folder: Path, family: str) -> Path:
    """A Llama 3 or Mistral language model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if family == "mistral":
        sentence_tokenizer(folder)
    else:
        byte_tokenizer(folder, LLAMA_SPECIAL, LLAMA_TEMPLATE, bos="<|begin_of_text|>")
    torch.manual_seed(3)
    extra = {"sliding_window": 4096} if family == "mistral" else {}
    config = AutoConfig.for_model(family, **SIZE, **extra, vocab_size=num_words(folder))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def classifier(folder: Path, family: str, per: str) -> Path:
    """A `Token` or `Sequence` classifier as transformers writes it."""
    import torch
    import transformers

    byte_tokenizer(folder, QWEN_SPECIAL, QWEN_TEMPLATE)
    torch.manual_seed(4)
    config = transformers.AutoConfig.for_model(
        family, **SIZE, vocab_size=num_words(folder), num_labels=2 if per == "Token" else 1, pad_token_id=256
    )
    if family == "qwen3":
        config.head_dim = WIDTH // 2
    auto = getattr(transformers, f"AutoModelFor{per}Classification")
    auto.from_config(config).save_pretrained(folder)
    return folder
