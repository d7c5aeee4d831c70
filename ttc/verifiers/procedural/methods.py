"""How each task of reasoning-gym is scored here, and which are refused; audited against version 0.1.25.

By default the final answer must equal the stored one (`ours.same`): the package's own rule also pays for a text that
merely contains it ("7 or 5"), and scorers of its own do so in several tasks. Exceptions are the two tables below: tasks
with many right answers, where either a scorer written here or, in the worker, the package's own decides. Its own is
used only where it reads the answer without running it as code, and there only a full score counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_EXECUTES = "its scorer runs the answer as Python code"
_NO_ANSWER = "it stores no answer, so its scorer cannot be checked against one"

REFUSED: Mapping[str, str] = {
    "codeio": "it runs code to make problems, and no seed fixes them",
    "composite": "it is a mixture; name its parts",
    "intermediate_integration": _EXECUTES,
    "simple_integration": _EXECUTES,
    "boxnet": _NO_ANSWER,
    "graph_color": _NO_ANSWER,
    "propositional_logic": _NO_ANSWER,
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
}
"""Tasks that are not offered, with the reason."""

OURS = frozenset({"countdown", "puzzle24", "n_queens", "number_sorting", "polynomial_multiplication"})
"""Tasks whose scorer runs the answer as code and is replaced by one in `ours`, which gets the problem's data."""

_ANY = re.compile(r".*", re.DOTALL)
THEIRS: Mapping[str, re.Pattern[str]] = {
    "arc_agi": _ANY,
    "complex_arithmetic": _ANY,
    "cryptarithm": _ANY,
    "family_relationships": _ANY,
    "game_of_life": _ANY,
    "group_anagrams": _ANY,
    "jugs": _ANY,
    "kakurasu": re.compile(r"[01\s]+"),
    "knight_swap": _ANY,
    "number_format": _ANY,
    "palindrome_generation": _ANY,
    "palindrome_partitioning": _ANY,
    "polynomial_equations": _ANY,
    "power_function": _ANY,
    "quantum_lock": re.compile(r"[A-Z](\s*→\s*[A-Z])*"),
    "rearc": _ANY,
    "shortest_path": _ANY,
    "sokoban": re.compile(r"[LRUD]+"),
    "survo": re.compile(r"[\d\s]+"),
    "tower_of_hanoi": _ANY,
    "word_ladder": _ANY,
}
"""Tasks with many right answers or spellings, scored by the package; the pattern is what an answer must look like."""


def needs_worker(task: str) -> bool:
    """Whether judging the task takes the package, in its worker."""
    return task in OURS or task in THEIRS
