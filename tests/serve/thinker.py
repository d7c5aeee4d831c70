"""A scripted model that thinks ten tokens and answers, with markers of one id, of several, and without any."""

from __future__ import annotations

import dataclasses

from ttc.core import Capabilities, Path, Prompt
from ttc.engines.scripted import ScriptedEngine
from ttc.session.thinking import QWEN3_HANDOVER

THOUGHT = "ten chars."
ANSWER = "The answer is 7."
HANDOVER_WORDS = QWEN3_HANDOVER.partition("</think>")[0]


def think(prompt: Prompt, path: Path, key: int) -> str:
    """A model that thinks ten tokens and answers; after "Wait" it thinks four more."""
    said = prompt.generated_text
    _, closed, rest = said.partition("</think>")
    if closed or prompt.think_state == "closed":
        begun = (rest if closed else said).lstrip("\n")
        gap = "" if not closed or rest.startswith("\n\n") else "\n\n"
        return gap + ANSWER[len(begun) :]
    if prompt.think_state == "none" and "<think>" not in said:
        return f"<think>{THOUGHT}</think>\n\n{ANSWER}"
    inside = said.partition("<think>")[2] if "<think>" in said else said
    before, waited, after = inside.rpartition("Wait")
    left = "more"[len(after) :] if waited else THOUGHT[len(inside) :]
    return f"{left}</think>\n\n{ANSWER}"


def bracketed(prompt: Prompt, path: Path, key: int) -> str:
    """The same model with other markers, each of several ids: every character is one."""
    said = prompt.generated_text.replace("[t]", "<think>").replace("[/t]", "</think>")
    other = dataclasses.replace(prompt, text=prompt.text[: prompt.rendered_chars] + said)
    return think(other, path, key).replace("<think>", "[t]").replace("</think>", "[/t]")


class ManyTokenMarkers(ScriptedEngine):
    """An engine that knows its thought by such markers."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(
            super().capabilities,
            think_open=tuple(map(ord, "[t]")),
            think_close=tuple(map(ord, "[/t]")),
            handover=f"{HANDOVER_WORDS}[/t]\n\n",
        )


class WithoutMarkers(ScriptedEngine):
    """An engine that knows no thought."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, think_open=(), think_close=())
