"""Prepare a model folder for thinking and a prompt form: a copy with markers, a chat template and stop tokens.

    adapt(folder, out, Adaptation(open="<think>", close="</think>", form="r1-zero"))

The copy declares its markers in config.json, where every engine, trainer and server of this toolkit reads them
(`ttc.engines.shared.text`), so nothing else needs to be set. They remain text of several tokens, which needs no new
weights and works at once; with `tokens` they become tokens of their own, whose embeddings start as the mean of their
former pieces. A form is how a problem is asked. It goes into the chat template, with the switch `enable_thinking` if
the template lacks it, so that any other program asks in the same form.

Cost: links to the weights where the disk allows them, else a copy; with `tokens` a new one. Left out: forms for tools.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.base.models import load_tokenizer, save_tokenizer
from train.recipe.recipe import Recipe
from train.recipe.run import RUN
from ttc.config.recipes import dump
from ttc.config.values import build
from ttc.core import Message
from ttc.durable import alone_in, replace_text, replaced_folder
from ttc.engines.shared.text import MARKERS, Text
from ttc.errors import ConfigError, UnknownName
from ttc.session.thinking import check_markers


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What a copy of a model adds.

    Args:
        open: what begins a thought; None is the model's own marker, else <think>.
        close: what ends it.
        tokens: whether the two become tokens of their own.
        form: how problems are asked; None leaves the chat template's own form.
    """

    open: str | None = None
    close: str | None = None
    tokens: bool = False
    form: str | None = None

    def __post_init__(self) -> None:
        """Refuse half a pair and an unknown form."""
        check_markers("thinking", self.open, self.close)
        if self.form is not None and self.form not in FORMS:
            raise UnknownName("form", self.form, FORMS)


@dataclass(frozen=True, slots=True)
class Form:
    """A prompt form: a whole template, or a system turn before the model's own; what it asks for."""

    about: str
    system: str = ""
    template: str = ""


_R1_ZERO = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within {open} {close} and <answer> </answer> tags, respectively, i.e., {open} "
    "reasoning process here {close} <answer> answer here </answer>."
)
FORMS: Mapping[str, Form] = {
    "r1-zero": Form(
        "DeepSeek-R1-Zero's plain text, table 1 (arXiv:2501.12948): for base models without a chat template",
        template="{{ SYSTEM }}{% for message in messages %}{% if message.role == 'assistant' %} Assistant: "
        "{{ message.content }}{% elif message.role == 'user' %} User: {{ message.content }}.{% endif %}{% endfor %}"
        "{% if add_generation_prompt %} Assistant: {% endif %}",
        system=_R1_ZERO,
    ),
    "think-answer": Form("the same words as a system turn of the model's own template", system=_R1_ZERO),
    "boxed": Form(
        "Qwen2.5-Math's system turn (arXiv:2409.12122)",
        system="Please reason step by step, and put your final answer within \\boxed{}.",
    ),
}
"""How a model without a form of its own is asked, by name."""

_PLAIN = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SYSTEM_FIRST = (
    "{%- if not messages or messages[0]['role'] != 'system' %}"
    "{%- set messages = [{'role': 'system', 'content': SYSTEM}] + messages %}{%- endif %}"
)
_SWITCH = (
    "{%- if add_generation_prompt and enable_thinking is defined %}"
    "{{- OPEN + '\n' if enable_thinking else OPEN + '\n\n' + CLOSE + '\n\n' }}{%- endif %}"
)


def adapt(folder: Path, out: Path, wanted: Adaptation) -> tuple[str, str]:
    """Write the copy of `folder` to `out`; returns its markers.

    Raises:
        ConfigError: no model folder; other markers than the model's own tokens; or a template that refuses the form.
    """
    config = _read(folder / "config.json")
    text, tokenizer = Text(folder), load_tokenizer(folder)
    own = text.markers if text.think_texts is None else None
    opening, closing = wanted.open or (own or MARKERS[0])[0], wanted.close or (own or MARKERS[0])[1]
    if own not in (None, (opening, closing)):
        raise ConfigError(f"{folder} thinks between {own[0]} and {own[1]}, tokens of its own: leave thinking.open out")
    tokenizer.chat_template = template_of(tokenizer, wanted.form, opening, closing)
    about = {**config.get("ttc", {}), "thinking": {"open": opening, "close": closing}, "adapted": dump(wanted)}
    with replaced_folder(out) as fresh:
        if wanted.tokens and own is None:
            _with_tokens(folder, fresh, tokenizer, (opening, closing))
        else:
            _linked(folder, fresh)
        save_tokenizer(tokenizer, fresh)
        fixed = {**_read(fresh / "config.json"), "ttc": about}
        replace_text(fresh / "config.json", json.dumps(fixed, indent=1) + "\n")
        _stop_at_turns_end(fresh, tokenizer)
    Text(out).render((Message("user", "?"),), True)
    return opening, closing


def adaptation(recipe: Recipe, model: Path | None, own: Mapping[str, Any]) -> Adaptation | None:
    """The adaptation of a run's model: the requested one over the recipe's for models without markers; or None."""
    if model is None:
        return None
    needed = recipe.adapt if recipe.adapt is not None and Text(model).markers is None else None
    if needed is None and not own:
        return None
    return build(Adaptation, {**(needed or {}), **own}, where="thinking.")


def adapted(folder: Path, out: Path, wanted: Adaptation) -> Path:
    """The copy in `out`, made if it is missing, or if a run that failed at once left a link.

    Raises:
        ConfigError: the copy that is there is another; or like `adapt`.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(out.parent):  # of two runs that start at once, the second finds the first one's copy
        left = out.is_symlink() and not (out.parent / RUN).exists()
        if left or not (out / "config.json").is_file():
            adapt(folder, out, wanted)
    earlier = _read(out / "config.json").get("ttc", {}).get("adapted")
    if earlier != dump(wanted):
        raise ConfigError(
            f"{out} was made with {earlier}, and {dump(wanted)} is asked: delete it, or give another --out"
        )
    return out


def template_of(tokenizer: Any, form: str | None, opening: str, closing: str) -> str:
    """The chat template with a form and a switch; that of ChatML, or plain text, for a tokenizer that has none."""
    template = tokenizer.chat_template or (_CHATML if "<|im_start|>" in tokenizer.get_vocab() else _PLAIN)
    chosen = FORMS[form] if form is not None else None
    names = {"OPEN": opening, "CLOSE": closing}
    if chosen is not None:
        names["SYSTEM"] = chosen.system.replace("{open}", opening).replace("{close}", closing)
        template = chosen.template or _SYSTEM_FIRST + template
    if "enable_thinking" not in template:
        template += _SWITCH
    named = (name for name in names if name in template)
    heads = "".join(f"{{%- set {name} = {json.dumps(names[name], ensure_ascii=False)} %}}" for name in named)
    return heads + template


def _with_tokens(folder: Path, fresh: Path, tokenizer: Any, markers: tuple[str, str]) -> None:
    """Write the model with two rows more, each the mean of the rows that spelled the marker."""
    import torch
    from transformers import AddedToken, AutoModelForCausalLM

    pieces = {marker: tokenizer.encode(marker, add_special_tokens=False) for marker in markers}
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in markers])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tables = {id(table): table for table in (model.get_input_embeddings().weight, model.get_output_embeddings().weight)}
    with torch.no_grad():
        for table in tables.values():
            for marker, ids in pieces.items():
                table[tokenizer.convert_tokens_to_ids(marker)] = table[ids].mean(0)
    model.save_pretrained(fresh)


def _linked(folder: Path, fresh: Path) -> None:
    """The model's files: links to the weights, copies of what is small."""
    for path in folder.iterdir():
        if not path.is_file() or path.name.startswith("."):
            continue
        target = path.resolve()
        if path.suffix != ".safetensors":
            shutil.copyfile(target, fresh / path.name)
            continue
        try:
            os.link(target, fresh / path.name)
        except OSError:  # another disk
            shutil.copyfile(target, fresh / path.name)


def _stop_at_turns_end(folder: Path, tokenizer: Any) -> None:
    """Make generation also stop at the end of a turn."""
    path = folder / "generation_config.json"
    config = _read(path) if path.is_file() else {}
    before = config.get("eos_token_id")
    ids = {*(before if isinstance(before, list) else () if before is None else (before,)), tokenizer.eos_token_id}
    config |= {"eos_token_id": sorted(ids), "pad_token_id": tokenizer.pad_token_id}
    replace_text(path, json.dumps(config, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path.parent} is not a model folder: it has no {path.name}")
    return dict(json.loads(path.read_text(encoding="utf-8")))
