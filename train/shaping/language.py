"""A reward for thinking in one language: the share of the thinking's letters that are in the wanted script.

The language consistency reward of DeepSeek-R1 (arXiv:2501.12948, section 2.3.2): rewarded by results alone, a policy
mixes languages in its thinking, and readers lose it; the reward costs a little accuracy and keeps it readable. Scripts
tell apart what was seen there (Chinese in English thinking) without a detector. Left out: languages that share a
script, for which the verifier `language` has a detector.
"""

from __future__ import annotations

import unicodedata

from train.rollouts.rewards import Shaping, of_each
from ttc.errors import ConfigError


def language(*, script: str = "latin") -> Shaping:
    """Share of the thinking's letters in one script, in [0, 1]; 1 without any letter.

    Args:
        script: as Unicode names it: latin, cyrillic, greek, cjk, hangul, arabic, ...
    """
    if not script.isalpha():
        raise ConfigError(f"shaping language: script must be the name of one, such as latin, got {script!r}")
    return of_each(lambda rollout: script_share(rollout.thinking, script))


def script_share(text: str, script: str) -> float:
    """Share of the letters of `text` whose Unicode name begins with `script`; 1 without any letter."""
    letters = [unicodedata.name(char, "").partition(" ")[0] for char in text if char.isalpha()]
    return letters.count(script.upper()) / len(letters) if letters else 1.0
