"""A scripted engine that holds a thinking cap itself, exactly or too late."""

from __future__ import annotations

from dataclasses import replace

from ttc.core import Capabilities, Completion, ExtraSampling, Path, Prompt, Sampling, UsageSink, with_extra
from ttc.engines.scripted import ScriptedEngine

THOUGHT, ANSWER = "ten chars.", "The answer is 7."
BARE = "</think>"


def think(prompt: Prompt, path: Path, key: int) -> str:
    """Ten tokens of thought, then the answer, whatever ended the thought."""
    said = prompt.generated_text
    _, closed, rest = said.partition(BARE)
    return ANSWER[len(rest) :] if closed else f"{THOUGHT[len(said) :]}{BARE}{ANSWER}"


class Capping(ScriptedEngine):
    """Holds a cap itself, `late` tokens too late; notes every cap that it was asked to hold."""

    def __init__(self, late: int = 0, again: bool = False) -> None:
        super().__init__(think, thinking=True)
        self.late, self.again = late, again
        self.caps: list[int | None] = []

    @property
    def capabilities(self) -> Capabilities:
        return with_extra(super().capabilities, "thinking_cap")

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        cap = sampling.thinking_cap if isinstance(sampling, ExtraSampling) else None
        self.caps.append(cap)
        if cap is None:
            return await super().generate(prompt, sampling, draws, on_usage)
        (whole,) = await super().generate(prompt, replace(sampling, max_tokens=200), draws, lambda usage: None)
        shown = THOUGHT[: cap + self.late] + BARE + (f"<think>more{BARE}" if self.again else "") + ANSWER
        ids = (*self.encode(shown), whole.token_ids[-1])
        usage = replace(whole.usage, generated=len(ids))
        on_usage(usage)
        logprobs = (-0.5,) * len(ids)
        return [replace(whole, token_ids=ids, text=shown, logprobs=logprobs, certainty=logprobs, usage=usage)]
