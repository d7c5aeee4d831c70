"""Flags in a conversation that switch thinking on and off: how they are written, and which one holds.

Qwen3 technical report 2025 (arXiv:2505.09388), section 4.3: `/think` and `/no_think` stand in a user or system turn,
the last one holds, none at all means thinking, and an answer without thinking keeps an empty think block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.core import Message

__all__ = ["Flags"]


@dataclass(frozen=True, slots=True)
class Flags:
    """How the two flags are written, and what stands between a text and its flag."""

    think: str = "/think"
    no_think: str = "/no_think"
    gap: str = " "

    def of(self, thinks: bool) -> str:
        """The flag that asks for thinking, or for none."""
        return self.think if thinks else self.no_think

    def asked(self, messages: Sequence[Message], thinks: bool | None, *, in_system: bool = False) -> list[Message]:
        """The conversation with a flag behind its last turn, or in a system turn; None leaves it alone."""
        if thinks is None:
            return list(messages)
        if not in_system:
            *before, last = messages
            return [*before, Message(last.role, f"{last.content}{self.gap}{self.of(thinks)}")]
        if messages[0].role == "system":
            first, *rest = messages
            return [Message("system", f"{first.content}{self.gap}{self.of(thinks)}"), *rest]
        return [Message("system", self.of(thinks)), *messages]

    def holding(self, messages: Sequence[Message], default: bool = True) -> bool:
        """Whether the conversation asks for thinking: the last flag in a user or system turn, else `default`."""
        for message in reversed(messages):
            if message.role == "assistant":
                continue
            places = {
                self.think: message.content.rfind(self.think),
                self.no_think: message.content.rfind(self.no_think),
            }
            last = max(places, key=lambda flag: places[flag])
            if places[last] >= 0:
                return last == self.think
        return default
