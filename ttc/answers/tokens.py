r"""Bring the many spellings of a short answer to one plain LaTeX-like ASCII form, and cut that into tokens.

Full-width and other Unicode digits, vulgar fractions, superscripts, minus signs, root and relation signs become LaTeX;
wrappers that carry no meaning (`$..$`, `\left`, `\displaystyle`, bold, thin spaces) are dropped. Tokens are numbers,
letters, words, commands and marks. A comma between groups of three digits is a thousands separator outside brackets and
a separator of items inside them. Both are linear in the text; tokens are capped. Left out: any judgement about what the
text means, which is `grammar`'s; comments, macros, verbatim.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from ttc.answers.nodes import UNITS

_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "⁄": "/", "∕": "/", "÷": "/",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "√": r"\sqrt ", "∛": r"\sqrt[3]",
    "∞": r"\infty ", "π": r"\pi ", "∅": r"\varnothing ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "°": r"^\circ ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "％": "%", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "φ": r"\phi ", "γ": r"\gamma ", "δ": r"\delta ", "ω": r"\omega ", "μ": r"\mu ", "σ": r"\sigma ", "ℝ": r"\mathbb{R}",
    "≡": r"\equiv ", "ħ": r"\hbar ", "ℏ": r"\hbar ",
    "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "，": ",", "；": ";", "：": ":", "（": "(", "）": ")",
    "€": " EUR ", "£": " GBP ", "¥": " JPY ", "￥": " JPY ", "₹": " INR ", "¢": " cents ",
    "…": r"\dots ", "⋯": r"\dots ", "\u200b": "", "\ufeff": "", "\u2061": "", "\u2062": "", "\u2063": ",",
    "\u2009": r"\,", "\u202f": r"\,",
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
_THIN = re.compile(r"(?<=\d)(?:'|\\[,!;:]|\s?\{,\s?\}|\\[,!;:],?\\[,!;:]|,\\[!,] ?)(?=\d{3}(?!\d))")
_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
"""A decimal comma as LaTeX writes it; before three digits it parts thousands."""
_POINTED = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.]|,\d{3})")
_EUROPEAN = re.compile(r"(-?\s?(?:EUR|USD|\$)?\s?\d{1,3}(?:\.\d{3})+),(\d{1,2})(?![\d.])(?!.*,)", re.DOTALL)
"""Numbers whose thousands points part: 1.234.567, and 1.234,50 as the whole answer."""
_SPACED = re.compile(r"(?<![\w.,^_}/\\])\d{1,3}(?:(?:\\ |[~\xa0])\d{3})+(?![\d/^_!])(?!\s*\\frac)")
"""A number whose thousands a space parts that no line breaks at: 3 125/1000 is a mixed number, 12 345 may be two."""
_SPACED_TWICE = re.compile(r"-?\d{1,3}(?: \d{3}){2,}")
"""A whole answer of three groups or more is one number."""
_CALCULATED = re.compile(r"<<[^<>]*>>")
"""The calculation that GSM8K writes before its result: 4*2=<<4*2=8>>8."""
_NESTED_BOX = re.compile(
    r"\\(?:f?box(?:ed)?|underline|bm|boldsymbol|ensuremath|textcolor\s*\{[a-z]{1,20}\}|color\s*\{[a-z]{1,20}\}(?=\s*\{))\s*\{"
)
_LOOKS = re.compile(r"\\(?:tiny|small|large|Large|LARGE|huge|Huge|normalsize|color\s*\{[a-z]{1,20}\})(?![A-Za-z{])")
"""Sizes and colours, which mean nothing."""
_UNIT_FRACTION = re.compile(
    r"\\frac\s*\{\s*\\text\s*\{([A-Za-z ]{1,20})\}\s*\}\s*\{\s*\\text\s*\{([A-Za-z ]{1,20})\}(\^\{?[23]\}?)?\s*\}"
)
"""A unit as a fraction of units."""
_STYLED_TEXT = re.compile(r"\\(?:mathbf|mathrm|textbf|boldsymbol)\s*\{\s*(\\text\s*\{[^{}]*\})\s*\}")
_DMS = re.compile(
    r"(\d{1,4})\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)\s*(\d{1,2})\s*'(?!')(?:\s*(\d{1,2}(?:\.\d{1,6})?)\s*(?:''|\"))?"
)
"""An angle in degrees, minutes and seconds."""
_CYCLE = re.compile(
    r"(?<![\d.])(\d*\.\d{0,12}?)(?P<cycle>\d{1,6}?)(?P=cycle){2,12}\s*(?:\.{3}|\\(?:l|c|)dots(?![A-Za-z]))(?!\d)"
)
_DOTTED = re.compile(r"(?<=[.\d])\\dot\s?\{(\d)\}(?:(\d{0,8})\\dot\s?\{(\d)\})")
"""A repeating decimal with dots behind it, 0.1666..., or dots above the ends of its cycle."""
_CHOSEN = re.compile(
    r"(?:(?:\\binom)?\{\s*\})?\s*[_^]\s*(?:\{\s*(?P<braced>\w{1,9})\s*\}|(?P<upper>\w))\s*C\s*"
    r"_\s*(?:\{\s*(?P<below>\w{1,9})\s*\}|(?P<lower>\w))"
)
"""A binomial coefficient as the letter C between its numbers."""
_MODULUS = re.compile(
    r"\(?\s{0,8}(?:\\[pb]?mod(?:ulo)?(?![A-Za-z])|(?<![A-Za-z\\])mod(?:ulo)?(?![A-Za-z])|\\(?:text|mathrm|operatorname)\s*\{\s*\(?mod(?:ulo)?\s*\})"
    r"\s{0,8}\{?\s{0,8}(?P<modulus>\d{1,18}|[A-Za-z](?![A-Za-z]))\s*\}?\s*\)?"
)
"""A modulus in any spelling: \\pmod{7}, (mod 7), mod 7."""
_PRIME = re.compile(r"\^(?:\{(?:\s*\\prime)+\s*\}|\s*\\prime(?![A-Za-z]))")
_ORDINAL = re.compile(r"(?<=\d)(?:\^\{\\(?:text|mathrm)\{(?:st|nd|rd|th)\}\}|\^?\\(?:text|mathrm)\{(?:st|nd|rd|th)\})")
_VALUE_IN_TEXT = re.compile(r"\\(?:text|mbox|textbf|textrm|mathrm|mathbf)\s*\{([^{}A-Za-z]*\d[^{}]*)\}")
_LABEL = re.compile(
    r"\s*(?:(?P<styled>\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s*\{\s*(?:\([A-E]\)|[A-E][).])\s*\})\s*"
    r"|\([A-E]\)(?:\s+|(?=\d))|[A-E][).]\s+)(?!.*\([A-E]\)|.*(?<![A-Za-z(])[A-E][).])"
    r"(?=(?(styled)-?\s*|-?)"
    r"(?:[\d.(]|[A-Za-z](?![A-Za-z])|\\\{|\\(?:frac|sqrt|pi|infty|binom|langle|mathbb|log|ln)(?![A-Za-z])))",
    re.DOTALL,
)
"""The letter of a choice before its value: `(B) 5`, `B. 5`, the letter in bold; two letters are no label."""
_LABEL_IN_TEXT = re.compile(r"\s*\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s*\{(\s*\([A-E]\)\s[^{}]*\d[^{}]*)\}\s*")
"""A letter and its value that wear one style."""
_TITLE = re.compile(
    r"\s*(?:=|\\approx(?![A-Za-z])"
    r"|\\(?:text|textbf|textrm|textit|mathrm|mathbf|mbox)\s*\{\s*(?P<words>[A-Za-z]*[a-z][A-Za-z' ]{1,60}?)\s*"
    r"(?:(?:[:=]|\b(?:is|are)\s?:?)\s*\}|\}\s*[:=])"
    r"|(?:\\Pr|P|\\(?:mathbb|mathrm|text|operatorname)\{P\})\s*\((?=[^()]*(?:[=|A-Z<>]|\\(?:mid|cap|cup|text)))[^()]{1,60}\)\s*="
    r")\s*(?=[-\d.$(A-Za-z\\])(?!.*[,;].*[:=])",
    re.DOTALL,
)
"""What a value is said to be before it: the total, the probability of an event, or nothing but an equals sign."""
_NO_TITLE = frozenset(
    {"not", "no", "never", "cannot", "twice", "thrice", "half", "double", "triple", "wrong", "incorrect"}
)
_POWERED = re.compile(r"\\(?:text|textrm|mathrm)\s*\{((?:[A-Za-z\s]|\\cdot|\^-?\d|\^\{-?\d\})+)\}")
"""Units with powers in upright letters."""
_DOLLARS = re.compile(r"^(-?)\$(?=\s?[\d.])(?!.*\$)", re.DOTALL)
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_OVER = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*?)\\over(?![A-Za-z])((?:[^{}]|\{[^{}]*\})*)\}")
"""A fraction as TeX writes it, {1 \\over 2}."""
_ALIASES = (
    (r"\\[", re.compile(r"\\\\\[\s?-?[\d.]{1,9}\s?(?:pt|em|ex|mm|cm|in)\s?\]"), r"\\\\"),
    ("{:}", re.compile(r"\{:\}"), ":"),
    ("\\", re.compile(r"\\(?:backslash|smallsetminus)(?![A-Za-z])"), r"\\setminus "),
    ("{", re.compile(r"\A\{\s*([A-Za-z])(\s*(?:\||:|\\mid|\\in)(?![A-Za-z]).*)\}\Z", re.DOTALL), r"\\{\1\2\\}"),
    ("US", re.compile(r"(?<![A-Za-z])US(?=\s?\\?\$\s?\d)"), ""),
    ("<", re.compile(r"\A<([^<>]*,[^<>]*)>\Z"), r"\\langle \1\\rangle "),
    (r"\R", re.compile(r"\\R(?![A-Za-z])"), r"\\mathbb{R}"),
    ("o", re.compile(r"(?<=\d)\^(?:o|\{o\})(?!\w)"), r"^\\circ "),
    (",", re.compile(r"\\(?:text|textrm|mbox)\s?\{\s*,\s*\}"), ","),
    (",", re.compile(r"\\(?:text|textrm|mbox)\s?\{\s*,\s*(and|or)\s*\}"), r", \\text{\1}"),
    ("\\", re.compile(r"\\(?:text|textrm|mbox)\s?\{([A-Za-z ]{2,40}?)(,?) (and|or)\s*\}"), r"\\text{\1}\2 \\text{\3}"),
    (r"\le", re.compile(r"\\(?:leq|leqslant|leqq)(?![A-Za-z])"), r"\\le "),
    (r"\ge", re.compile(r"\\(?:geq|geqslant|geqq)(?![A-Za-z])"), r"\\ge "),
    (r"\n", re.compile(r"\\(?:neq|not\s*=)(?![A-Za-z])"), r"\\ne "),
    ("\\", re.compile(r"\\(?:emptyset|O)(?![A-Za-z])"), r"\\varnothing "),
    (r"\lt", re.compile(r"\\(?:lt)(?![A-Za-z])"), "<"),
    (r"\gt", re.compile(r"\\(?:gt)(?![A-Za-z])"), ">"),
    ("<=", re.compile(r"<="), r"\\le "),
    (">=", re.compile(r">="), r"\\ge "),
    ("!=", re.compile(r"!="), r"\\ne "),
    ("brace", re.compile(r"\\(?:lbrace)(?![A-Za-z])"), r"\\{"),
    ("brace", re.compile(r"\\(?:rbrace)(?![A-Za-z])"), r"\\}"),
    ("vert", re.compile(r"\\(?:lvert|rvert|vert)(?![A-Za-z])"), "|"),
    ("degree", re.compile(r"\\(?:degree|degrees)(?![A-Za-z])"), r"^\\circ "),
    ("varphi", re.compile(r"\\(?:varphi)(?![A-Za-z])"), r"\\phi "),
    ("^", re.compile(r"\^\{?\s*(?:\\top|\\intercal|\\(?:text|mathrm|mathsf)\{T\})(?![A-Za-z])\s*\}?"), "^T"),
    ("\\", re.compile(r"\\(?:ast|star)(?![A-Za-z])"), "*"),
    ("**", re.compile(r"\*\*(?=[\w({\\-])"), "^"),
    (
        "except",
        re.compile(
            r"\A(?P<text>\\text\{)?(?:x is )?all real numbers,? except (?:for )?(?:x\s*=)?"
            r"(?P<closed>\})?(?P<points>.*?)(?(text)(?(closed)|\}))\Z"
        ),
        r"\\mathbb{R}\\setminus\\{\g<points>\\}",
    ),
    ("x", re.compile(r"(?<=\d) x (?=[\d$])|(?<=\d)x(?=10(?:\^|\*\*))"), r" \\times "),
)
"""What a spelling has in it, the spelling, and the one that stands for it."""


def plain(text: str) -> str:
    """Return `text` as plain LaTeX-like ASCII where it is mathematics; other characters stay. Never raises."""
    if text.isdigit() and text.isascii():
        return text
    text = _SPACED.sub(lambda match: re.sub(r"\D", "", match[0]), _unbold(text.strip()))
    boxed = _NESTED_BOX.match(text) is not None
    text = text.replace(" ", "") if _SPACED_TWICE.fullmatch(text) else text
    if not text.isascii():
        text = _ascii(text)
    text = _COMMA.sub(".", _THIN.sub(",", _CALCULATED.sub("", text)))
    text = _POINTED.sub(lambda match: match[0].replace(".", ""), text)
    if european := _EUROPEAN.match(text):
        text = f"{european[1].replace('.', '')}.{european[2]}{text[european.end() :]}"
    text = _FRAC.sub(r"\\frac", text)
    text = _OVER.sub(r"\\frac{\1}{\2}", text) if r"\over" in text else text
    if "C" in text and "_" in text:
        text = _CHOSEN.sub(_binomial, text)
    if "mod" in text:
        text = _MODULUS.sub(r"\\pmod{\g<modulus>}", text)
    text = _PRIME.sub(lambda match: "'" * match[0].count("prime"), text)
    text = _rewritten(text)
    for sign, pattern, replacement in _ALIASES:
        text = pattern.sub(replacement, text) if sign in text else text
    if labelled := _LABEL_IN_TEXT.fullmatch(text):
        text = labelled[1]
    text = _VALUE_IN_TEXT.sub(r" \1 ", _ORDINAL.sub("", _NESTED_BOX.sub("{", text)))
    # A currency sign is not a mathematics delimiter.
    text = _DOLLARS.sub(r"\1 USD ", text).replace(r"\$", " USD ")
    text = _SPACES.sub(" ", _WRAPPERS.sub(" ", text))
    lead = _LABEL.match(text) or _TITLE.match(text)
    if lead and _NO_TITLE.isdisjoint((lead.groupdict().get("words") or "").lower().split()):
        text = text[lead.end() :]
    text = _POWERED.sub(_unwrapped, text).strip()
    if text.endswith("\\") and not text.endswith("\\\\"):
        text = text[:-1]  # of a control space at the end
    if not text.endswith("..."):
        text = text.rstrip(" .,;:。、").strip()
    return _unbraced(text, whole=boxed)


def _rewritten(text: str) -> str:
    """What is seldom: looks, angles in minutes, repeating decimals; each is sought only where its sign stands."""
    if "\\" in text:
        text = _STYLED_TEXT.sub(r"\1", _LOOKS.sub("", text))
    if r"\frac" in text and "text" in text:
        text = _UNIT_FRACTION.sub(r"\\text{\1}/\\text{\2}\3", text)
    if "dot" in text or "..." in text:
        text = _CYCLE.sub(r"\1\\overline{\g<cycle>}", _DOTTED.sub(r"\\overline{\1\2\3}", text))
    return _DMS.sub(_degrees, text) if "'" in text else text


def _degrees(match: re.Match[str]) -> str:
    degrees = Fraction(match[1]) + Fraction(match[2]) / 60 + Fraction(match[3] or 0) / 3600
    return rf"{degrees}^\circ "


def _binomial(match: re.Match[str]) -> str:
    return rf"\binom{{{match['braced'] or match['upper']}}}{{{match['below'] or match['lower']}}}"


def _unwrapped(match: re.Match[str]) -> str:
    """Units with powers, without the command around them; anything else, and a lone 1/s, as it is."""
    names = re.findall(r"(?<!\\)\b[A-Za-z]+", match[1])
    known = "^" in match[1] and UNITS.keys() >= set(names)
    return f" {match[1]} " if known and (len(names) > 1 or "-" not in match[1]) else match[0]


MAX_BRACES = 4
_WHOLE = re.compile(r"[,=<>]|\\(?:le|ge|ne|in)(?![A-Za-z])")
"""Signs of a list or a relation: what stands in braces without them is one value."""


def _unbraced(text: str, whole: bool) -> str:
    """Drop braces around a list or a relation, or around a `whole` answer that was in a box, as LaTeX shows none."""
    for _ in range(MAX_BRACES):
        if (
            not (text.startswith("{") and text.endswith("}"))
            or text.endswith(r"\}")
            or not (whole or _WHOLE.search(text))
        ):
            break
        depth = 0
        for at, char in enumerate(text):
            depth += (char == "{") - (char == "}")
            if not depth and at < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text


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


MAX_CHARS = 4096
MAX_TOKENS = 1500


class Unparsed(Exception):
    """The answer is not in the grammar; carries a short reason. Internal: verifiers turn it into a verdict."""


class TooLarge(Unparsed):
    """A size cap of the parser was exceeded."""


class Alternatives(Unparsed):
    """Several answers offered as alternatives ("1 or 4")."""


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is num, base, word, text, cmd, mark or end; `spaced` says whether white space came before."""

    kind: str
    text: str
    spaced: bool = False


_NUMBER = re.compile(
    r"""(?P<grouped>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?)
      | (?P<science>\d+(?:\.\d*)?[eE][+-]?\d{1,4}(?![\dA-Za-z]))
      | (?P<repeat>\d*\.\d*(?:\\overline|\\dot|\\bar)\ ?\{\d+\})
      | (?P<decimal>\d+\.\d+|\.\d+|\d+\.(?!\.))
      | (?P<integer>\d+)""",
    re.VERBOSE,
)
_TEXT = re.compile(
    r"\\(text|textnormal|mbox|textrm|textbf|textit|mathrm|mathbf|mathsf|mathit|operatorname\*?|hbox)\s*\{([^{}]*)\}"
)
_STYLED = re.compile(r"\\(?:mathrm|mathbf|mathit|mathsf)\s+([A-Za-z])(?![A-Za-z])")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+")
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([A-Za-z]+\*?)\}(?:\{[lcr|]*\})?")


def tokens(text: str) -> list[Token]:
    """Return the tokens of `text`, closed by one of kind `end`. Raises Unparsed or TooLarge."""
    if len(text) > MAX_CHARS:
        raise TooLarge(f"more than {MAX_CHARS} characters")
    items: list[Token] = []
    at, depth, spaced = 0, 0, False
    while at < len(text):
        if text[at].isspace():
            at, spaced = at + 1, True
            continue
        token, at = _next(text, at, spaced, nested=depth != 0)
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        items.append(token)
        spaced = False
        if len(items) > MAX_TOKENS:
            raise TooLarge(f"more than {MAX_TOKENS} tokens")
    return [*items, Token("end", "")]


_OPENING = frozenset({"(", "[", r"\{", r"\langle"})
_CLOSING = frozenset({")", "]", r"\}", r"\rangle"})


def _next(text: str, at: int, spaced: bool, nested: bool) -> tuple[Token, int]:
    char = text[at]
    if char.isdigit() or (char == "." and text[at + 1 : at + 2].isdigit()):
        return _number(text, at, spaced, nested)
    if char == "\\":
        return _command(text, at, spaced)
    if word := _WORD.match(text, at):
        return Token("word", word[0], spaced), word.end()
    return Token("mark", char, spaced), at + 1


_IN_A_LIST = re.compile(r"\d,\Z")
"""A number right behind 36, is an item of a list: of 36,36,108 the last two are no 36108."""


def _number(text: str, at: int, spaced: bool, nested: bool) -> tuple[Token, int]:
    match = _NUMBER.match(text, at)
    if match is None:
        raise Unparsed(f"digit {text[at]!r} not understood")
    if match.lastgroup == "grouped" and (nested or _IN_A_LIST.search(text, max(at - 2, 0), at)):
        end = at + len(match[0].partition(",")[0])
        return Token("num", text[at:end], spaced), end
    return Token("num", match[0], spaced), match.end()


def _command(text: str, at: int, spaced: bool) -> tuple[Token, int]:
    if match := _TEXT.match(text, at):
        words = match[2].strip()
        styled_letter = len(words) == 1 and match[1] not in ("text", "mbox", "hbox")
        is_word = styled_letter or match[1].startswith("operatorname")
        return Token("word" if is_word else "text", words, spaced), match.end()
    if match := _STYLED.match(text, at):
        return Token("word", match[1], spaced), match.end()
    if match := _ENVIRONMENT.match(text, at):
        return Token("cmd", rf"\{match[1]}{{{match[2]}}}", spaced), match.end()
    match = _COMMAND.match(text, at)
    if match is None:
        raise Unparsed("a lone backslash")
    return Token("cmd", match[0], spaced), match.end()
