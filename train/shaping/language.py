"""A reward for thinking in one language: the share of the thinking's words that are in the wanted script.

The language consistency reward of DeepSeek-R1 (arXiv:2501.12948, section 2.3.2), where it is the share of words:
rewarded by results alone, a policy mixes languages in its thinking, which becomes hard to read; the reward costs a
little accuracy and keeps it readable. Mathematics and code are ignored: text between dollar signs or in backticks, and
LaTeX commands. Scripts separate the observed case (Chinese in English thinking) without a detector; in scripts without
spaces two characters count as a word. Left out: languages that share a script, for which the verifier `language` has a
detector.
"""

from __future__ import annotations

import re
import unicodedata

from train.rollouts.rewards import Shaping, of_each
from ttc.errors import ConfigError

_APART = re.compile(r"```.*?(?:```|$)|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\[a-zA-Z]+", re.DOTALL)
"""Code and mathematics."""
_LETTERS = re.compile(r"[^\W\d_]+")
_UNSPACED = {"CJK": 2, "HIRAGANA": 2, "KATAKANA": 2, "THAI": 4, "LAO": 4, "KHMER": 4, "MYANMAR": 4}
"""Scripts without spaces between words, and the letters of a usual word."""


def language(*, script: str = "latin") -> Shaping:
    """Share of the thinking's words in one script, in [0, 1]; 1 without any word.

    Args:
        script: as Unicode names it: latin, cyrillic, greek, cjk, hangul, arabic, ...
    """
    if not script.isalpha():
        raise ConfigError(f"shaping language: script must be the name of one, such as latin, got {script!r}")
    return of_each(lambda rollout: script_share(rollout.thinking, script))


def script_share(text: str, script: str) -> float:
    """Share of the words of `text` in the script whose Unicode names begin with `script`; 1 without any word."""
    words: dict[str, float] = {}
    for run in _LETTERS.findall(_APART.sub(" ", text)):
        letters = [unicodedata.name(letter, "").partition(" ")[0] for letter in run]
        for name in set(letters):
            num = letters.count(name)
            words[name] = words.get(name, 0) + (num / _UNSPACED[name] if name in _UNSPACED else num / len(letters))
    return words.get(script.upper(), 0.0) / sum(words.values()) if words else 1.0
