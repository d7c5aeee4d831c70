r"""Bring the many spellings of a short answer to one plain LaTeX-like ASCII form.

Full-width and other Unicode digits, vulgar fractions, superscripts, minus signs, root and relation signs become LaTeX;
wrappers that carry no meaning (`$..$`, `\left`, `\displaystyle`, bold, thin spaces) are dropped. Linear in the text.

Left out: what is read as a whole, which is in `words`; any judgement about what the text means, which is `grammar`'s;
comments, macros, verbatim.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

from ttc.answers.nodes import UNITS, is_unit, unit

# -- characters --------------------------------------------------------------------------------------------------------
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "⁄": "/", "∕": "/", "÷": "/",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "√": r"\sqrt ", "∛": r"\sqrt[3]",
    "∞": r"\infty ", "π": r"\pi ", "∅": r"\varnothing ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "°": r"^\circ ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "％": "%", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "φ": r"\phi ", "γ": r"\gamma ", "δ": r"\delta ", "ω": r"\omega ", "μ": r"\mu ", "σ": r"\sigma ", "ℝ": r"\mathbb{R}",
    "≡": r"\equiv ", "¬": r"\neg ", "∧": r"\land ", "∨": r"\lor ", "ħ": r"\hbar ", "ℏ": r"\hbar ",
    "∴": r"\therefore ", "⇒": r"\implies ", "→": r"\to ", "✓": "", "✔": "", "✅": "",
    "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "，": ",", "、": ", ", "和": r"\text{ and }",
    "；": ";", "：": ":", "（": "(", "）": ")",
    "€": " EUR ", "£": " GBP ", "¥": " JPY ", "￥": " JPY ", "₹": " INR ", "¢": " cents ",
    "…": r"\dots ", "⋯": r"\dots ", "\u200b": "", "\ufeff": "", "\u2061": "", "\u2062": "", "\u2063": ",",
    "\u2009": r"\,", "\u202f": r"\,", "٫": ".", "٬": ",",
}  # fmt: skip
_TABLE = str.maketrans(_SYMBOLS)
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_SUPER_RUN = re.compile("[" + "".join(_SUPER) + "]+")
_SUB_RUN = re.compile("[" + "".join(_SUB) + "]+")
_ROOT_OF_RUN = re.compile(r"\\sqrt(\[3\])? ?(\d+(?:\.\d+)?|[A-Za-z])")
r"""A root without braces, with the number or the letter below it: `\sqrt 12`, `\sqrt x`."""
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_SIZED = re.compile(r"(?<=\d)([万萬億亿만억])(?=[^\W\d_])")
"""A size behind a number and before what is counted, as East Asian languages write both: 3万円."""
_EAST_ASIAN = "|".join(
    sorted(
        (
            name
            for name, measure in UNITS.items()
            if re.match("[가-힣一-龥]", name) and "money" not in measure.dimension
        ),
        key=len,
        reverse=True,
    )
)
_COUNTED = re.compile(rf"(?<=\d)\s?((?:{_EAST_ASIAN})(?:/(?:{_EAST_ASIAN}))?)(?![^\W\d_])")
"""A unit of an East Asian language right behind a number: 5厘米, 5米/秒."""
# -- layout ------------------------------------------------------------------------------------------------------------
_WRAPPERS = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|mathstrut)(?![A-Za-z])\.?"
    r"|\\[!;:>](?!\d)|\\phantom\{[^{}]*\}|\\hspace\*?\{[^{}]*\}|\\label\{[^{}]*\}|\$\$?|(?<!\\)\\[()\[\]]"
)
r"""Commands of layout and signs around a formula, which mean nothing: `\left`, `\displaystyle`, `$`, `\(`."""
_SPACES = re.compile(r"\\(?:quad|qquad|enspace|thinspace)(?![A-Za-z])|(?<!\\)\\[,;:! ]|[~\s]+")
r"""All white space and what LaTeX sets as such: `\quad`, `\,`, `~`."""
# -- thousands and decimals --------------------------------------------------------------------------------------------
_THIN = re.compile(r"(?<=\d)(?:'|_|\\[,!;:]|\s?\{,\s?\}|\\[,!;:],?\\[,!;:]|,\\[!,] ?)(?=\d{3}(?!\d))")
r"""What parts thousands but is no plain comma: 1'000, 1_000, 1\,000, 1{,}000."""
_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
"""A decimal comma as LaTeX writes it, 2{,}5; before three digits it parts thousands (`_THIN`)."""
_POINTED = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.]|,\d{3})")
_BRACED_COMMA = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3})+(?=\{,\}\d{1,2}(?!\d))")
_EUROPEAN = re.compile(
    r"((?:\\displaystyle|\\[,;:! ]|\s)*-?\s?(?:EUR|USD|\$)?\s?\d{1,3}(?:\.\d{3})+),(\d{1,2})(?!\.?\d)(?!.*,)", re.DOTALL
)
"""Numbers whose thousands points part: 1.234.567, 1.234{,}50, and 1.234,50 as the whole answer."""
_COMMA_AMOUNT = re.compile(r"(\d),(\d\d)(?=\s*(?:(?:EUR|[Ee]uros?)\b|\\?\$\Z))")
"""A decimal comma before the name or the sign of a currency: 3,50 EUR, 3,50 $."""
_SPACED = re.compile(r"(?<![\w.,^_}/\\])\d{1,3}(?:(?:\\ |[~\xa0])\d{3})+(?![\d/^_!])(?!\s*\\frac)")
"""A number whose thousands a space parts that no line breaks at: 3 125/1000 is a mixed number, 12 345 may be two."""
_SPACED_WHOLE = re.compile(
    r"([-+]?\s?\\?[$€£¥₹]?\s?[1-9]\d{0,2}(?: \d{3})+)"
    r"(?=(?:[.,]\d{1,9})?(?:\s|\\?[%$]|[€£¥₹]|[A-Za-z]|\\(?:text|mathrm|mbox)\s?\{[A-Za-z ]{1,40}\}|\.(?!\d))*\Z)"
)
"""A number whose thousands plain spaces part, with nothing but its unit beside it."""
_CALCULATED = re.compile(r"<<[^<>]*>>")
"""The calculation that GSM8K writes before its result: 4*2=<<4*2=8>>8."""
# -- boxes, looks and styles -------------------------------------------------------------------------------------------
_NESTED_BOX = re.compile(
    r"\\(?:f?box(?:ed)?|underline|bm|boldsymbol|ensuremath|textcolor\s*\{[a-z]{1,20}\}|color\s*\{[a-z]{1,20}\}(?=\s*\{)"
    r"|(?:mathbf|mathrm|textbf)(?=\s*\{\s*(?:[A-Za-z]\s*=|\\(?!text|math|mbox)[A-Za-z])))\s*\{"
)
r"""A box, a line, bold face or a colour around a formula, up to its brace: `\boxed{`, `\textcolor{red}{`."""
_LOOKS = re.compile(r"\\(?:tiny|small|large|Large|LARGE|huge|Huge|normalsize|color\s*\{[a-z]{1,20}\})(?![A-Za-z{])")
"""Sizes and colours, which mean nothing."""
_UNIT_FRACTION = re.compile(
    r"\\frac\s*\{\s*\\(?:text|mathrm)\s*\{([A-Za-z ]{1,20})\}\s*\}"
    r"\s*\{\s*\\(?:text|mathrm)\s*\{([A-Za-z ]{1,20})\}(\^\{?[23]\}?)?\s*\}"
)
r"""A unit as a fraction of units: `\frac{\text{m}}{\text{s}^2}`."""
_STYLED_TEXT = re.compile(r"\\(?:mathbf|mathrm|textbf|boldsymbol)\s*\{\s*(\\text\s*\{[^{}]*\})\s*\}")
r"""Text inside a bold or upright style: `\mathbf{\text{(B)}}`."""
# -- angles, repeating decimals, binomial coefficients, moduli, primes, ordinals ---------------------------------------
_DMS = re.compile(
    r"(\d{1,4})\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)(?:\s|\\[,;: ])*(\d{1,2})\s*'(?!')"
    r"(?:(?:\s|\\[,;: ])*(\d{1,2}(?:\.\d{1,6})?)\s*(?:''|\"))?"
)
r"""An angle in degrees, minutes and seconds: `30^\circ 15' 20''`."""
_CYCLE = re.compile(
    r"(?<![\d.])(\d*\.\d{0,12}?)(?P<cycle>\d{1,6}?)(?:(?P=cycle){2,12}|(?<=\d\d)(?P=cycle))\s*(?:\.{3}|\\(?:l|c|)dots(?![A-Za-z]))(?!\d)"
)
_DOTTED = re.compile(r"(?<=[.\d])\\dot\s?(?:\{(\d)\}|(\d))(?:(\d{0,8})\\dot\s?(?:\{(\d)\}|(\d)))?")
_CYCLE_IN_BRACKETS = re.compile(r"\A(-?\d*\.\d{0,12})\((\d{1,12})\)\Z")
"""A repeating decimal with dots behind it, 0.1666..., dots above the ends of its cycle, or brackets around that."""
_CHOSEN = re.compile(
    r"(?:(?:\\binom)?\{\s{0,4}\}\s{0,4})?[_^]\s*(?:\{\s*(?P<braced>\w{1,9})\s*\}|(?P<upper>\w))\s*C\s*"
    r"_\s*(?:\{\s*(?P<below>\w{1,9})\s*\}|(?P<lower>\w))"
)
"""A binomial coefficient as the letter C between its numbers: ^5C_2, {}_{10}C_{3}."""
_CHOSEN_FROM = re.compile(
    r"(?<![A-Za-z\\])C\s*_\s*(?:\{\s*(?P<braced>\w{1,9})\s*\}|(?P<upper>\w))\s*\^\s*(?:\{\s*(?P<below>\w{1,9})\s*\}|(?P<lower>\w))"
)
"""A binomial coefficient as C_n^k; C_1^2 is the square of a constant."""
_MODULUS = re.compile(
    r"\(?\s{0,8}(?:\\[pb]?mod(?:ulo)?(?![A-Za-z])|(?<![A-Za-z\\])mod(?:ulo)?(?![A-Za-z])|\\(?:text|mathrm|operatorname)\s*\{\s*\(?mod(?:ulo)?\s*\})"
    r"\s{0,8}\{?\s{0,8}(?P<modulus>\d{1,18}|[A-Za-z](?![A-Za-z]))\s*\}?\s*\)?"
)
"""A modulus in any spelling: \\pmod{7}, (mod 7), mod 7."""
_PRIME = re.compile(r"\^(?:\{(?:\s*\\prime)+\s*\}|\s*\\prime(?![A-Za-z]))")
r"""Primes of a derivative as an exponent: `f^\prime`, `f^{\prime\prime}`."""
_ORDINAL = re.compile(
    r"(?<=\d)(?:\^\{\\(?:text|mathrm)\{(?:st|nd|rd|th)\}\}|\^?\\(?:text|mathrm)\{(?:st|nd|rd|th)\}|(?:st|nd|rd|th)(?![A-Za-z]))"
)
r"""The letters of an ordinal number: the th of `5^{\text{th}}`."""
# -- what stands before a value ----------------------------------------------------------------------------------------
_VALUE_IN_TEXT = re.compile(
    r"\\(?:text|mbox|textbf|textrm|textit|textsf|texttt|mathrm|mathbf|mathtt|mathsf)\s*"
    r"\{((?:\s*[A-Za-z]\s?=)?[^{}A-Za-z]*\d[^{}]*)\}"
)
r"""Text that begins with a number: `\text{5 cm}`."""
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
    r"\s*(?:=|(?i:(?:final\s)?answer)\s*[:=]|\\(?:approx|equiv|therefore|implies|to)(?![A-Za-z])"
    r"|\\text\s*\{\s*(?:approximately|about|roughly|around|exactly|at|from|diverges to|tends to|"
    r"(?i:thus|so|hence|therefore),?)\s*\}"
    r"|\\(?:text|textbf|textrm|textit|mathrm|mathbf|mbox)\s*\{\s*"
    r"(?P<words>ANS(?:WER)?|[A-Za-z]*[a-z][A-Za-z' ]{1,60}?)\s*"
    r"(?:(?:[:=]|\b(?:is|are)\s?:?)\s*\}|\}\s*[:=])"
    r"|(?:\\Pr|P|\\(?:mathbb|mathrm|text|operatorname)\{P\})\s*\((?=[^()]*(?:[=|A-Z<>]|\\(?:mid|cap|cup|text)))[^()]{1,60}\)\s*(?:=|\\approx(?![A-Za-z]))"
    r"|(?:\\(?:text|textrm|mathrm|operatorname|mathbb)\s*\{\s*(?:rank|nullity|dim|deg|tr|Var|Cov|SD|E|pH|pOH)\s*\}"
    r"|\\(?:dim|deg|min|max)(?![A-Za-z])|pO?H)\s*(?:\([^()=]{1,40}\)|\[[^\[\]=]{1,40}\]|\s?[A-Za-z](?![A-Za-z]))?\s*"
    r"(?:=|\\approx(?![A-Za-z]))"
    r"|(?:\\sigma\s*\^\s*\{?2\}?|\\nabla\s*[A-Za-z](?:\([^()=]{1,20}\))?)\s*="
    r")\s*(?=[-\d.$({A-Za-z\\])(?!.*[,;].*[:=])",
    re.DOTALL,
)
"""What a value is said to be before it: the total, the chance of an event, a rank, or nothing but an equals sign."""
_NO_TITLE = frozenset(
    {"not", "no", "never", "cannot", "twice", "thrice", "half", "double", "triple", "wrong", "incorrect"}
)
# -- units and money ---------------------------------------------------------------------------------------------------
_POWERED = re.compile(r"\\(?:text|textrm|mathrm)\s*\{((?:[A-Za-z\s/()]|\\cdot(?![A-Za-z])|\^-?\d|\^\{-?\d\})+)\}")
r"""Units with powers, dots or slashes in upright letters: `\text{kg m/s^2}`."""
_DOTTED_UNITS = re.compile(
    r"\\(?P<style>text|textrm|mathrm)\s*\{\s*(?P<first>[A-Za-z]{1,3})\s*\}\s*\\cdot\s*\\(?:text|textrm|mathrm)\s*\{"
)
r"""Two units with a dot between them, each in upright letters: `\text{N} \cdot \text{m}`."""
_OF_TWO = re.compile(r"/\s*\(\s*([A-Za-z]{1,4})\s*(?:\\cdot)?\s+([A-Za-z]{1,4})\s*\)")
"""Two units below a slash: J/(mol K)."""
_BESIDE_NUMBER = re.compile(r"(?<=\d)(?=\\mathrm\s*\{\s*[A-Z]\s*\})")
r"""The place between a number and a capital letter for its unit: `5\mathrm{N}`."""
_OHMS = re.compile(
    r"(?<=\d)\s*(?:\\(?:text|mathrm)\s*\{\s*([kM])?\s*\}?|([kM]))?\s*(?:\\(?:text|mathrm)\s*\{\s*)?\\Omega\s*\}?[\s.]*\Z"
)
r"""Ohms by their Greek letter, perhaps with a prefix: `5 \Omega`, `5\mathrm{k}\Omega`."""
_MICRO = re.compile(
    r"(?<=\d)\s*(?:\\(?:text|mathrm)\s*\{\s*)?\\mu\s*(?:\\(?:text|mathrm)\s*\{\s*)?([mgsLCFA])(?![A-Za-z])\s*\}?"
)
r"""A Greek letter before a unit, for a millionth of it: `5 \mu m`, `5\mu\text{F}`."""
_DOLLAR_BEHIND = re.compile(r"\A(-?\d[\d.,]*)\s?\\?\$\Z")
"""A dollar sign behind an amount that is the whole answer, as many languages write it: 3,50 $."""
_DOLLARS = re.compile(r"^(-?)\$(?=\s?[\d.])(?!.*\$)", re.DOTALL)
"""A dollar sign before an amount, where no second one makes it the start of a formula: $5, -$5."""
_IN_THOUSANDS = re.compile(r"(USD {1,2}\d[\d,]*(?:\.\d+)?) ?([kKmMbB])(?![A-Za-z])")
_RATE = re.compile(
    r"(USD|EUR|GBP|JPY|INR)\s+(\d[\d,]*(?:\.\d+)?)\s*(?:\\(?:text|mathrm)\s?\{\s*)?"
    r"(?:(?:/|per\b|an?\b)\s*(?:\\(?:text|mathrm)\s?\{\s*)?(?P<for>[A-Za-z]{1,20})|each|apiece)\s*\}?[.\s]*\Z"
)
r"""An amount of money for each of something: `\$18/day`, `\$4.50 \text{ per pound}`, $3 each."""
_SIZE_LETTERS = {"k": "thousand", "m": "million", "b": "billion"}
"""Letters behind an amount of money: $70k, $1.5M."""
# -- fractions and derivatives -----------------------------------------------------------------------------------------
_TEXT_STYLE = re.compile(r"\\text(?:rm|normal|up|sf|tt)(?=\s*\{)")
r"""Styles of text, which mean nothing: `\textrm`."""
_OVER = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*?)\\over(?![A-Za-z])((?:[^{}]|\{[^{}]*\})*)\}")
"""A fraction as TeX writes it, {1 \\over 2}."""
_OVER_ALL = re.compile(r"\A([^=<>]*?)\\over(?![A-Za-z])([^=<>]*)\Z")
"""Such a fraction as the whole answer, without braces around it."""


def _in_unit(match: re.Match[str]) -> str:
    """The unit of `12 (in cm)` and `9 (apples)`; other words, and letters, stay: 12 (in thousands), 2 (m)."""
    name = match[2].strip()
    is_named = len(name) > 1 or "in " in match[0]
    is_known = name in UNITS or bool(unit(name).dimension) or (re.search(r"[^s]s\Z", name) and is_unit(name))
    return rf" \text{{{name}}}" if is_named and is_known else match[0]


_D = r"(?:d|\\mathrm\s?(?:d|\{\s?d\s?\}))\s*"
_LEIBNIZ = (
    r"\A(?P<frame>(?:\s|\\;|\\displaystyle)*)"
    rf"\\frac\s?\{{\s*{_D}(?:\^\s*\{{?(?P<times>[23])\}}?)?\s*(?P<inside>[a-zA-Z])?\s*\}}"
    rf"\s*\{{\s*{_D}(?P<variable>[a-z])(?:\s*\^\s*\{{?[23]\}}?)?\s*\}}"
    r"(?(inside)|\s*(?:\\left)?[\[(]?\s*(?P<function>[a-zA-Z])\s*(?:\(\s*(?P=variable)\s*\))?\s*(?:\\right)?[\])]?)(?=\s*=)"
)
"""A derivative as Leibniz writes it, before an equals sign: `\\frac{dy}{dx} =`, `\\frac{d}{dx} f(x) =`."""


def _primed(match: re.Match[str]) -> str:
    """A derivative by its primes: y' and f'(x)."""
    name, primes = match["inside"] or match["function"], "'" * int(match["times"] or 1)
    return match["frame"] + (f"{name}{primes}" if name == "y" else f"{name}{primes}({match['variable']})")


_PARTIAL = (
    r"\\frac\s?\{\s*\\partial\s*(?:\^\s*\{?\d\}?)?\s*([A-Za-z])\s*\}\s*\{((?:\s*\\partial\s*[a-z]\s*(?:\^\s*\{?[23]\}?)?){1,3})\s*\}"
    r"|\\partial\s*([A-Za-z])\s*/\s*((?:\\partial\s*[a-z]\s*){1,3})"
)
"""A partial derivative: `\\frac{\\partial f}{\\partial x}`."""


def _subscripted(match: re.Match[str]) -> str:
    """A partial derivative by the letters that it is taken by: f_x, f_{xx}."""
    by = re.findall(r"\\partial\s*([a-z])\s*(?:\^\s*\{?([23]))?", match[2] or match[4])
    return f"{match[1] or match[3]}_{{{''.join(letter * int(times or 1) for letter, times in by)}}} "


# -- other spellings, each with the one that stands for it -------------------------------------------------------------
_SPELLINGS = {
    # Relations and operations.
    r"\le ": "leq leqslant leqq", r"\ge ": "geq geqslant geqq", r"\ne ": "neq", "<": "lt", ">": "gt",
    r"\to ": "rightarrow longrightarrow", "*": "ast star", ":": "colon",
    r"\frac": "dfrac tfrac cfrac sfrac nicefrac xfrac",
    r"\land ": "wedge", r"\lor ": "vee", r"\neg ": "lnot", r"\implies ": "Rightarrow Longrightarrow",
    r"\iff ": "leftrightarrow Leftrightarrow longleftrightarrow Longleftrightarrow",
    # Brackets and sets.
    "[": "lbrack", "]": "rbrack", r"\{": "lbrace", r"\}": "rbrace", "|": "vert lvert rvert", r"\cup ": "bigcup",
    r"\cap ": "bigcap", r"\setminus ": "backslash smallsetminus", r"\varnothing ": "emptyset O", r"\mathbb{R}": "R",
    r"\in \mathbb{R}\setminus ": "notin", r"\dots ": "ldots cdots dotsc dotsb",
    # Letters, units and words.
    "i": "imath", "j": "jmath", r"\phi ": "varphi", r"^\circ ": "degree degrees", " GBP ": "pounds", " EUR ": "euro",
    r"\text{does not exist}": "nexists", r"\text{Å} ": "AA",
}  # fmt: skip
_SYNONYMS = {name: command for command, names in _SPELLINGS.items() for name in names.split()}
"""Commands, each with what stands for it."""
_NAMED_COMMAND = re.compile(r"\\([A-Za-z]+)")
_BASES = {"b": 2, "o": 8, "x": 16}


def _in_base(match: re.Match[str]) -> str:
    """A numeral as programs write it, 0x1F, with its base behind it; as it is where a digit does not fit."""
    base = _BASES[match["base"].lower()]
    fits = all(int(digit, 16) < base for digit in match["digits"])
    return f"{match['digits']}_{{{base}}}" if fits else match[0]


_WAY = r"(?:increase|decrease|gain|loss|profit|discount|reduction|rise|raise|drop|decline|growth|markup|markdown)"
_SHARE = r"-?\d[\d.,/]*\s?\\?%"
_CHANGE = (
    rf"(?i)\A(?:an? )?(?:\\text\s?\{{\s*)?(?:(?P<before>{_SHARE})\s*(?:\\text\s?\{{\s*)?(?P<to>{_WAY})\s*\}}?"
    rf"|(?P<from>{_WAY}) of\s*\}}?\s*(?P<behind>{_SHARE}))\Z"
)
CHANGE = re.compile(_CHANGE)
"""A change by so many per cent: a 20% increase, `\\text{a loss of } 20\\%`."""
_ONE_OF = r"\A(\d{{1,9}})\s*(?:\\text\s?\{{\s*)?\s?{}\s*\}}?\s*(\d{{1,9}})\Z"


def _share(match: re.Match[str]) -> str:
    """The fraction that 2 out of 5 and 1 in 5 are; as it is where it would be more than one."""
    return rf"\frac{{{match[1]}}}{{{match[2]}}}" if int(match[1]) <= int(match[2]) else match[0]


_LOGARITHM = re.compile(r"\\?log\s?_\s?\{?\w{1,2}\}?|\\?(?<![A-Za-z])(?:lg|ln|log)(?![A-Za-z])")
"""A logarithm to any base, which is a matter of a constant factor inside O(n log n)."""


def _cases(match: re.Match[str]) -> str:
    """An array behind a brace that nothing closes: a system, or a function by cases."""
    return rf"\begin{{cases}}{match[1]}\end{{cases}}"


def _repeated(match: re.Match[str]) -> str:
    """A root as often as its multiplicity says."""
    return ", ".join([match["root"]] * int(match["times"] or match["number"]))


_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII")


def _oxidation(match: re.Match[str]) -> str:
    """An oxidation number without its Roman numeral, which says the same: +3 (III)."""
    return match["number"] if _ROMAN[int(match["digit"]) - 1] == match["roman"] else match[0]


_compiled = functools.lru_cache(maxsize=None)(re.compile)
"""Patterns are compiled when they are first needed."""


_ALIASES: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    # Layout and marks that say nothing.
    (r"\\[", r"\\\\\[\s?-?[\d.]{1,9}\s?(?:pt|em|ex|mm|cm|in)\s?\]", r"\\\\"),
    (r"\math", r"\\math(?:bin|rel|ord|punct|op)\s?\{([^{}]*)\}", r"\1"),
    (
        r"\math",
        r"\\math(?:cal|scr|frak)\s?\{?\s?(?:(O)\s?\}?(?=\s*\()|([A-Z])(?![A-Za-z])\s?\}?(?!\s*\())",
        r"\1\2",
    ),
    ("{", r"\{\s?([-+:])\s?\}", r"\1"),
    (".", r"(\.\d{0,12}\\(?:overline|bar))\s?(\d)", r"\1{\2}"),
    ("check", r"\\check(?:mark)?(?![A-Za-z])(?!\s*\{)\s*\Z", ""),
    # Relations and operations.
    (r"\not", r"\\not\s*=", r"\\ne "),
    (r"\mid", r"(?<=[\d}])\s?\\mid(?=\s?-?[\d\\])", "|"),
    ("...", r"(?<!\d)\.\.\.", r"\\dots "),
    ("<=", r"<=", r"\\le "),
    (">=", r">=", r"\\ge "),
    ("!=", r"(?<!\d)!=|!=(?!\s*\d)", r"\\ne "),
    ("**", r"\*\*(?=[\w({\\-])", "^"),
    ("x", r"(?<=\d) x (?=[\d$])|(?<=\d)x(?=10(?:\^|\*\*))", r" \\times "),
    (r"\times", r"(?<=\d)\s*\\times\s*\Z", ""),
    (r"\equiv", r"([A-Za-z]\s?\([a-z]\)\s*)\\equiv(?![A-Za-z])(?!.*mod)", r"\1="),
    (r"\equiv", r"(?<![A-Za-z\\])([fgh])\s*\\equiv(?![A-Za-z])(?!.*mod)", r"\1(x)="),
    (
        "=",
        r"(?<=[\w})])(?:[\s,]|\\[ ,;:])*\(?(?:\\text\s?\{)?\s*\(?"
        r"(?:attained |achieved |reached )?(?:at|when|for)\s*\}?\s*[a-z]"
        r"(?:\s?=(?:\\[a-z]+|(?![A-Za-z]{2})[^(),;=]){1,30}){1,3}\)?\}?\s*\Z",
        "",
    ),
    ("O", r"(?s)\AO\s*\(.*\)\Z", lambda match: _LOGARITHM.sub(r"\\log ", match[0])),
    ("^", r"\^\{?\s*(?:\\top|\\intercal|\\(?:text|mathrm|mathsf)\{T\})(?![A-Za-z])\s*\}?", "^T"),
    ("d", _LEIBNIZ, _primed),
    (r"\partial", _PARTIAL, _subscripted),
    ("mapsto", r"\A(?:[fgh](?:\^\{?-1\}?)?\s*:\s*)?[a-z]\s*\\mapsto(?![A-Za-z])", "y="),
    ("const", r"(?<=[+-])\s?\\(?:text|mathrm)\s?\{\s?const(?:ant|\.)?\s?\}", " C"),
    # Brackets and sets.
    ("left<", r"\\left\s?<", r"\\langle "),
    ("right>", r"\\right\s?>", r"\\rangle "),
    ("<", r"\A<([^<>]*,[^<>]*)>\Z", r"\\langle \1\\rangle "),
    ("{", r"(?s)\A\{\s*([A-Za-z])(\s*(?:\||:|\\mid|\\in)(?![A-Za-z]).*)\}\Z", r"\\{\1\2\\}"),
    (r"\mathbb", r"\\mathbb\s?\{?Z\}?\s?/\s?(\w{1,9})\s?\\mathbb\s?\{?Z\}?", r"\\mathbb{Z}_{\1}"),
    (r"\mathbb", r"\\mathbb\s?\{?R\}?\s?\^\s?\{?\*\}?", r"\\mathbb{R}\\setminus\\{0\\}"),
    (
        "except",
        r"(?i)\A(?P<text>\\text\{)?(?:x is )?all real numbers,? except (?:for )?(?:x\s*=)?"
        r"(?P<closed>\})?(?:\s*x\s*=)?(?P<points>.*?)(?(text)(?(closed)|\}))\Z",
        lambda match: rf"\mathbb{{R}}\setminus\{{{match['points'].replace(' and ', ', ')}\}}",
    ),
    (
        "all",
        r"\A\\text\s?\{\s*(?:for )?(?:all|any|every)"
        r"(?: (?:positive |real |natural )?(?:integers?|numbers?))?\s*\}\s*"
        r"(?=[a-z]\s*(?:[<>]|\\(?:le|ge|ne|in)(?![A-Za-z])))",
        "",
    ),
    (r"\text", r"\\text\s?\{\s*([,.:])\s*\}", r"\1"),
    ("%", r"(\\text\s?\{)\s*\\?%(?=\s?[a-z])", r"\\% \1"),
    (
        " is the ",
        r"\\text\s?\{\s*is the (?:only |unique |final )?(?:answer|solution|value|integer|number|root)\s*\}\s*\Z",
        "",
    ),
    ("only", r"(?:\A\\text\s?\{\s*only\s*\}|\\text\s?\{\s*only\s*\}\s*\Z)", ""),
    (r"\begin", r"(?s)\\\{\s*\\begin\{array\}\s?\{[lcr| ]*\}(.*)\\end\{array\}(?!.*\})", _cases),
    (
        "|",
        r"\A([A-Z]\s?)?\(\s?([-\d\\][^|(),=]{0,30}?)\s?\|\s?([-\d\\][^|(),=]{0,30}?)\s?\)\Z",
        r"\1(\2, \3)",
    ),
    (
        "multiplicity",
        r"(?<![\\A-Za-z])(?P<root>(?:(?!\\text|\band\b)[^,;{}]|\{[^{}]*\}){1,80}?)(?:\s|\\[ ,;])*\(?"
        r"\\text\s?\{[\s,(]*(?:with |of )?multiplicity\s*(?P<times>[1-9])?\)?\s*\}"
        r"(?(times)|\s*(?P<number>[1-9]))\s*\)?(?=\s*(?:[,;]|\\text\s?\{\s*(?:,|and)|and\b|\Z))",
        _repeated,
    ),
    (",", r"\\(?:text|mbox)\s?\{\s*,\s*(and|or)\s*\}", r", \\text{\1}"),
    ("\\", r"\\(?:text|mbox)\s?\{([A-Za-z ]{2,40}?)(,?) (and|or)\s*\}", r"\\text{\1}\2 \\text{\3}"),
    # Numerals, and words before or behind them.
    ("0", r"(?i)\A(?:\\(?:text|mathrm|mathtt)\s?\{)?0(?P<base>[box])(?P<digits>[\dA-F]+)\}?\Z", _in_base),
    (
        "base",
        r"(?<=\d)(?:\s|\\[ ,;:])*\(?\\?(?:text\s?\{|mathrm\s?\{)?\s*\(?(?:in )?base\s*\}?"
        r"\s*(\d{1,2})\s*\)?\s*\}?\s*\Z",
        r"_{\1}",
    ),
    (
        "base",
        r"_\s*\{\s*\\(?:text|mathrm)\s?\{\s*base\s*(?:\}\s*(\d{1,2})|(\d{1,2})\s*\})\s*\}",
        r"_{\1\2}",
    ),
    ("E", r"(?<=\d)\s*\\(?:text|mathrm)\s?\{\s*E\s*\}\s*([-+]?\d{1,4})(?!\d)", r"e\1"),
    ('"', r'\A"([A-Za-z][A-Za-z -]*)"\Z', r"\1"),
    ("from", r"\A(\\text\s?\{\s*)?from (?=\d)", r"\1"),
    ("", r"(?i)\A(?:minus|negative)\s+(?=[\d$\\])", "-"),
    ("%", _CHANGE, lambda match: match["before"] or match["behind"]),
    (" o", _ONE_OF.format("out of"), _share),
    (" in ", _ONE_OF.format("in"), _share),
    ("a factor of", r"\A\\(?:text|mathrm)\s?\{\s*(?:by )?a factor of\s*\}", ""),
    (
        "(",
        r"(?<=[\w})])(?:\s|\\[ ,;:])*"
        r"(?:\\(?:text|mathrm)\s*\{\s*\(\s*(?:approximately|approx\.?|about|roughly)\s*\}?"
        r"|\(\s*(?:\\approx|approximately|approx\.?|about|roughly))\s*(-?\d[\d,.]*)\s*(?:\}\s*)?\)\s*\}?\s*\Z",
        r" \\approx \1",
    ),
    (
        "(",
        r"(?<=[\d}])(?:\s|\\[ ,;:])+\(\s*(\d*\.\d+\s?(?:\\?%)?|\d+\s?\\?%)\s*\)\s*\Z",
        r" \\approx \1",
    ),
    ("(", r"\A(?P<number>[-+]?(?P<digit>[1-7]))\s*\((?P<roman>[IV]{1,3})\)\Z", _oxidation),
    ("", r"\A([1-9])([-+])\Z", r"\2\1"),
    # Units.
    ("'", r"\A(\d{1,2})\s*'\s*(\d{1,2})\s*(?:''|\")\Z", r"\1 ft \2 in"),
    (
        " in the ",
        r"(?<=\d)\s?(?:\\text\s?\{)?\s?in the (?:(morning)|afternoon|evening)\}?(?=[\s$.]*\Z)",
        lambda match: " AM" if match[1] else " PM",
    ),
    (
        "(",
        r"(?<=[\d}])\s*(\\(?:text|mathrm)\s?\{\s?)?\(\s?(?:in )?([A-Za-z][A-Za-z ]{0,25})\)\s?(?(1)\})[\s.]*"
        r"(?:\\[;,]|\s)*\Z",
        _in_unit,
    ),
    (
        "(",
        r"(?:(?<=[\d})°])|(?<=circ))\s*(?:\\[,;: ]\s*)?\\(?:text|mathrm)\s?\{\s?"
        r"\((?:(?:option|choice) [A-E]|(?:counter)?clockwise|approximately|exactly|exact)\)\s?\}\s*\Z",
        "",
    ),
    (r"\circ", r"\\text\s*\{\s*\^\\circ\s*([CF]?)\s*\}", r"^\\circ \1"),
    ("o", r"(?<=\d)\^(?:o|\{\s?(?:o|\\(?:text|mathrm)\s?\{\s?o\s?\})\s?\})(?!\w)", r"^\\circ "),
    (
        "s",
        r"(?<=\d)(?:\s|\\[ ,;:])*\\(?:text|mathrm)\s?\{\s*s\s*(?:\^\s?\{?\s?-1\s?\}?\s*\}|\}\s*\^\s?\{?\s?-1\s?\}?)",
        r" \\text{Hz}",
    ),
    (
        "Rs",
        r"(?:\\(?:text|mathrm)\s?\{\s*Rs\.?\s*\}|(?<![A-Za-z\\{])Rs\.?)[\s~]*(?:\\[ ,;:]\s*)?(?=\d)",
        " INR ",
    ),
    (
        " a",
        r"(?<=[a-z]) an? (?=(?:second|minute|hour|day|week|month|year|mile|pound|gallon|person)\b)",
        " per ",
    ),
    ("US", r"(?<![A-Za-z])US(?=\s?\\?\$\s?\d)", ""),
)
"""What a spelling has in it, the spelling, and the one that stands for it."""


_ESCAPED = re.compile(r"(?=.*\\\\(?:[A-Za-z]{2}|[(\[]))(?:[^\\]|\\\\)*", re.DOTALL)
r"""LaTeX as a JSON string has it, each backslash twice: `\\frac{1}{2}`."""


MAX_CHARS = 4096
"""Characters of the longest answer that is read."""


# -- the plain form ----------------------------------------------------------------------------------------------------
def plain(text: str) -> str:
    """Return `text` as plain LaTeX-like ASCII where it is mathematics; other characters stay. Never raises."""
    if text.isdigit() and text.isascii():
        return text
    if "\\\\" in text and _ESCAPED.fullmatch(text):
        text = text.replace("\\\\", "\\")
    text = _SPACED.sub(lambda match: re.sub(r"\D", "", match[0]), _unframed(_unbold(text.strip())))
    boxed = _NESTED_BOX.match(text) is not None
    text = _with_plain_numbers(text)
    text = _with_plain_commands(text)
    text = _without_styles(text)
    text = _without_lead(_without_frame(text))
    text = _POWERED.sub(_unwrapped, _with_units(text) if "\\" in text else text).strip()
    return _unbraced(_without_end(text), whole=boxed)


def _with_plain_numbers(text: str) -> str:
    """ASCII digits and signs, thousands parted by commas only or by nothing, and a point before decimals."""
    if spaced := _SPACED_WHOLE.match(text):
        text = spaced[1].replace(" ", "") + text[spaced.end() :]
    if not text.isascii():
        text = _ascii(text)
    text = _BRACED_COMMA.sub(lambda match: match[0].replace(".", ""), text) if "{,}" in text else text
    text = _COMMA.sub(".", _THIN.sub(",", _CALCULATED.sub("", text)))
    text = _POINTED.sub(lambda match: match[0].replace(".", ""), text)
    if european := _EUROPEAN.match(text):
        text = f"{european[1].replace('.', '')}.{european[2]}{text[european.end() :]}"
    return _COMMA_AMOUNT.sub(r"\1.\2", text)


def _with_plain_commands(text: str) -> str:
    """One command for each thing that has several: fractions, binomial coefficients, moduli, primes and `_ALIASES`."""
    text = _NAMED_COMMAND.sub(lambda match: _SYNONYMS.get(match[1], match[0]), text)
    text = _TEXT_STYLE.sub(r"\\text", text) if r"\text" in text else text
    if r"\over" in text:
        text = _OVER_ALL.sub(r"\\frac{\1}{\2}", _OVER.sub(r"\\frac{\1}{\2}", text))
    if "C" in text and "_" in text:
        text = _CHOSEN_FROM.sub(_binomial, _CHOSEN.sub(_binomial, text))
    if "mod" in text:
        text = _MODULUS.sub(r"\\pmod{\g<modulus>}", text)
    text = _PRIME.sub(lambda match: "'" * match[0].count("prime"), text)
    text = _rewritten(text)
    for sign, pattern, replacement in _ALIASES:
        text = _compiled(pattern).sub(replacement, text) if sign in text else text
    return text


def _without_styles(text: str) -> str:
    """What LaTeX puts around an answer for its looks is dropped: boxes, delimiters, spaces, text around a value."""
    if labelled := _LABEL_IN_TEXT.fullmatch(text):
        text = labelled[1]
    text = _VALUE_IN_TEXT.sub(r" \1 ", _ORDINAL.sub("", _NESTED_BOX.sub("{", text)))
    # A currency sign is not a mathematics delimiter.
    text = _DOLLARS.sub(r"\1 USD ", _DOLLAR_BEHIND.sub(r"\1 USD", text)).replace(r"\$", " USD ")
    if "USD" in text:
        text = _IN_THOUSANDS.sub(lambda match: f"{match[1]} {_SIZE_LETTERS[match[2].lower()]} ", text)
    text = _SPACES.sub(" ", _WRAPPERS.sub(" ", text)).strip()
    return _RATE.sub(lambda match: rf"{match[2]} \text{{{match[1]}{'/' + match['for'] if match['for'] else ''}}}", text)


MAX_LEADS = 2
r"""As in `\therefore \text{Answer} = 5`."""


def _without_lead(text: str) -> str:
    """What stands before a value and only names it is dropped, unless its words change the value: `twice`."""
    for _ in range(MAX_LEADS):
        lead = _LABEL.match(text) or _TITLE.match(text)
        if lead is None or not _NO_TITLE.isdisjoint((lead.groupdict().get("words") or "").lower().split()):
            break
        text = text[lead.end() :]
    return text


def _without_end(text: str) -> str:
    """What ends a sentence or a clause behind an answer is dropped; dots that stand for digits stay."""
    if text.endswith("\\") and not text.endswith("\\\\"):
        text = text[:-1]  # of a control space at the end
    return text if text.endswith("...") else text.rstrip(" .,;:。、").strip()


_UNKNOWN = re.compile(r"\\(?:i{0,2}int|oint|sum|prod|lim|[cl]?dots)(?![A-Za-z])|(?<!\d)\.\.\.")
"""What stands in a side that the grammar does not know: an integral, a sum, a limit, dots."""
_SYSTEM = re.compile(r"(?:\\?\{\s?)?\\begin\s?\{(cases|aligned|align\*?|gathered)\}(.*)\\end\s?\{\1\}", re.DOTALL)
r"""A system of equations as the whole answer: `\begin{cases} x = 1 \\ y = 2 \end{cases}`."""
_FAMILY = re.compile(
    r"\\\{(?=\s*\w*\s*[^\s\w:|])([^:|]{1,200}?)\s*(?::|\||\\mid(?![A-Za-z]))"
    r"\s*([a-z]\s*\\in\s*\\mathbb\s?\{?[CNQRZ]\}?)\s*\\\}[\s.]*"
)
r"""A set by the letter that its members have: `\{k\pi : k \in \mathbb{Z}\}`."""
_IN_Z = (
    r"(?P<letter>[klmnt])\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*Z\s*\}?|\\Z(?![A-Za-z]))"
    r"|\\text\s*\{\s*is an(?:y| arbitrary)? integer\s*\})"
)
_FOR_INTEGERS = re.compile(
    r"\\text\s*\{[\s,]*(?:for|with)(?: (?:all|any|every|some))? integers?\s*\}\s*(?P<letter>[klmnt])\s*\Z"
)
"""The same in words before the letter: for any integer k."""
_OVER_INTEGERS = re.compile(
    r"(?<![\s,;])(?:[\s,;]|\\text\s*\{[\s,]*(?:for|where|with)?(?: (?:all|any|every|some))?\s*\}){1,8}"
    rf"(?:\(\s*{_IN_Z}\s*\)|{_IN_Z.replace('<letter>', '<bare>')})[\s.]*\Z"
)
"""What says that the letter of a periodic solution is an integer: x = pi/6 + k pi, k in Z."""
_FOR_ALL = re.compile(
    r"(?P<function>[A-Za-z]\s?\((?P<letter>[a-z])\)\s?=.*?)(?<![\s,])[\s,]*+"
    r"(?:\\forall|(?:\\text\s?\{[\s,]*)?for (?:all|every|any|each)(?: (?:real|positive|integers?|numbers?))*\s*\}?)\s*"
    r"(?P=letter)\s*(?:(?:>|\\ge)\s*0|\\in\s*\\mathbb\s?\{?[CNQRZ]\}?(?:[\^_]\{?[+*>0]{1,3}\}?)?)?[\s.]*(?=\Z|[,;]|\\text|and\b|or\b)"
)
"""A function with its domain behind it, which the question gives: f(x) = 1/x for all x > 0."""
_BOUNDS = re.compile(r"[<>]|\\(?:le|ge|in|ne)(?![A-Za-z])")
"""Signs of a relation other than an equation."""


def _without_frame(text: str) -> str:
    """What an answer says without what is written around it: a system's braces, working, integers that k runs over."""
    if family := _FAMILY.fullmatch(text):
        text = f"{family[1]}, {family[2]}"
    if r"\begin" in text and (system := _SYSTEM.fullmatch(text)):
        text = _listed(system[2]) or text
    if _UNKNOWN.search(text):
        text = _behind_working(text)
    if "=" in text and "for" in text:
        text = _FOR_ALL.sub(r"\g<function>", text)
    text = _FOR_INTEGERS.sub(r", \g<letter> \\in \\mathbb{Z}", text) if "integer" in text else text
    over = _OVER_INTEGERS.search(text) if text.rstrip(". ").endswith(("Z", "Z}", "Z})", "integer}")) else None
    if over is None or _BOUNDS.search(text, 0, over.start()):
        return text
    letter = over["letter"] or over["bare"]
    return text[: over.start()] if re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", text[: over.start()]) else text


def _listed(rows: str) -> str:
    """The equations of a system with commas between; empty where a row is something else, as in a function by cases."""
    all_rows = [row.replace("&=", "=").strip(" ,;\n") for row in re.split(r"\\\\", rows.strip().removesuffix("\\\\"))]
    if len(all_rows) > 1 and all(row.startswith("=") for row in all_rows[1:]):
        return "".join(all_rows)
    equations = all_rows
    each = all(row.count("=") == 1 and not re.search(r"[&<>]|\\text", row) for row in equations)
    return ", ".join(equations) if each else ""


def _behind_working(text: str) -> str:
    r"""The sides of an equation behind those that the grammar does not know: the 6 of \sum_{k=1}^3 k = 6."""
    depth = start = 0
    for at, char in enumerate(text):
        depth += (char in "{([") - (char in "})]")
        if depth or char not in "=,;<>":
            continue
        if char != "=" or not _UNKNOWN.search(text, start, at) or _BOUNDS.search(text, start, at):
            break
        start = at + 1
    return text[start:] if text[start:].strip() else text


def _rewritten(text: str) -> str:
    """What is seldom: looks, angles in minutes, repeating decimals; each is sought only where its sign stands."""
    if "\\" in text:
        text = _STYLED_TEXT.sub(r"\1", _LOOKS.sub("", text))
    if r"\frac" in text and ("text" in text or "mathrm" in text):
        text = _UNIT_FRACTION.sub(r"\\text{\1}/\\text{\2}\3", text)
    if "dot" in text or "..." in text:
        text = _CYCLE.sub(r"\1\\overline{\g<cycle>}", _DOTTED.sub(_overlined, text))
    if text.endswith(")"):
        text = _CYCLE_IN_BRACKETS.sub(r"\1\\overline{\2}", text)
    return _DMS.sub(_degrees, text) if "'" in text else text


def _overlined(match: re.Match[str]) -> str:
    return rf"\overline{{{''.join(filter(None, match.groups()))}}}"


def _degrees(match: re.Match[str]) -> str:
    degrees = Fraction(match[1]) + Fraction(match[2]) / 60 + Fraction(match[3] or 0) / 3600
    return rf"{degrees}^\circ "


def _binomial(match: re.Match[str]) -> str:
    upper, lower = match["braced"] or match["upper"], match["below"] or match["lower"]
    if upper.isdecimal() and (not lower.isdecimal() or int(upper) < int(lower)):
        return match[0]
    return rf"\binom{{{upper}}}{{{lower}}}"


def _with_units(text: str) -> str:
    r"""Units that are written with signs of mathematics, N \cdot m and J/(mol K) and \Omega, by their letters."""
    text = _DOTTED_UNITS.sub(r"\\\g<style>{\g<first> ", text) if r"\cdot" in text else text
    text = _OHMS.sub(r" \\text{\1\2ohm}", text) if r"\Omega" in text else text
    text = _MICRO.sub(r" \\text{u\1}", text) if r"\mu" in text else text
    return _BESIDE_NUMBER.sub(" ", _OF_TWO.sub(r"/\1/\2", text))


def _unwrapped(match: re.Match[str]) -> str:
    """Units with powers, dots or slashes, without the command around them; anything else, and a lone 1/s, as it is."""
    names = re.findall(r"(?<!\\)\b[A-Za-z]+", match[1])
    known = ("^" in match[1] or r"\cdot" in match[1]) and UNITS.keys() >= set(names)
    plain_name = match[1].replace(r"\cdot", " ")
    return f" {plain_name} " if known and (len(names) > 1 or "-" not in match[1]) else match[0]


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


_EMPHASIS = re.compile(r"(?:(?<=\s)|(?<==))(?P<mark>\*\*|`)(?=\S)(?P<words>[^*`]{1,200})(?<=\S)(?P=mark)\Z")
"""An emphasis at the end: x = **5**."""


def _unbold(text: str) -> str:
    """Drop Markdown emphasis and code marks that wrap the whole text, or its end."""
    text = _EMPHASIS.sub(r"\g<words>", text)
    for mark in ("**", "__", "*", "`"):
        inner = text[len(mark) : -len(mark)]
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark) and mark not in inner:
            return inner.strip()
    return text


_FRAME = re.compile(
    r"\$\$([^$]+)\$\$|\$([^$]+)(?<!\\)\$|\\\(((?:(?!\\[()]).)+)\\\)|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL
)
"""A text that is one formula between the marks of LaTeX."""


def _unframed(text: str) -> str:
    r"""Drop the marks of a formula that is the whole text: `$x$`, `\(x\)`."""
    formula = _FRAME.fullmatch(text) if text.startswith(("$", "\\(", "\\[")) else None
    return text if formula is None else next(filter(None, formula.groups())).strip()


def _ascii(text: str) -> str:
    text = _SUPER_RUN.sub(lambda m: "^{" + "".join(_SUPER[c] for c in m[0]) + "}", text)
    text = _SUB_RUN.sub(lambda m: "_{" + "".join(_SUB[c] for c in m[0]) + "}", text)
    text = _COUNTED.sub(r" \\text{\1}", _SIZED.sub(r"\1 ", _VULGAR.sub(_vulgar, text)))
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
