"""Verifiable instructions: the verifier, the table of the 25 kinds, their arguments, and how text is counted."""

from ttc.verifiers.instructions.verifier import instructions

__all__ = ["instructions"]
