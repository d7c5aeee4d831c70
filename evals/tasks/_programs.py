"""What the tasks of programs have in common: how a program is asked for, and how its tests are run."""

from __future__ import annotations

from ttc.core import Message

__all__ = ["PROGRAM", "asked", "block"]

PROGRAM = "Reply with the complete program in one ```python block."
"""The instruction that belongs to the answer kind `code`."""


def asked(text: str) -> tuple[Message, ...]:
    """Return the user turn that asks `text` and for a program."""
    return (Message("user", f"{text.strip()}\n\n{PROGRAM}"),)


def block(code: str) -> str:
    """Return code as a fenced block."""
    return f"```python\n{code.strip()}\n```"
