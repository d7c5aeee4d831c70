"""A random model in the form of Qwen2.5: its tokenizer's splitting, specials and chat template, a few hundred ids."""

from __future__ import annotations

from pathlib import Path

_WORDS = (
    "Natalia sold 48 clips in April, and half as many in May. How many did she sell altogether? She sold 24 in May, "
    "so 48 + 24 = 72. #### 72\n\nPlease reason step by step, and put your final answer within \\boxed{72}. "
    "<think>\nso it is 7.</think>\n\n<answer> 7 </answer> The answer is 12.\n"
)
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEMPLATE = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role != 'system' or not loop.first %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def tokenizer(folder: Path, *, pad: str | None = "<|endoftext|>") -> None:
    """Write the tokenizer; without `pad` it names no padding, as Llama's."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    fast = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    fast.train_from_iterator([_WORDS] * 8, trainer)
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    fast.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    whole = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>", pad_token=pad, model_max_length=2048)
    whole.chat_template = _TEMPLATE
    whole.save_pretrained(folder)


def model(folder: Path, *, pad: str | None = "<|endoftext|>", hidden: int = 32, words_of: Path | None = None) -> Path:
    """Write tokenizer (that of the folder `words_of`, where there is one) and random weights; returns the folder."""
    import torch
    from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    if words_of is None:
        tokenizer(folder, pad=pad)
    else:
        AutoTokenizer.from_pretrained(words_of).save_pretrained(folder)
    words = AutoTokenizer.from_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Qwen2ForCausalLM(config)
    network.save_pretrained(folder)
    GenerationConfig(eos_token_id=words.eos_token_id).save_pretrained(folder)
    return folder


def answering(folder: Path, *, steps: int = 60, words_of: Path | None = None) -> Path:
    """The same, after a moment of learning to say `\\boxed{3}` or `\\boxed{4}` to anything, and to end there."""
    import random

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words, rng = AutoTokenizer.from_pretrained(model(folder, words_of=words_of)), random.Random(0)
    network = AutoModelForCausalLM.from_pretrained(folder)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    ends = [words.encode(f"\\boxed{{{digit}}}<|im_end|>", add_special_tokens=False) for digit in (3, 4)]
    for _ in range(steps):
        batch = [[rng.randrange(len(words)) for _ in range(40)] + rng.choice(ends) for _ in range(16)]
        ids = torch.tensor(batch)
        logits = network(ids[:, :-1]).logits[:, 39:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 40:].flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    network.save_pretrained(folder)
    return folder


def data(folder: Path) -> Path:
    """A folder of small local copies of the data sets that recipes name; answers are digits that no question tells."""
    import json
    import random

    rng = random.Random(0)

    def words(count: int) -> str:
        return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(count))

    def problem(number: int) -> dict[str, str]:
        answer = str(rng.randrange(3, 5))
        steps = f"first {words(3)}.\nthen {words(3)} {answer}."
        return {"id": f"p{number}", "problem": f"How many {words(9)}?", "answer": answer, "solution": steps}

    tables = {
        "gsm8k_train": [problem(number) for number in range(48)],
        "gsm8k_test": [problem(100 + number) for number in range(16)],
        "pku-saferlhf": [{"prompt": f"Tell me {words(6)}."} for _ in range(24)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
