r"""Bring the many spellings of a short answer to one plain LaTeX-like ASCII form.

Full-width and other Unicode digits, vulgar fractions, superscripts, minus signs, root and relation signs become LaTeX;
wrappers that carry no meaning (`$..$`, `\left`, `\displaystyle`, bold, thin spaces) are dropped. Linear in the text.
Left out: any judgement about what the text means; that is `grammar`.
"""

from __future__ import annotations

import re
import unicodedata

_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "⁄": "/", "∕": "/", "÷": "/",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "√": r"\sqrt ", "∛": r"\sqrt[3]",
    "∞": r"\infty ", "π": r"\pi ", "∅": r"\varnothing ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "°": r"^\circ ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "％": "%", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "φ": r"\phi ", "γ": r"\gamma ", "δ": r"\delta ", "ω": r"\omega ", "μ": r"\mu ", "σ": r"\sigma ", "ℝ": r"\mathbb{R}",
    "ħ": r"\hbar ", "ℏ": r"\hbar ",
    "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "，": ",", "；": ";", "：": ":", "（": "(", "）": ")",
    "€": " EUR ", "£": " GBP ", "¥": " JPY ", "￥": " JPY ", "₹": " INR ",
    "…": r"\dots ", "⋯": r"\dots ", "\u200b": "", "\ufeff": "", "\u2061": "", "\u2062": "", "\u2063": ",",
}  # fmt: skip
_TABLE = str.maketrans(_SYMBOLS)
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_SUPER_RUN = re.compile("[" + "".join(_SUPER) + "]+")
_SUB_RUN = re.compile("[" + "".join(_SUB) + "]+")
_ROOT_OF_RUN = re.compile(r"\\sqrt(\[3\])? ?(\d+(?:\.\d+)?|[A-Za-z])")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_WRAPPERS = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|mathstrut)(?![A-Za-z])\.?"
    r"|\\[!;:>](?!\d)|\\phantom\{[^{}]*\}|\\hspace\*?\{[^{}]*\}|\\label\{[^{}]*\}|\$\$?|(?<!\\)\\[()\[\]]"
)
_SPACES = re.compile(r"\\(?:quad|qquad|enspace|thinspace)(?![A-Za-z])|(?<!\\)\\[,;:! ]|[~\s]+")
_THIN = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|\\[,!;:],?\\[,!;:]|,\\[!,])(?=\d{3}(?!\d))")
_NESTED_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_PRIME = re.compile(r"\^(?:\{(?:\s*\\prime)+\s*\}|\s*\\prime(?![A-Za-z]))")
_ORDINAL = re.compile(r"(?<=\d)(?:\^\{\\(?:text|mathrm)\{(?:st|nd|rd|th)\}\}|\^?\\(?:text|mathrm)\{(?:st|nd|rd|th)\})")
_VALUE_IN_TEXT = re.compile(r"\\(?:text|mbox|textbf|textrm|mathrm|mathbf)\s*\{([^{}A-Za-z]*\d[^{}]*)\}")
_DOLLARS = re.compile(r"^(-?)\$(?=\s?[\d.])(?!.*\$)", re.DOTALL)
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_ALIASES = (
    (re.compile(r"\\(?:leq|leqslant|leqq)(?![A-Za-z])"), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant|geqq)(?![A-Za-z])"), r"\\ge "),
    (re.compile(r"\\(?:neq|not\s*=)(?![A-Za-z])"), r"\\ne "),
    (re.compile(r"\\(?:emptyset|O)(?![A-Za-z])"), r"\\varnothing "),
    (re.compile(r"\\(?:lt)(?![A-Za-z])"), "<"),
    (re.compile(r"\\(?:gt)(?![A-Za-z])"), ">"),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!="), r"\\ne "),
    (re.compile(r"\\(?:lbrace)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(?:lvert|rvert|vert)(?![A-Za-z])"), "|"),
    (re.compile(r"\\(?:degree|degrees)(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\(?:varphi)(?![A-Za-z])"), r"\\phi "),
    (re.compile(r"\\(?:ast|star)(?![A-Za-z])"), "*"),
    (re.compile(r"\*\*(?=[\w({\\-])"), "^"),
)


def plain(text: str) -> str:
    """Return `text` as plain LaTeX-like ASCII where it is mathematics; other characters stay. Never raises."""
    text = _unbold(text.strip())
    if not text.isascii():
        text = _ascii(text)
    text = _THIN.sub(",", text)
    text = _FRAC.sub(r"\\frac", text)
    text = _PRIME.sub(lambda match: "'" * match[0].count("prime"), text)
    for pattern, replacement in _ALIASES:
        text = pattern.sub(replacement, text)
    text = _VALUE_IN_TEXT.sub(r" \1 ", _ORDINAL.sub("", _NESTED_BOX.sub("{", text)))
    # A currency sign is not a mathematics delimiter.
    text = _DOLLARS.sub(r"\1 USD ", text).replace(r"\$", " USD ")
    text = _WRAPPERS.sub(" ", text)
    text = _SPACES.sub(" ", text).strip()
    return text.rstrip(" .,;:。、").strip() if not text.endswith("...") else text


def _unbold(text: str) -> str:
    """Drop Markdown emphasis and code marks that wrap the whole text."""
    for mark in ("**", "__", "*", "`"):
        inner = text[len(mark) : -len(mark)]
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark) and mark not in inner:
            return inner.strip()
    return text


def _ascii(text: str) -> str:
    text = _SUPER_RUN.sub(lambda m: "^{" + "".join(_SUPER[c] for c in m[0]) + "}", text)
    text = _SUB_RUN.sub(lambda m: "_{" + "".join(_SUB[c] for c in m[0]) + "}", text)
    text = _VULGAR.sub(_vulgar, text)
    text = text.translate(_TABLE)
    text = _ROOT_OF_RUN.sub(lambda m: rf"\sqrt{m[1] or ''}{{{m[2]}}}", text)
    text = unicodedata.normalize("NFKC", text).translate(_TABLE)
    return "".join(c if c.isascii() else _digit(c) for c in text)


def _digit(char: str) -> str:
    value = unicodedata.decimal(char, None)
    return char if value is None else str(value)


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}"
