"""Every registered verifier, made ready to run: those that need more than their defaults are given it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ttc.config.registry import VERIFIERS
from ttc.core import Prompt
from ttc.engines.scripted import ScriptedEngine

KNOWN = r"""
[[known]]
target = "4"
text = '\boxed{4}'
status = "correct"
[[known]]
target = "4"
text = '\boxed{5}'
status = "incorrect"
"""
"""Known cases of a composite reward of mathematics and form."""
REWARD = f"""
[parts.answer]
verifier = "math"
[parts.form]
verifier = "format"
{KNOWN}
"""


def make(name: str, folder: Path) -> Any:
    """The verifier `name`; raises ConfigError or MissingExtra where it cannot be made on this machine."""
    options = _OPTIONS[name](folder) if name in _OPTIONS else {}
    return VERIFIERS.load(name)(**options)


def _reward(folder: Path) -> dict[str, Any]:
    file = folder / "reward.toml"
    file.write_text(REWARD)
    return {"spec": file}


def _judge(folder: Path) -> dict[str, Any]:
    return {"engine": ScriptedEngine(_say)}


def _parts(folder: Path) -> dict[str, Any]:
    return {"parts": {"sums": {"verifier": "math"}, "letters": {"verifier": "choice"}}}


def _say(prompt: Prompt, path: tuple[int, ...], key: int) -> str:
    """A judge that knows the cases of its card, and says anything otherwise."""
    right = "Paris.\n</answer>" in prompt.text
    if right or "London.\n</answer>" in prompt.text:
        return f"Verdict: {'A' if right == ('Say yes (A)' in prompt.text) else 'B'}"
    said = len(prompt.text) % 5
    return ["Verdict: A", "Verdict: B", "verdict", "x" * 50, "</think>Verdict: tie"][said]


_OPTIONS: Mapping[str, Callable[[Path], dict[str, Any]]] = {"composite": _reward, "judge": _judge, "mixture": _parts}
