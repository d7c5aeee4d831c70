"""What thinking control makes of the families' chat templates: the prompt, the thought, its end, its tokens.

Templates are TRL's copies of the models' own, or short ones of our own in a family's notation.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import qwen_like
from ttc.core import Capabilities, Completion, Message, Prompt
from ttc.engines.shared.text import CHANNELS, Text
from ttc.session.thinking import Thinking, count_sampled_thinking, handover_of, split, split_whole

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('CLOSE')[-1] }}<|im_end|>\n{% endfor %}"
BEGIN = "{% if add_generation_prompt %}<|im_start|>assistant\n"
THINK, SEED, MISTRAL = ("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]")
COHERE, GEMMA = ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|channel>thought", "<channel|>")
HUNYUAN = ("<think:opensource>", "</think:opensource>")
APRIEL = ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
EXAONE_DEEP, KIMI_VL = ("<thought>", "</thought>"), ("◁think▷", "◁/think▷")
OFF = "<think>\n\n</think>\n\n"


def own(behind: str, closing: str = "</think>", head: str = "") -> str:
    """A template whose generation prompt ends with `behind`; earlier turns lose their thoughts."""
    return head + TURNS.replace("CLOSE", closing) + BEGIN + behind + "{% endif %}"


def switched(name: str, on: str, off: str, default: bool) -> str:
    """What a template writes by its switch."""
    return f"{{% if {name} | default({str(default).lower()}) %}}{on}{{% else %}}{off}{{% endif %}}"


def trl(name: str) -> str:
    """A model's template, as TRL has it."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


# Family: its template, its markers, and what the prompt ends with where thinking is auto, on and off.
FAMILIES: dict[str, tuple[str, tuple[str, str], str, str, str]] = {
    "Qwen3": (trl("qwen3"), THINK, "assistant\n", "assistant\n", f"assistant\n{OFF}"),
    "Qwen3.5": (trl("qwen3_5_think"), THINK, "<think>\n", "<think>\n", f"assistant\n{OFF}"),
    "Qwen3.5, small": (trl("qwen3_5_nothink"), THINK, OFF, "<think>\n", f"assistant\n{OFF}"),
    "Qwen3.6": (trl("qwen3_6"), THINK, "<think>\n", "<think>\n", f"assistant\n{OFF}"),
    "GLM-4.5": (trl("glm4moe"), THINK, "<|assistant|>", "<|assistant|>", "hi/nothink<|assistant|>\n<think></think>"),
    "gpt-oss": (trl("gptoss"), CHANNELS, "<|start|>assistant", "<|start|>assistant", "".join(CHANNELS)),
    "Gemma 4": (trl("gemma4"), GEMMA, "model\n", "model\n", "model\n"),
    "Nemotron 3": (trl("nemotron_3_nano"), THINK, "<think>\n", "<think>\n", "<think></think>"),
    "DeepSeek R1": (trl("deepseek_r1_distill"), THINK, "<think>\n", "<think>\n", f"<｜Assistant｜>{OFF}"),
    "LFM2.5": (trl("lfm2_2_5"), THINK, "assistant\n", "assistant\n", f"assistant\n{OFF}"),
    "SmolLM3": (
        own(switched("enable_thinking", "", "<think>\n\n</think>\n", True)),
        *(THINK, "assistant\n", "assistant\n", "assistant\n<think>\n\n</think>\n"),
    ),
    "DeepSeek V3.1": (
        own(switched("thinking", "<think>", "</think>", False)),
        *(THINK, "assistant\n</think>", "assistant\n<think>", "assistant\n</think>"),
    ),
    "GLM-4.7": (
        own(switched("enable_thinking", "<think>", "</think>", True)),
        *(THINK, "assistant\n<think>", "assistant\n<think>", "assistant\n</think>"),
    ),
    "Granite 3.3": (
        own("", head="{% if thinking %}Write your thoughts between <think></think>. {% endif %}"),
        *(THINK, "assistant\n", "assistant\n", "assistant\n"),
    ),
    "EXAONE 4, Hunyuan, Ernie 4.5": (
        own(switched("enable_thinking", "<think>\n", OFF, False)),
        *(THINK, OFF, "assistant\n<think>\n", f"assistant\n{OFF}"),
    ),
    "Magistral": (
        own("", "[/THINK]", head="{# [THINK] #}"),
        *(MISTRAL, "assistant\n", "assistant\n", "assistant\n[THINK]\n\n[/THINK]\n\n"),
    ),
    "Kimi K2 Thinking, Phi 4": (
        own("", head="{# <think> #}"),
        *(THINK, "assistant\n", "assistant\n", f"assistant\n{OFF}"),
    ),
    "MiniMax M2, Olmo 3": (own("<think>\n"), THINK, "<think>\n", "<think>\n", f"assistant\n{OFF}"),
    "Kimi VL": (
        own("◁think▷", "◁/think▷"),
        *(KIMI_VL, "assistant\n◁think▷", "assistant\n◁think▷", "assistant\n◁think▷\n\n◁/think▷\n\n"),
    ),
    "EXAONE Deep": (
        own("<thought>\n", "</thought>"),
        *(EXAONE_DEEP, "<thought>\n", "<thought>\n", "assistant\n<thought>\n\n</thought>\n\n"),
    ),
    "MiniMax M3": (
        own("<mm:think>\n", "</mm:think>"),
        *(("<mm:think>", "</mm:think>"), "<mm:think>\n", "<mm:think>\n", "<mm:think>\n\n</mm:think>\n\n"),
    ),
    "Hunyuan 3": (
        own(switched("enable_thinking", "", HUNYUAN[0] + HUNYUAN[1], True), HUNYUAN[1]),
        *(HUNYUAN, "assistant\n", "assistant\n", f"assistant\n{HUNYUAN[0]}{HUNYUAN[1]}"),
    ),
    "Seed-OSS": (
        own("", "</seed:think>", head="{# <seed:think> #}"),
        *(SEED, "assistant\n", "assistant\n", "assistant\n<seed:think>\n\n</seed:think>\n\n"),
    ),
    "Command A Reasoning": (
        own(switched("reasoning", COHERE[0], "".join(COHERE), True)),
        *(COHERE, COHERE[0], COHERE[0], "".join(COHERE)),
    ),
    "Command A": (
        own("<|START_RESPONSE|>", COHERE[1], head=f"{{# {COHERE[0]} #}}"),
        *(COHERE, "<|START_RESPONSE|>", "<|START_RESPONSE|>", "assistant\n<|START_RESPONSE|>"),
    ),
    "Apriel": (
        own("Here are my reasoning steps:\n", APRIEL[1]),
        *(APRIEL, f"{APRIEL[0]}\n", f"{APRIEL[0]}\n", f"{APRIEL[0]}\n\n{APRIEL[1]}\n\n"),
    ),
}


def text_of(folder: Path, family: str, *, single: bool) -> Text:
    """The family's template over a small tokenizer, its markers tokens of their own or not."""
    from transformers import AutoTokenizer

    qwen_like.tokenizer(folder)
    saved = AutoTokenizer.from_pretrained(folder)
    template, markers, *_ = FAMILIES[family]
    if single:
        saved.add_tokens([marker.removesuffix("thought") for marker in markers], special_tokens=True)
    saved.chat_template = template
    saved.save_pretrained(folder)
    return Text(folder)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_switch_the_thought_and_its_end_are_those_of_the_family(family: str, single: bool, tmp_path: Path) -> None:
    text = text_of(tmp_path, family, single=single and FAMILIES[family][1] not in (CHANNELS, APRIEL))
    (opening, closing), ends = FAMILIES[family][1], FAMILIES[family][2:]
    assert text.markers == (opening, closing)
    capabilities = Capabilities(
        *("m", 2048),
        think_open=text.think_open,
        think_close=text.think_close,
        think_texts=text.think_texts,
        eos_ids=text.eos_ids,
        handover=text.handover,
    )
    engine: Any = SimpleNamespace(capabilities=capabilities, decode=text.decode)
    for thinking, end in zip((None, True, False), ends, strict=True):
        prompt = text.render([Message("user", "hi")], thinking)
        assert prompt.text.endswith(end), (thinking, prompt.text)
        last = prompt.text[-len(opening + closing) - 8 :]
        assert prompt.think_state == ("open" if last.rfind(opening) > last.rfind(closing) else prompt.think_state)
        assert prompt.think_state == "closed" or thinking is not False
        if thinking:
            thought = text.encode("so " if prompt.think_state == "open" else f"{opening}so ")
            check(text, engine, prompt, (*thought, *text.encode(closing), *text.encode("7")))
    words = text.encode(handover_of(Thinking(), capabilities))
    assert not split(words, True, capabilities).inside and text.decode(words).rstrip().endswith(closing)


def check(text: Text, engine: Any, prompt: Prompt, ids: tuple[int, ...]) -> None:
    """A draw of a thought and an answer is told apart, and the thought's tokens alone are counted."""
    parts = split_whole(prompt.extend(ids, text.decode(ids)), engine)
    assert (parts.thinking.strip(), parts.answer.strip(), parts.inside) == ("so", "7", False)
    drawn = Completion((0,), text.decode(ids), ids, "stop")
    assert count_sampled_thinking(prompt, [drawn], engine.capabilities) == [len(text.encode("so "))]
