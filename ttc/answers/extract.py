r"""Find the final answer in a text, without looking at any target.

The cascade, per kind of answer, first hit wins: the last `\boxed{..}` (or `\fbox`), the last `<answer>` tag, the last
`####`, the `"answer"` of a JSON object that ends the text, the last answer phrase ("the answer is", "Final:", "答案是",
"A:", "Respuesta:", "The largest n is", "Output:"), for mathematics a last sentence such as "So 5 is the answer", the
text itself when it is nothing but an answer, and, for the kind `number` only, the last number. Only text after the
thinking block counts, and marks of the end of a turn do not.

The sentence is read: alternatives ("1 or 4", two distinct boxes), denials ("is not 5", "\boxed{5} is wrong"), bounds
("less than 5", "between 3 and 10"), doubts ("5 or so", "maybe", "the answer is 5?") and words that make another number
of it ("twice 5") are a hedge and give no answer, with the reason. A box that is taken back gives way to a later answer
phrase.
Linear in the text. Left out: answers spread over several sentences, and "both of the above" of any kind.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from ttc.answers.nodes import is_unit

OR = (
    r"(?:(?<![^\W\d_])(?<!\\)(?:or|oder|ou|или|au|অথবা|లేదా)(?![^\W\d_])"
    r"|\\(?:text|mbox|textrm|mathrm)\s*\{\s*or\s*\}|或者?|또는|または|หรือ)"
)
OR_WORD = re.compile(OR, re.IGNORECASE)
"""What parts alternatives."""
MAX_BOXES = 20
MAX_FINAL = 4096
"""Characters of a final answer beyond which it is reported as `too_long`."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """`final` is None without an answer; `reason` says why (no_answer, hedge, unclosed_thinking, too_long, empty).

    `span` is the place of `final` in the text; `method` the rule that hit (box, tag, hash, json, phrase, bare,
    last_number).
    `parts` are the boxes of a clause with several, each with the unit behind it, or the alternatives in one box: they
    are one answer where the question asks for several.
    """

    final: str | None
    span: tuple[int, int] | None = None
    method: str = ""
    reason: str = ""
    parts: tuple[str, ...] = ()


Hit = Extraction | None
Rule = Callable[[str, int], Hit]
Hedge = Callable[[str], bool]

_THINK_END = re.compile(
    r"<\s*/\s*(?:seed:)?think(?:ing)?\s*>|\[/THINK\]|<\|?/?end_of_thought\|?>|◁/think▷"
    r"|<\|channel\|>\s*final[^<]*<\|message\|>",
    re.IGNORECASE,
)
"""What ends a thought: `</think>`, `[/THINK]`, the channel `final`."""
_THINK_START = re.compile(
    r"<\s*(?:seed:)?think(?:ing)?\s*>|\[THINK\]|<\|?begin_of_thought\|?>|◁think▷"
    r"|<\|channel\|>\s*analysis[^<]*<\|message\|>",
    re.IGNORECASE,
)
"""What begins a thought."""
_ASKED_FOR = re.compile(r"<\s*(/?)\s*(?:thought|reason(?:ing)?)\s*>", re.IGNORECASE)
"""Marks that a prompt asks for: a thought at the head of a text, while behind an answer they are its reasons."""


def answer_start(text: str) -> int | None:
    """Where the answer part begins: after the last end of thinking; None when a thinking block is still open."""
    last = last_match(_THINK_END, text)
    start = last.end() if last else 0
    return None if _THINK_START.search(text, start) else _behind_reasoning(text, start)


def _behind_reasoning(text: str, start: int) -> int:
    mark = _ASKED_FOR.search(text, start)
    if mark is not None and not mark[1] and not text[start : mark.start()].strip():
        mark = _ASKED_FOR.search(text, mark.end())
    return mark.end() if mark is not None and mark[1] else start


def cascade(text: str, rules: tuple[Rule, ...]) -> Extraction:
    """Apply `rules` in order to the part of `text` after the thinking; the first hit decides."""
    text = _without_end_marks(text)
    start = answer_start(text)
    if start is None:
        return Extraction(None, reason="unclosed_thinking")
    for rule in rules:
        hit = rule(text, start)
        if hit is not None:
            return hit
    return Extraction(None, reason="no_answer")


_END_MARKS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|return|>", "</s>",
    "<eos>", "<end_of_turn>",
)  # fmt: skip
"""Marks of the end of a turn that an engine may leave in a text."""


def _without_end_marks(text: str) -> str:
    while (body := text.rstrip()).endswith(_END_MARKS):
        text = body[: body.rindex("<")]
    return text


def last_match(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    """The last match of `pattern` from `start` on."""
    return next(iter(deque(pattern.finditer(text, start), maxlen=1)), None)


def found(text: str, start: int, end: int, method: str) -> Extraction:
    """The answer text[start:end] without outer white space; empty and oversized ones are refused."""
    inner = text[start:end]
    start += len(inner) - len(inner.lstrip())
    end = start + len(inner.strip())
    if start >= end:
        return Extraction(None, (start, start), method, "empty")
    if end - start > MAX_FINAL:
        return Extraction(None, (start, end), method, "too_long")
    return Extraction(text[start:end], (start, end), method)


# -- boxes -------------------------------------------------------------------------------------------------------------
_BOX = re.compile(r"\\(?:f|frame)?box(?:ed)?\s*\{|\\boxed(?:\s+(?=\S)|(?=\d))")
r"""The command of a box with its brace, `\boxed{`, or before a value without braces, `\boxed 5` or `\boxed5`."""
_BARE_WORD = re.compile(r"[^\s$.,;]+")
"""The value of a box without braces."""
_BRACES = re.compile(r"[{}]")


@dataclass(frozen=True, slots=True)
class Box:
    """A box: the command begins at `at`, its content is text[start:end], what follows begins at `after`."""

    at: int
    start: int
    end: int
    after: int


def boxes(text: str, start: int) -> list[Box]:
    """The outermost boxes from `start` on, in order; a missing last brace is closed at the end of the line.

    One pass over the braces of the text: a stack of open ones, so the time is linear whatever is nested.
    """
    if "box" not in text:  # most texts of most tasks
        return []
    opened, places = _box_commands(text, start)
    places += _braced(text, opened)
    return _outermost(sorted(places))


_Place: TypeAlias = tuple[int, int, int, int]
"""The fields of a `Box`."""


def _box_commands(text: str, start: int) -> tuple[dict[int, int], list[_Place]]:
    """The commands of boxes by the places of their braces, and the boxes of one word, which have none."""
    opened: dict[int, int] = {}
    places: list[_Place] = []
    for command in _BOX.finditer(text, start):
        at, end = command.span()
        if text[end - 1] == "{":
            opened[end - 1] = at
        else:
            word = _BARE_WORD.match(text, end, end + MAX_FINAL)
            last = word.end() if word else end
            places.append((at, end, last, last))
    return opened, places


def _braced(text: str, opened: Mapping[int, int]) -> list[_Place]:
    """The boxes whose braces are `opened`; the first of a line that stays open ends with the line."""
    places: list[_Place] = []
    stack: list[int] = []
    for brace in _BRACES.finditer(text, min(opened)) if opened else ():
        at = brace.start()
        if text[at - 1] == "\\" and at and text[max(0, at - 2) : at] != "\\\\":
            continue
        if text[at] == "{":
            stack.append(at)
        elif stack and (left := stack.pop()) in opened:
            places.append((opened[left], left + 1, at, at + 1))
    reached = 0
    for left in stack:
        if left in opened and left >= reached:
            reached = _end_of_line(text, left + 1)
            places.append((opened[left], left + 1, reached, reached))
    return places


def _end_of_line(text: str, start: int) -> int:
    line = text.find("\n", start)
    end = len(text) if line < 0 else line
    while end > start and text[end - 1] in " $.\t\r":
        end -= 1
    return end


def _outermost(places: list[_Place]) -> list[Box]:
    outer: list[Box] = []
    reached = 0
    for place in places:
        if place[0] >= reached:
            outer.append(Box(*place))
            reached = place[3]
    return outer


_CORRECTION = re.compile(
    r"[.!?;。！？；]|\n\s*\S|\b(?:but|however|wait|actually|instead|rather|not|so|therefore|thus|hence|then|correct\w*|"
    r"gives?|finally|recheck\w*|final|check\w*|becomes?|answer)\b|答案|所以|因此|但",
    re.IGNORECASE,
)
"""What begins another clause, so that the box behind it stands alone: a full stop, a line, `so`, `wait`."""
_STARTS_OR = re.compile(rf"[\s$.,)\]]*(?:{OR}|alternatively(?![A-Za-z]))", re.IGNORECASE)
r"""An `or` right behind a box: `\boxed{1} or \boxed{2}`."""
_OR_VALUE = re.compile(
    r"(?:\\?\)|[\s$,;(*`])*(?:(?:(?:and/)?or|xor|else|vs\.?|versus|(?:or\s+)?alternatively,?|&|或者?)"
    r"(?:\s+(?:maybe|perhaps|possibly|even))?|i\.e\.,?(?=\s+(?:about|approx|roughly))"
    r"|(?:[—–;.]{1,3}\s*)?\b(?:no,|(?:actually|rather|i mean|make that|correction)\b[,:]?)(?:\s+it\s+is)?"
    r"(?=\s*[-$(\\\d]))"
    r"[\s$(\\]*(?P<value>(?:(?:about|approximately|approx\.|roughly|around)\s+)?\$?[-+]?[\d\\][^\s,;$]{0,80})",
    re.IGNORECASE,
)
"""A second value behind the first, as an alternative, a correction or in decimals: `or maybe $5`, `no, 13`."""

_NO = (
    r"nicht|keine?|no es|est pas|não(?: é)?|non è|не|није|pas|niet|geen|inte|ikke|ei ole|není|nie|nije|"
    r"(?<!\\)nu(?! ?=)|nem|δεν|όχι|לא|אינ[הו]|bukan|không|hindi|(?:mindre|mer|færre|fler) (?:enn|end|än)"
)
"""Words of other languages that deny a value, or bound it."""
_UNSURE = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|anything but|less|fewer|lower|smaller|below|under|beneath|more|greater|"
    r"larger|higher|bigger|above|from|exceed\w*|at (?:most|least)|up to|between|among|one of|any of|either|maybe|"
    r"perhaps|possibly|probably|might|could|may be|unless|somewhere|in the range|ranges?|twice|thrice|double|triple|"
    r"half of|a third of|square of|cube of|times|plus|minus|percent of|multiple of|unlikely|unclear|unknown|"
    rf"{_NO}|nearly|almost|just under|(?:over|after|before|divisible by)(?=[\s$(\\]*\Z)|"
    r"(?:menor|mayor|menos|más|maior|mais|minore|maggiore) (?:que|de|do que|di)|(?:kleiner|größer|weniger|mehr) als|"
    r"(?:plus|moins) de|меньше|больше|"
    r"wrong|incorrect|except|excluding|other than|all(?: \w+){0,4} but|without(?=[\s$\\(]*\Z))\b"
    r"|n['’]t\b|不是|不|小于|大于|ไม่|ليس)",
    re.IGNORECASE,
)
"""Words before a value that say it is not the answer, or not quite."""
_EXCEPT = re.compile(
    r"\b(?:(?:(?:all|any|each|every)(?:thing|one|body)?(?:\s+\w+){0,4}?\s+(?:but|save|bar|besides|without)|"
    r"except(?:ing)?|excluding|(?:with|at) the exception of|other than|(?:apart|aside) from)(?:\s+for)?)[\s$(\[\\*]*\Z",
    re.IGNORECASE,
)
"""Words right before a value that leave it out of what was said: "every number save 3"."""
_UNSURE_AFTER = re.compile(
    r"[\s$)\\\]}*`.,]*+(?:\w++\s++)?(?:or so\b|or (?:more|less|fewer|thereabouts|maybe|perhaps)\b|at (?:most|least)\b|"
    r"(?:times|plus|minus|less|divided by|multiplied by) "
    r"(?:the|as|a|that|itself|\$|\d|one|two|three|four|five|ten|half)|"
    r"over\s\$?\d|(?:squared|cubed|dozen|and\s(?:a|one|two|three)\s(?:half|thirds?|quarters?))\b|"
    r"(?:to|through|until)\s+\$?\d|if\b[^.\n]{0,40}?\s(?:were|had)\b|"
    r"(?:(?:short|shy) of|(?:more|less|fewer|greater) than)\b(?!\s(?-i:[A-Z])\w*(?!['’\w]))|"
    r"[-–]\s?\d|/\d+,|,?\s*(?:except|other than|apart from|setminus)\b|"
    r"以[上下内內]|未满|未滿|(?:가|이)\s*아|नहीं|নয়|కాదు|نیست|نہیں|değil\b|では(?:ありません|ない)|"
    r"(?:if|when)\s\$?[a-z]\$?\sis\s(?![-$\d\\])|"
    r",?\s*(?:maybe|perhaps|possibly|or (?:is it|maybe))\b|\?)",
    re.IGNORECASE,
)
"""What may follow a value and make it none."""
_DOUBTED = re.compile(
    r"[\s$)\\\]}*`.,(]*+(?:(?:maybe|perhaps|possibly)\b|unless\b|or (?:so|more|less|fewer)\b"
    r"|with\s(?:a\s)?probability\b(?!\s1(?![/\d.]))|(?:most|more|less|least)\slikely\b"
    r"|(?:(?:but|though|although|while)\s)?(?:(?:(?:it|this|that)\s)?(?:could|might|may)\s(?:also\s)?be\s[$(\\]*-?\d"
    r"|[$(\\]*-?\d[^\s,;]{0,40}\s(?:(?:is|are|seems)\s(?:also\s)?possible|(?:could|might|may)\s(?:also\s)?be)\b)"
    r"|(?:if|when|for)\b(?:[^.\n]|\.\d){0,80}?(?:\botherwise\b|\d[^\s.]{0,20}\s(?:if|when|for)\b))",
    re.IGNORECASE,
)
"""What follows a value that holds at times only, or that another one may replace: 5 if n is even, 6 otherwise."""
_DENIED = re.compile(
    r"[ \t$)\\\]*]*+,?\s?(?-i:except|other than|apart from|setminus)\b|"
    r"[\s$)\\\].*!]*+(?:,?\s*+(?:which|this|that|it|the answer)\s+)?"
    r"(?:is|was|are|would be|seems|looks|cannot be|can['’]t be|isn['’]t|wasn['’]t)"
    r"\s*(?:(?:clearly|definitely|certainly|surely|also|obviously)\s+)?(?:wrong\b|incorrect\b|false\b|mistaken\b|"
    r"not\b(?=\s(?:(?:quite|really|the|an?|our|my)\s)*"
    r"(?:right|correct|answer|solution|it|valid|possible|true|allowed|acceptable|what|equal)\b|[\s.!]*(?:\n|\Z))|"
    r"the wrong\b|(?<=n't )\w+|(?<=n’t )\w+|(?<=not be )\w+)",
    re.IGNORECASE,
)
"""What follows a box that is not the answer: `is wrong`, `, which is clearly not`, `cannot be right`."""
_SO_VALUE = re.compile(
    r"[.,]{0,3}\s+so\s+(?:it\s+is\s+|that\s+is\s+)?(?P<value>[-$\\\d][^\s,;]{0,60}?)[.!]?\s*(?:\n|\Z)", re.IGNORECASE
)
"""A value that a reason ends with, which is the answer itself then: `a factor of 4, so 1/4`."""
_TAKEN_BACK = re.compile(
    r"(?:(?:\A|[.,:;!?\n—–(])[\s*]{0,9}|\b(?:no|oh|but|hmm|hold on|so)\s)wait\b(?!\s(?:for|times?|until)\b)"
    r"|\b(?:no, that|(?:that|this|which|it) (?:is|was|seems) (?:wrong|incorrect|not (?:right|correct))|"
    r"that['’]s (?:wrong|incorrect|not (?:right|correct))|I (?:made|make) (?:a|an) (?:mistake|error)|I was wrong|"
    r"scratch that)\b"
    r"|(?:[.!?\n]\s{0,9}|\b(?:hmm|oh|sorry),?\s)actually,?\s(?:it(?:['’]s|\sis)\s)?[-$\\(]*\d[\d.,/]*\W*(?:\n|\Z)",
    re.IGNORECASE,
)
"""What takes back all before it: `wait`, `that is wrong`, `I made a mistake`."""
_BEFORE = 60
_AFTER = 400
"""Characters before and after a box in which it may be denied."""


def taken_back(text: str) -> bool:
    """Whether a text takes back what it has said: "C. No wait, D"."""
    return _TAKEN_BACK.search(text) is not None


def unsure(before: str, after: str) -> bool:
    """Whether the words around a value, in its clause, deny, bound or doubt it."""
    denied_before = _UNSURE.search(before) or _DENYING.search(before) or _EXCEPT.search(before)
    return bool(denied_before) or _denied_behind(after, 0, len(after))


def _denied_behind(text: str, start: int, end: int) -> bool:
    """Whether text[start:end] denies, bounds or doubts the value before it."""
    return any(pattern.match(text, start, end) for pattern in (_UNSURE_AFTER, _DENIED, _DOUBTED))


def denied(text: str, start: int, end: int) -> bool:
    """Whether the words right beside text[start:end] deny, bound or doubt it."""
    before = text[max(0, start - _BEFORE) : start]
    lead = _LAST_CLAUSE.split(before)[-1]
    denied_before = _DENYING.search(lead) or _EXCEPT.search(before) or _TEMPTING.search(before)
    return bool(denied_before) or _denied_behind(text, end, end + _BEFORE)


def _denied(text: str, box: Box) -> bool:
    """Whether the clause of a box says that it is not the answer."""
    lead = _LAST_CLAUSE.split(text[max(0, box.at - _BEFORE) : box.at])[-1]
    if _BETWEEN.search(lead) and _BOTH.search(text, box.start, box.end):
        lead = ""
    if _is_part(text, box.at, box.after):
        return True
    return _DENYING.search(lead) is not None or _denied_behind(text, box.after, _end_of_line(text, box.after))


_PART_BEHIND = re.compile(
    r"""(?: (?:[=$(\[]|\\[(\[])\s*[-−] | [a-z]\s[-−] | \$[-−]\$\s*             # a sign
      | (?:\$|\\[(\[])[^=<>$\n]{0,40}[\w})]\s*[-−+*/]\s*                       # a term or a factor, in a formula
      | [\d√π] | (?<![A-Za-z\\])[A-Za-z] | \\(?:cdot|times)\s* | \\(?:sin|cos|tan|log|ln|lfloor|lceil)\s*
      | \^\s*\{?\s* | _\s*\{\s* | \\[cdt]?frac\s*\{[^{}]{0,40}\}\s*\{\s*
      | \\(?!(?:text|math|mbox|bm|bold|under|color|tag|large|left)[a-z]*)[A-Za-z]+\s*\{\s*        # \sqrt{, \binom{
      | (?:(?<![A-Za-z\\])[A-Za-z]|\\(?!left|big|text)[A-Za-z]{2,9})\s?\(\s*                       # f(, \sin(
      | (?:\$|\\[(\[])[^$\n]{0,40}[(\[{][^()\[\]{}$\n]{1,30},\s*                                   # (1,
      | (?: [\w})|]\s*< | (?<![^\s$(])[^<>\s]{0,20}[\w})|]\s*>                                    # x >, but no tag
      | [≤≥≠] | \\(?:lt|gt|leq?|geq?|neq?|leqslant|geqslant)(?![A-Za-z]) ) \s*
      )\Z""",
    re.VERBOSE,
)
r"""What makes another thing of a box behind it: `-\boxed{5}`, `x\boxed{5}`, `f(\boxed{5})`, `x > \boxed{5}`."""
_PART_BEFORE = re.compile(
    r"""\s*(?:\{\})?\^\s*\{?\s*-?[\da-np-z] | _\s*\{?\s*\d | !\s*(?:\$|\\[)\]])
      | \{?,\}?\d{3}(?!\d) | [.:]\d | [²³⁰-⁹π√‰]
      | [ \t]*(?:\\(?:cdot|times)(?![A-Za-z])|[-−+*/×÷])
        [ \t]*\$?(?:\d|\\(?:frac|sqrt|pi|boxed)(?![A-Za-z])|[A-Za-z](?![A-Za-z]))
      | [ \t](?::|x)[ \t]\d | [ \t](?:per|mod)\s\d | [ \t]\(\$?-?\d[^()\n]{0,30}\sif\b
      | [abd-fi-kn-rt-z](?![A-Za-z]) | e[-+]?\d | (?:[ \t]|\\[,;!])*+\\(?:pi|sqrt|[cdt]?frac|infty)(?![A-Za-z])
      | \s*(?:<\s*(?:[-\d\\]|[A-Za-z](?![\w|>]))|>\s*[-\d\\A-Za-z]|[≤≥≠]|\\(?:lt|gt|leq?|geq?|neq?)(?![A-Za-z]))
      | [ \t]*,(?:\s|\\[ ,;])*-?[\d\\](?![ ,;!])[^$\n]*(?:\$|\\[)\]])                                # 5, 6 in a formula
      | [ \t$]*(?:,|and|as\swell\sas)\s(?:also\s)?\$?-?\d[\d./]*\$?[.!]?\s*(?:\n|\Z)                   # and 6
      | [\s$)\\\]]*(?:(?:with\s(?:a\s)?)?remainder|R\s?\d|to\sthe\spower|factorial|(?:in\s)?base\s|out\sof\s\$?\d)
    """,
    re.VERBOSE,
)
r"""What makes another thing of a box before it: `\boxed{5}^2`, `\boxed{5}\pi`, `\boxed{5}, 6`, `\boxed{5} out of 6`."""
_IN_AN_EQUATION = re.compile(r"[^\n=$]{0,20}=")
r"""What follows a box that is the unknown of an equation: `7\cdot\boxed{8} = 56`."""


_CLOSING_MARKS = re.compile(r"(?:[*`$}]|__|\\[)\]])*+")
"""What closes a formula, an emphasis or code."""


def _is_part(text: str, start: int, end: int) -> bool:
    """Whether text[start:end] is only a part of a value: a factor, a base, what a sign or a root stands before."""
    close = _CLOSING_MARKS.match(text, end)
    behind = _PART_BEFORE.match(text, end) or (close and _PART_BEFORE.match(text, close.end()))
    part = behind or _PART_BEHIND.search(text, max(0, start - _BEFORE), start)
    return part is not None and not _IN_AN_EQUATION.match(text, end)


_SET_AGAINST = re.compile(r"[\s$)\]\\,;]*(?:(?:and|but)\s+)?(?:not|rather than|instead of)[\s$(\[\\]*", re.IGNORECASE)
r"""What stands between the box of an answer and one that it is set against: `\boxed{5}, not \boxed{4}`."""
_BETWEEN, _BOTH = re.compile(r"\bbetween[\s$(\[\\*]*$"), re.compile(r",|\band\b")
r"""The word before a box that holds both ends of a range, and what is between these: between \boxed{1, 2}."""
_MARKS = re.compile(r"\$|\\[()\[\]]|\*\*|[.!\s]+\Z")
"""Marks of formulas and of emphasis in a clause, and its end."""
_LAST_CLAUSE = re.compile(r"[.!?;,\n。，；]|\b(?:so|(?<!anything )but|hence|thus|therefore|then)\b", re.IGNORECASE)
r"""What parts clauses: only the last one before a box can deny it, and "it is not prime, so \boxed{5}" does not."""
_DENYING = re.compile(
    rf"(?:\b(?:not|never|{_NO}|cannot be|anything but|less than|fewer than|more than|"
    r"greater than|larger than|smaller than|rather than|instead of|up to|twice|thrice|double|triple|minus|negative|"
    r"(?:half|third|quarter|square|cube|root|multiple|percent|opposite) of|number (?:right )?(?:after|before)|"
    r"at (?:most|least)|between|one of|either|maybe|perhaps|possibly|might be|"
    r"could be|may be|nearly|almost|just under|over)|n['’]t(?: be)?|不(?:是|为|等于|到|超过)|小于|大于|至少|至多)"
    r"\s*(?:equal to\s*|exactly\s*)?[\s$(\[\\*]*$",
    re.IGNORECASE,
)
"""Words right before a value that make it none: `is not`, `less than`, `one of`."""


def last_box(same: Callable[[str, str], bool], hedge: Hedge) -> Rule:
    """The rule of the last box; boxes in one clause that are not the `same` are a hedge."""

    def rule(text: str, start: int) -> Hit:
        all_boxes = boxes(text, start)
        if not all_boxes:
            return None
        while len(all_boxes) > 1 and _SET_AGAINST.fullmatch(text, all_boxes[-2].after, all_boxes[-1].at):
            all_boxes.pop()
        last = all_boxes[-1]
        if _TAKEN_BACK.search(text, last.after, last.after + _AFTER) and _PHRASE.search(text, last.after):
            return None
        hit = found(text, last.start, last.end, "box")
        if hit.final is None:
            return hit
        if _denied(text, last) or _TAKEN_BACK.search(text, last.after, last.after + _AFTER):
            return Extraction(None, hit.span, "box", "hedge")
        for earlier, later in reversed(list(pairwise(all_boxes[-MAX_BOXES:]))):
            between = text[earlier.after : later.at]
            if not _one_clause(between):
                break
            if not same(text[earlier.start : earlier.end][:MAX_FINAL], hit.final):
                return Extraction(None, hit.span, "box", "hedge", _last_clause(text, all_boxes[-MAX_BOXES:]))
        tail = _OR_VALUE.match(text, last.after)
        if tail and not same(_closed(tail["value"]), hit.final):
            return Extraction(None, hit.span, "box", "hedge")
        return Extraction(None, hit.span, "box", "hedge", _alternatives(hit.final)) if hedge(hit.final) else hit

    return rule


def _closed(value: str) -> str:
    """A value without the full stop, and without the bracket that opens before it: 50 % in (or 50 %)."""
    value = value.rstrip(".")
    return value[:-1] if value.endswith(")") and value.count("(") < value.count(")") else value


LISTED = re.compile(r",(?:\s|\\[ ,;:])\s*(?![^({\[]*[)}\]])")
"""A comma between values, outside of brackets; one of thousands has no space behind it."""


def _alternatives(final: str) -> tuple[str, ...]:
    """The values of a box with an `or` between each and the next."""
    return tuple(part.strip(" ,") for some in OR_WORD.split(final) for part in LISTED.split(some.strip(" ,")))


def _last_clause(text: str, boxed: list[Box]) -> tuple[str, ...]:
    """The contents of the boxes in the clause of the last one; none for alternatives in unlike units, 1 hour or 9 m."""
    first = len(boxed) - 1
    while first and _one_clause(text[boxed[first - 1].after : boxed[first].at]):
        first -= 1
    names = [unit_behind(text, box.start, box.end) for box in boxed[first:]]
    units = [rf" \text{{{name}}}" if name else "" for name in names]
    between = text[boxed[first].after : boxed[-1].at]
    if len(set(units)) > 1 and OR_WORD.search(between):
        return ()
    contents = [text[box.start : box.end].strip()[:MAX_FINAL] for box in boxed[first:]]
    return tuple(content + unit for content, unit in zip(contents, units, strict=True))


_COMMAND_OR_LETTER = re.compile(r"\\(?!text|mathrm|mbox)[A-Za-z]+|(?P<letter>[A-Za-z])")
"""A command, or a letter that is a part of none."""
_UNIT = r"[A-Za-z]{{{},14}}(?:(?:/|\sper\s)[A-Za-z]{{1,14}})?(?:\^?[23](?!\d)|\s(?:squared|cubed)\b)?"
_UNIT_BEHIND = re.compile(
    r"\s*\}?(?:[ \t$~*_`]|\\[,;: )\]]){0,9}(?:(?P<degree>°)|(?P<percent>\\?%)|"
    r"(?P<size>(?:hundred|thousand|million|billion|trillion|lakh|crore)s?\b|[万萬億亿만억])"
    r"|\\(?:text|textrm|mathrm|mbox)\s*\{\s*"
    rf"(?P<styled>{_UNIT.format(1)})(?=\.?\s*\}}|\s(?:and|or)\b)"
    rf"|(?P<word>{_UNIT.format(2)}|[A-Za-z](?=,|[.;$]*(?:\s*\Z|\n)))(?![A-Za-z]))"
)
r"""A unit behind a value, in letters of its own or of the sentence: ` hours`, `$ m/s`, `\,\text{cm}`."""


def unit_behind(text: str, start: int, end: int) -> str:
    r"""The unit behind the value text[start:end], `\boxed{1} hour`; empty behind letters, and in a sentence."""
    if any(match["letter"] for match in _COMMAND_OR_LETTER.finditer(text, start, end)):
        return ""
    behind = _UNIT_BEHIND.match(text, end)
    if behind and (behind["percent"] or behind["size"]):
        return behind["size"] or "percent"
    if behind and behind["degree"]:
        return "degrees"
    name = (behind["styled"] or behind["word"]) if behind else ""
    # In a sentence inches are not told from the preposition; an adverb names nothing.
    is_preposition = name == "in" and behind is not None and not behind["styled"]
    return "" if not name or is_preposition or name.endswith("ly") or not is_unit(name) else name


def _one_clause(between: str) -> bool:
    """Whether two boxes with this text between them belong to the same clause, so that both are the answer."""
    if _STARTS_OR.match(between):
        return True
    if len(between) > 200 or "..." in between or r"\dots" in between or "…" in between:
        return False
    return _CORRECTION.search(between) is None


# -- tags, hashes, phrases ---------------------------------------------------------------------------------------------
_TAG = re.compile(
    r"<(answer|final_answer|final)>(?P<value>.*?)(?:</\1>|\Z)|\[ANSWER\](?P<bracketed>.*?)(?:\[/ANSWER\]|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""`<answer>5</answer>`, of which the end may be missing, and `[ANSWER] 5 [/ANSWER]`."""
_HASH = re.compile(r"(?:^[ \t]*|(?<=[\s.]))#{4}[ \t]*(?P<value>[^\s#][^\n]*)$", re.MULTILINE)
"""`#### 5`, as GSM8K writes it."""
_JSON = re.compile(
    r"[\"'](?:(?P<is_final>final[_ ]?)?(?P<is_answer>answer)|choice|result)[\"']\s{0,9}:\s{0,9}"
    r"[\"']?(?P<value>(?<=\")(?:[^\"\\\n]|\\[^\"\n]){1,4096}(?=\")|(?<=')[^'\\\n]{1,4096}(?=')|(?<![\"'])-?\d[\d.eE+-]{0,99})[\"']?"
    r"\s{0,9}(?:,[^{}]{0,400})?\}\s*(?:```)?\s*\Z",
    re.IGNORECASE,
)
"""The answer of an object that ends a text: {"steps": [], "answer": "5"}; Python's quotes are single."""
_JSON_CHARS = 5000
"""Characters of the longest such field and what follows it."""
_FOREIGN_WORDS = (
    "respuesta", "réponse", "antwort", "resposta", "risposta", "ответ", "jawaban", "cevap", "odpowiedź", "đáp",
    "alternativa", "opción", "opção", "trả lời", "вариант", "答案",
    "ergebnis", "résultat", "resultado", "risultato", "результат",
    "antwoord", "svar", "odpověď", "răspuns", "válasz", "απάντηση", "відповідь", "תשובה", "答え", "正解", "解答", "답",
    "الإجابة", "الجواب", "جواب", "پاسخ", "उत्तर", "जवाब", "উত্তর", "คำตอบ", "விடை", "సమాధానం", "జవాబు", "回答",
    "vastaus", "sagot", "jibu", "jawapan", "odgovor", "отговор", "одговор", "odpoveď", "cavab",
)  # fmt: skip
"""What answers are called; a text without one of these words is not searched for a phrase of these languages."""
_IS = (
    r"(?:es|est|ist|lautet|é|è|és|adalah|ialah|là|is|är|er|je|este|to|είναι|היא|равен|равна|on|ay|ni|е|jest"
    r"|হলো?|হচ্ছে)"
)
_FOREIGN = re.compile(
    r"(?:\b(?:respuesta|réponse|antwort|resposta|risposta|ответ|jawaban(?:nya)?|jawapan(?:nya)?|cevap|cavab|odpowiedź"
    r"|đáp\s(?:án|số)(?:\s(?:đúng|cuối\scùng))?|antwoord|svar(?:et)?|odpověď|odpoveď|odgovor|răspuns(?:ul)?|válasz"
    r"|απάντηση|відповідь|отговор(?:ът)?|одговор|vastaus|sagot|jibu|ה?תשובה|جواب|پاسخ|উত্তর|விடை|సమాధానం|జవాబు"
    r"|(?:end)?ergebnis|résultat|resultado|risultato|результат|alternativa|opción|opção|câu\strả\slời|вариант)"
    r"(?:\s(?:final\w*|corr?ett?[ao]|correct[ae]|corect|akhir\w*|yang\sbenar|sahihi|la\smwisho))?\**\s?"
    rf"(?:(?:(?<=\s){_IS}\b\s*)?[:：=]|(?<=\s)(?:{_IS}|[—–])(?=\s)|(?<=\s)(?=[-−]?[\d$\\]))"
    r"|\bist\sdie\s(?:(?:richtige|korrekte|endgültige|gesuchte)\s)?antwort\b\s*:?(?=\s?[-\d$*\\])"
    r"|(?:答え|正解|解答|回答)\s?[は:：]|【答案】|(?:정답|답)\s?[은:：]|(?:الإجابة|الجواب)(?:\s(?:النهائي|الصحيح)ة?)?\s?(?:هو|هي|[:：])"
    r"|(?:उत्तर|जवाब)\s?(?:है\s?)?[:：]|उत्तर\s(?:है\s)?(?=[-\d$*\\]|\(?[A-Z]\)?\sहै)|คำตอบ(?:สุดท้าย|ที่ถูกต้อง)?\s?(?:คือ|[:：])"
    r")\**\s*",
    re.IGNORECASE,
)
"""The phrases of other languages before an answer: `Respuesta final: `, `La réponse est `, `答えは`."""
_PHRASE = re.compile(
    r"(?:\b(?:(?:final|correct|right|best|closest|nearest|selected|chosen)\s+(?:result|solution|option|choice|statement|one)(?:\shere)?"
    r"|(?<!wrong )(?<!incorrect )(?<!false )(?<!mistaken )(?<!least likely )answers?(?:\s(?:choice|option))?"
    r"(?:\sto\s(?:the|this|that|your)\s(?:question|problem))?|\bmy\s(?:choice|pick|selection))(?:\*|__|</?(?:b|strong|em|i)>)*"
    r"(?:,\s(?:therefore|then|thus|hence|finally|of\scourse|in\sfact),)?\s*"
    r"(?:(?:is|are|equals|would be|should be|must be)"
    r"(?:\s+(?:therefore|thus|then|simply|just|equal to|approximately|about"
    r"|clearly|obviously|indeed|definitely|certainly"
    r"|(?:option|choice)(?!\s(?-i:[AI]\s+[a-z]))))*"
    r"\s*:?|[:：=](?:\*|__|</?(?:b|strong|em|i)>)*|[-=]>|[→⇒]|(?<=\s)[—–](?=\s)|\|(?=[^|\n]+\|\s*\Z)"
    r"|(?:comes|turns|works) out to(?: be)?\b)"
    r"|\bfinal\s+answer\s+of\b(?=\s[^\n]{1,80}\Z)"
    r"|\bfinal(?:\s+(?:value|number|total|output|result))?\**\s*[:：]"
    r"|\bthe\s+(?:only\s+|required\s+|desired\s+)?"
    r"(?:largest|smallest|greatest|least(?! likely)|maximum|minimum|highest|lowest|total|sum)\b"
    r"[^.\n:]{0,60}?\s(?:is|are|equals)\b\s*:?(?=(?:[^\n.!?]|[.](?=\d)){1,80}[.!?]?\s*\Z)"
    r"|(?:^[ \t]*|(?<=[.!?:]\s)|(?<=\bso\s)|(?<=\bso,\s)|(?<=(?:thus|ence|fore)\s)|(?<=(?:thus|ence|fore),\s))"
    r"the\s+(?:result|solution|value)\b[^.\n:]{0,60}?\s(?:is|are|equals)\s"
    r"(?=\**(?:\$[^$\n]{1,80}\$|\\\([^\n]{1,80}?\\\)|[-$\d][^\s,]{0,40}|[a-z]\s?(?:[=<>≤≥]|\\[lg]eq?)\s?[^\s,]{1,40}|`[^`\n]{1,200}`)"
    r"(?:\s[A-Za-z]{2,14})?\**[.!]?\s*\Z)"
    r"|^[ \t]*答\s?[:：]\s*(?:一共|总共|共)?有?"
    r"|(?:最终)?(?:答案|结果|选项)\s*(?:大约|约)?(?:就是|应该是|等于|是|为|[:：])+"
    r"|^[ \t]*(?:#{1,6}[ \t]*)?\**(?:the\s+)?(?:final\s+)?(?:answer|output|result)\**:?\**[ \t]*\n\s*"
    r"(?=```|[^\n]{1,200}\s*\Z"
    r"|(?!(?:we|the|to|first|let|i|as|since|given|there|if|in(?! \d))\b)"
    r"(?:\S{1,40}(?: \S{1,20}){0,2}|\S{1,40}(?: \S{1,20}){3,7}(?<![.,:;]))[ \t]*\n\s*\n)"
    r"|(?:\bthe\s+(?:final\s+)?output\b[^.\n:]{0,60}?\s(?:is|will\sbe|would\sbe)"
    r"|\b(?:code|function|program|script|snippet|expression|comprehension|method|call|statement|loop)\s"
    r"(?:prints|returns|outputs|evaluates\sto)|\bit\s(?:prints|returns|outputs|evaluates\sto)(?=:?\s[`\"'\[({]))\s*:?\s"
    r"(?=```|\**(?:`[^`\n]{1,200}`|\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|[\[({][^\n]{1,200}[\])}]"
    r"|\$[^$\n]{1,80}\$|[-\w.,]{1,40})\**[.!]?\s*(?:\Z|\n\s*\n\W*(?:explanation|reason)))"
    r"|^[ \t]*\**(?:A\s*[:：]|Ans\s*[.:：]|(?:the\s+)?(?:Result|Output)\s*[:：]|Answer\.(?=\*\*|\s+[-$\d\\(])))\**\s*",
    re.IGNORECASE | re.MULTILINE,
)
"""What announces an answer: `The answer is `, `Final: `, `The largest n is `, `The output is `, `答案是`, `A: `."""
_PHRASE_WORDS = (
    "answer", "result", "solution", "option", "choice", "final", "largest", "smallest", "greatest", "least",
    "maximum", "minimum", "highest", "lowest", "total", "sum", "value", "ans", "pick", "selection",
    "statement", " one ", "output", "prints", "returns", "evaluates", "答", "结果", "选项", ":", "：",
)  # fmt: skip
"""A text without one of these has no phrase."""
_AS_READ = str.maketrans("ſı", "si", "\u0307")
"""Letters as patterns that ignore case take them; the dot is what `lower` leaves of an İ."""
_CLAUSE_END = re.compile(
    r"\n|(?<=[\s*])\|[ \t]*(?=\n|\Z)|\s[—–]\s(?=[a-z])"
    r"|(?:(?<!\bRs)(?<!\bsq)(?<!\bcu)(?<!\.\.)[.?]|(?<![\d\\])!)(?=\s|$)|[。！？]|(?<![\s,])(?<!\bor)(?<!times)(?<!\bwell),?\s+"
    r"\(?(?:because|since|so|which|where|as(?! well\b))\b"
    r"|\s\((?:at|attained|achieved|reached|occurring|that is,?|i\.e\.,?|namely)\s[^()\n]{1,60}\)"
    r"(?=[\s*]*[.!]?[\s*]*(?:\n|\Z))"
)
"""The end of the clause that a phrase begins: a line, a full stop, a reason, `, since`, a place, `(at x = 3)`."""
_NAME_ENDS = r"(?=\s[A-Z][\w'’-]+(?:[.!*\"]|\s*(?:\n|\Z)))"
_NO_STOP = re.compile(
    r"(?<![\w.])(?:St|Mt|Ft|Mr|Mrs|Ms|Dr|Prof)\.(?=\s[A-Z])|\b[A-Z]\.(?=\s(?:[A-Z]\.|[a-z]))|\bNo\.(?=\s\d)"
    rf"|(?:(?<=[A-Z]\.\s)|(?<=[A-Z]\.)|\b[A-Z][a-z'’-]+\s)[A-Z]\.{_NAME_ENDS}"
)
"""What a full stop ends no clause behind: a title or an initial, where the name goes on, J. K. Rowling."""
_DISPLAY = re.compile(r"\$\$.{1,4000}?\$\$|\\\[.{1,4000}?\\\]", re.DOTALL)
r"""A displayed formula: `$$x$$`, `\[x\]`."""
_BLOCK = re.compile(r"```[\w+.#-]{0,20}[ \t]*\n(?P<value>[^`]{1,4096})```")
"""A block right behind a phrase: `Output:` and the lines that a program prints."""
_OUTPUT_LABEL = re.compile(r"output\**\s?[:：]\**[ \t]*\Z", re.IGNORECASE)
_LINES = re.compile(r"[^\n]+(?:\n(?!\s*\n|[ \t]*[*#`]|[A-Z][\w ]{0,30}[:：])[^\n]+)+")
"""The lines that a program prints behind `Output:`, up to an empty one or to a label such as `Explanation:`."""
SHORT_CLAUSE = 80
MAX_PHRASES = 8
"""How many of the last answer phrases are looked at."""


def last_value(pattern: re.Pattern[str], method: str, hedge: Hedge, mark: str = "") -> Rule:
    """The rule of the last place of `pattern`, whose group `value` is the answer; no text without `mark` has one."""

    def rule(text: str, start: int) -> Hit:
        if mark not in text:
            return None
        match = last_match(pattern, text, start)
        group = match and match.lastgroup
        if match is None or group is None:
            return None
        hit = found(text, *match.span(group), method)
        is_taken_back = hit.final and _TAKEN_BACK.search(text, match.end(), match.end() + _AFTER)
        return Extraction(None, hit.span, method, "hedge") if is_taken_back else _unless(hedge, hit)

    return rule


def last_field(same: Callable[[str, str], bool], hedge: Hedge) -> Rule:
    """The rule of a JSON object that ends a text; two answers in it that are not the `same` are a hedge."""

    def rule(text: str, start: int) -> Hit:
        fields = list[re.Match[str]]()
        begin = max(start, len(text.rstrip()) - _JSON_CHARS)
        while field := _JSON.search(text, fields[-1].start() + 1 if fields else begin):
            fields.append(field)
        for name in ("is_answer", "is_final"):
            fields = [field for field in fields if field[name]] or fields
        if not fields:
            return None
        hit = found(text, *fields[-1].span("value"), "json")
        unlike = any(not same(field["value"], fields[-1]["value"]) for field in fields[:-1])
        return Extraction(None, hit.span, "json", "hedge") if unlike else _unless(hedge, hit)

    return rule


_SUPPOSED = re.compile(
    r"\b(?:suppos(?:e|ing)|assum(?:e|ing)|imagine|pretend|if|whether|unless"
    r"|(?:(?<!\bno )doubt|unlikely|untrue|not true)(?=\s+that))"
    r"(?:\s+that)?(?:\s+(?:the|our|my|your))?(?:\s+(?:final|correct|right|true))?\s+\Z"
    r"|(?<!\bno )\bdoubt(?:\s+the)?\s+\Z",
    re.IGNORECASE,
)
"""Words before an answer phrase that only suppose or doubt it: `Suppose the answer is 5`, `unlikely that it is`."""
_TEMPTING = re.compile(
    r"\b(?:(?:wrong|incorrect|false|tempting|a mistake) to (?:say|think|claim|conclude|believe|guess|assume)"
    r"|(?:one|you|we|I|some|many) (?:might|may|could|would) (?:be tempted|think|say|guess|expect|conclude|believe)"
    r"|(?:students?|people|teacher|friend|others|someone) (?:\w+ )?(?:say|think|claim|believe|guess|argue)s?"
    r"|(?!I\b|we\b)[A-Za-z]+ (?:thinks|thought|guess(?:es|ed)|believe[sd]|says|said)"
    r"(?= (?:that )?the\b))\b"
    r"(?:(?!\bbut\b)[^.!?\n])*\Z"
    r"|\bnote\b(?: that)?[:,]? (?:that )?if\b[^.!?\n]*\Z",
    re.IGNORECASE,
)
"""Words before an answer that others would give, or another question has: `One might think the answer is 5`."""


def _supposed(text: str, start: int, at: int) -> bool:
    begin = max(start, at - _BEFORE)
    return bool(_SUPPOSED.search(text, begin, at) or _TEMPTING.search(text, begin, at))


_IN_THAT_CASE = re.compile(r"\bif\b[^.!?\n]*\Z", re.IGNORECASE)
"""What makes of `the answer would be` what it is not."""


def _phrase_ends(text: str, start: int) -> list[int]:
    """Where what the last answer phrases announce begins."""
    lowered = text.lower().translate(_AS_READ)
    ends: list[int] = []
    for words, pattern in ((_PHRASE_WORDS, _PHRASE), (_FOREIGN_WORDS, _FOREIGN)):
        if any(word in lowered for word in words):
            matches = (
                match
                for match in pattern.finditer(text, start)
                if not _supposed(text, start, match.start())
                and not (
                    "would be" in match[0]
                    and _IN_THAT_CASE.search(text, max(start, match.start() - 100), match.start())
                )
            )
            ends.extend(deque((match.end() for match in matches), maxlen=MAX_PHRASES))
    return sorted(ends)


_EXCLAIMED = re.compile(r"(?<=\d)[*_ ]*!+[*_\s]*\Z")
_FACTORIALS = re.compile(r"(?:\d|(?<![A-Za-z])[A-Za-z]|[)}])\s?!(?!=)|factorial|permutation|arrange", re.IGNORECASE)
"""What a text has in it whose 18! may be a factorial."""


def _unexclaimed(clause: str, before: str) -> str:
    """A clause without the mark of an exclamation, `My final answer is 18!` behind a text without factorials."""
    mark = _EXCLAIMED.search(clause)
    stands_alone = "\n" not in before.strip() and ". " not in before
    return clause if mark is None or stands_alone or _FACTORIALS.search(before) else clause[: mark.start()]


_ANSWER_BEHIND = re.compile(
    r"(?:\A|[.!?:\n]\s*|\b(?:so|thus|hence|therefore),?\s+)(?:we\s(?:get|have|find|obtain)\s+)?"
    r"(?P<value>\*\*[^*\n]{1,80}\*\*|\$[^$\n]{1,80}\$|\\\([^\n]{1,80}?\\\)|[-−]?\$?\d[\d,./]{0,40}%?)\s+"
    r"(?:is|as)\s+(?:the|our|my)\s+(?:final\s+|correct\s+|desired\s+|required\s+)?answer[.!]?\s*\Z",
    re.IGNORECASE,
)
"""A last sentence that gives the answer first: `Thus 17 is the answer.`"""


def answer_behind(text: str, start: int) -> Hit:
    """The rule of a last sentence that gives the answer first."""
    tail = _ANSWER_BEHIND.search(text, max(start, len(text) - 2 * _BEFORE - 80)) if "answer" in text else None
    return tail and found(text, *tail.span("value"), "phrase")


def last_phrase(same: Callable[[str, str], bool], hedge: Hedge, trim: Callable[[str], tuple[int, int] | None]) -> Rule:
    """The rule of the last answer phrase: its clause, cut by `trim` to the answer (None: the phrase has no answer)."""

    def rule(text: str, start: int) -> Hit:
        for begin in reversed(_phrase_ends(text, start)):
            window = text[begin : begin + MAX_FINAL + 1]
            if block := _BLOCK.match(window):
                return _unless(hedge, found(text, begin + block.start("value"), begin + block.end("value"), "phrase"))
            if display := _DISPLAY.match(window) or _printed(text, begin, window):
                return _unless(hedge, found(text, begin + display.start(), begin + display.end(), "phrase"))
            end = _CLAUSE_END.search(_NO_STOP.sub(lambda match: match[0].replace(".", " "), window))
            clause = _unexclaimed(window[: end.start()] if end else window, text[start:begin])
            place = trim(clause)
            if (place or len(clause) <= SHORT_CLAUSE) and hedge(clause):
                parts = _alternatives(_MARKS.sub("", clause))
                same_parts = parts if all(same(part, parts[0]) for part in parts) else ()
                return Extraction(None, (begin, begin + len(clause)), "phrase", "hedge", same_parts)
            if place:
                hit = found(text, begin + place[0], begin + place[1], "phrase")
                question_mark = end is not None and end[0] in "?？"
                around = unsure(clause[: place[0]], clause[place[1] :]) or bool(hit.span and _is_part(text, *hit.span))
                other = _OR_VALUE.match(window, place[1]) or (end and _SO_VALUE.match(window, end.start()))
                around |= bool(other and hit.final and not same(_closed(other["value"]), hit.final))
                doubtful = question_mark or around or _TAKEN_BACK.search(text, begin, begin + _AFTER)
                return Extraction(None, hit.span, "phrase", "hedge") if doubtful else hit
        return None

    return rule


def _printed(text: str, begin: int, window: str) -> re.Match[str] | None:
    """The lines of an output that has several; None behind any other phrase."""
    return _LINES.match(window) if _OUTPUT_LABEL.search(text, max(0, begin - _BEFORE), begin) else None


def _unless(hedge: Hedge, hit: Extraction) -> Extraction:
    if hit.final is not None and hedge(hit.final):
        return Extraction(None, hit.span, hit.method, "hedge")
    return hit


_FINAL_ANSWER = re.compile(r"^[ \t]*+[#*]{0,6}[ \t]*+final\s+answer\b", re.IGNORECASE | re.MULTILINE)
"""The head of a section, or the line, that gives the answer in the end."""
_NUMBER_INSIDE = re.compile(r"\d")


def _unless_later(box: Rule, phrase: Rule, same: Callable[[str, str], bool]) -> Rule:
    """The rule of a box, but of a `Final Answer` behind it that holds another number: boxes in steps are no answers."""

    def rule(text: str, start: int) -> Hit:
        hit = box(text, start)
        head = _FINAL_ANSWER.search(text, hit.span[1]) if hit and hit.span else None
        later = phrase(text, head.start()) if head else None
        if hit is None or later is None or not later.final or not _NUMBER_INSIDE.search(later.final):
            return hit
        return hit if hit.final and same(hit.final, later.final) else later

    return rule


def _said_inside(tag: Rule, phrase: Rule) -> Rule:
    """The rule of a tag, in which a sentence may give the answer: <answer>The answer is 5.</answer>."""

    def rule(text: str, start: int) -> Hit:
        hit = tag(text, start)
        return hit if hit is None or hit.span is None else phrase(text[: hit.span[1]], hit.span[0]) or hit

    return rule


def usual_rules(
    same: Callable[[str, str], bool],
    hedge: Hedge,
    trim: Callable[[str], tuple[int, int] | None],
    *,
    tag_is_answer: bool = False,
) -> tuple[Rule, tuple[Rule, ...], Rule]:
    """The rule of a box, those of other marks (a tag, ####, JSON), and that of a phrase.

    `same` tells whether two boxes say one thing. With `tag_is_answer` all that a tag holds is the answer, else a
    sentence inside may give it.
    """
    phrase = last_phrase(same, hedge, trim)
    box = _unless_later(last_box(same, hedge), phrase, same)
    tag, hash_line = last_value(_TAG, "tag", hedge), last_value(_HASH, "hash", hedge, "####")
    tag = tag if tag_is_answer else _said_inside(tag, phrase)
    return box, (tag, hash_line, last_field(same, hedge)), phrase
