"""The 25 kinds of verifiable instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911).

`INSTRUCTIONS` maps an id to a function that reads the parameters and returns the check: text -> followed or not. Each
check is linear in the text. Where the published checkers differ, the docstring of the check says so.

Keywords are literal text and their case does not matter. (IFEval reads them as regular expressions; none of its prompts
has one that would differ.) A response without enough letters to tell its language passes a check of it.

Sentences are counted without a trained model: a word that ends in a full stop, a question or an exclamation mark ends
one, unless it is a known abbreviation or an initial before a name, an ellipsis, or the number of a list before a word
in lower case. Marks that close a quotation or a bracket stay with the sentence they close. The rules are those of Punkt
(Kiss and Strunk 2006), which IFEval counts with, oddities included ("i.e." ends a sentence); of its learnt tables, the
abbreviations of general use and the words that open sentences stand here. Known differences: which words Punkt has seen
in lower case (they open a sentence after an abbreviation) is told by a short list, and its collocations are left out.
Words are runs of word characters; the tokens in the manner of the Penn Treebank serve the count of words in capitals
only, so what cannot change that count (splitting off a full stop) is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from ttc.answers.extract import last_match
from ttc.config.values import nearest
from ttc.errors import ConfigError
from ttc.verifiers.shared.languages import check_code, detect

Check: TypeAlias = Callable[[str], bool]
"""Whether a response follows one instruction."""
Make: TypeAlias = Callable[["Arguments"], Check]
"""Build a check from the parameters of an instruction; raises ConfigError when they cannot be used."""

_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {"at least": int.__ge__, "less than": int.__lt__}


class Arguments:
    """The `kwargs` of one instruction; `where` names them in errors. A field that is None counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._where = where
        self._read: set[str] = set()

    def text(self, name: str) -> str:
        """A string that is not blank."""
        value = self._get(name, "a string")
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{self._where}.{name} must be a string that is not blank, got {value!r}"[:300])
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A non-empty list of strings that are not blank."""
        value = self._get(name, "a list of strings")
        listed = isinstance(value, (list, tuple)) and value
        if not listed or not all(isinstance(item, str) and item.strip() for item in value):
            raise ConfigError(f"{self._where}.{name} must be a list of strings that are not blank, got {value!r}"[:300])
        return tuple(value)

    def count(self, name: str) -> int:
        """A whole number >= 0; one written as a float counts."""
        value = self._get(name, "a whole number")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value != int(value) or value < 0:
            raise ConfigError(f"{self._where}.{name} must be a whole number >= 0, got {value!r}"[:300])
        return int(value)

    def compared(self, relation: str, threshold: str) -> Callable[[int], bool]:
        """How a count is judged: by the fields `relation` ("at least" or "less than") and `threshold`."""
        limit, name = self.count(threshold), self._get(relation, "a relation")
        compare = _RELATIONS.get(name) if isinstance(name, str) else None
        if compare is None:
            relations = " or ".join(map(repr, _RELATIONS))
            raise ConfigError(f"{self._where}.{relation} must be {relations}, got {name!r}"[:300])
        return lambda number: compare(number, limit)

    def finish(self) -> None:
        """Refuse fields that the instruction did not read."""
        for name in self._values:
            if name not in self._read:
                names = ", ".join(sorted(self._read)) or "none"
                hint = nearest(str(name), sorted(self._read))
                raise ConfigError(f"{self._where}.{name}: no such parameter{hint} (known: {names})")

    def _get(self, name: str, what: str) -> Any:
        self._read.add(name)
        if name not in self._values:
            raise ConfigError(f"{self._where}.{name} is missing: {what} is needed")
        return self._values[name]


def existence(arguments: Arguments) -> Check:
    """Every keyword occurs, also inside other words."""
    patterns = [_anywhere(word) for word in arguments.texts("keywords")]
    return lambda text: all(pattern.search(text) for pattern in patterns)


def frequency(arguments: Arguments) -> Check:
    """The keyword occurs at least, or less than, so many times."""
    pattern = _anywhere(arguments.text("keyword"))
    enough = arguments.compared("relation", "frequency")
    return lambda text: enough(sum(1 for _ in pattern.finditer(text)))


def forbidden_words(arguments: Arguments) -> Check:
    """None of the words occurs as a word of its own."""
    patterns = [re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE) for word in arguments.texts("forbidden_words")]
    return lambda text: not any(pattern.search(text) for pattern in patterns)


def letter_frequency(arguments: Arguments) -> Check:
    """The letter, or any other character, occurs at least, or less than, so many times."""
    letter = arguments.text("letter").strip().lower()
    enough = arguments.compared("let_relation", "let_frequency")
    return lambda text: enough(text.lower().count(letter))


def _anywhere(word: str) -> re.Pattern[str]:
    return re.compile(re.escape(word.strip()), re.IGNORECASE)


def response_language(arguments: Arguments) -> Check:
    """The response is in the language with that code (ISO 639-1)."""
    code = check_code(arguments.text("language"))
    return lambda text: is_in(text, code)


def is_in(text: str, language: str) -> bool:
    """Whether `text` is in `language`, or has too few letters to tell."""
    return detect(text) in (language, None)


_PARAGRAPHS = re.compile(r"\s?\*\*\*\s?")
_ENDS_WORD = re.compile(r"[.,?!'\"]")


def number_words(arguments: Arguments) -> Check:
    """At least, or less than, so many words."""
    enough = arguments.compared("relation", "num_words")
    return lambda text: enough(count_words(text))


def number_sentences(arguments: Arguments) -> Check:
    """At least, or less than, so many sentences (see `count_sentences`)."""
    enough = arguments.compared("relation", "num_sentences")
    return lambda text: enough(count_sentences(text))


def number_paragraphs(arguments: Arguments) -> Check:
    """Exactly so many paragraphs between dividers `***`; an empty one counts as broken, except first and last."""
    number = arguments.count("num_paragraphs")

    def check(text: str) -> bool:
        blank = [not part.strip() for part in _PARAGRAPHS.split(text)]
        return not any(blank[1:-1]) and len(blank) - blank[0] - (len(blank) > 1 and blank[-1]) == number

    return check


def nth_paragraph_first_word(arguments: Arguments) -> Check:
    """So many paragraphs between empty lines, one of which begins with the word."""
    num_paragraphs, nth = arguments.count("num_paragraphs"), arguments.count("nth_paragraph")
    first = arguments.text("first_word").strip().lower()

    def check(text: str) -> bool:
        paragraphs = text.split("\n\n")
        number = sum(1 for paragraph in paragraphs if paragraph.strip())
        if not 1 <= nth <= number or not paragraphs[nth - 1].strip():
            return False
        word = paragraphs[nth - 1].split(maxsplit=1)[0].lstrip("'").lstrip('"')
        return number == num_paragraphs and _ENDS_WORD.split(word, maxsplit=1)[0].lower() == first

    return check


_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCES = ("```json", "```Json", "```JSON", "```")
_SINGLE = re.compile(r"\*([^\n*]*)\*")
_DOUBLE = re.compile(r"\*\*([^\n*]*)\*\*")
_DASH_LINE = re.compile(r"^[^\S\n]*-", re.MULTILINE)


def number_bullet_lists(arguments: Arguments) -> Check:
    """Exactly so many lines that begin with `*` or `-`."""
    number = arguments.count("num_bullets")
    return lambda text: _star_lines(text) + sum(1 for _ in _DASH_LINE.finditer(text)) == number


def _star_lines(text: str) -> int:
    """Lines that begin with one star; a star alone on its line takes the next line with it, as in IFEval."""
    lines = text.split("\n")
    count, continuation = 0, -1
    for i, line in enumerate(lines):
        bare = line.lstrip()
        if i == continuation or not bare.startswith("*") or bare.startswith("**"):
            continue
        if bare != "*":
            count += 1
        elif i + 1 < len(lines):
            count, continuation = count + 1, i + 1
    return count


def number_highlighted_sections(arguments: Arguments) -> Check:
    """At least so many `*highlights*` with something in them, on one line each; a double star counts like a single."""
    number = arguments.count("num_highlights")
    return lambda text: sum(_filled(pattern, text) for pattern in (_SINGLE, _DOUBLE)) >= number


def _filled(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for match in pattern.finditer(text) if match[1].strip())


def multiple_sections(arguments: Arguments) -> Check:
    """At least so many headings: the word and a number, `Section 2`."""
    heading = re.compile(rf"{re.escape(arguments.text('section_spliter').strip())}\s?\d+")
    number = arguments.count("num_sections")
    return lambda text: sum(1 for _ in heading.finditer(text)) >= number


def title(_arguments: Arguments) -> Check:
    """A line with a title in double angles that is not blank: <<Ode to Joy>>."""
    return lambda text: any(map(_has_title, text.split("\n")))


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return start >= 0 and end >= start + 3 and bool(line[start:end].lstrip("<").rstrip(">").strip())


def json_format(_arguments: Arguments) -> Check:
    """The whole response is JSON, perhaps in a fence."""

    def check(text: str) -> bool:
        body = text.strip()
        for fence in _FENCES:
            body = body.removeprefix(fence)
        try:
            json.loads(body.removesuffix("```").strip())
        except (ValueError, RecursionError):
            return False
        return True

    return check


def constrained_response(_arguments: Arguments) -> Check:
    """One of the three sentences "My answer is yes / no / maybe." occurs."""
    return lambda text: any(answer in text for answer in _ANSWERS)


_MARKERS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
"""The two markers of IFEval, which may be written with spaces; any other one is literal."""


def number_placeholders(arguments: Arguments) -> Check:
    """At least so many [placeholders], each on one line."""
    number = arguments.count("num_placeholders")
    return lambda text: sum(map(_placeholders, text.split("\n"))) >= number


def _placeholders(line: str) -> int:
    count, at = 0, line.find("[")
    while at >= 0 and (end := line.find("]", at)) >= 0:
        count, at = count + 1, line.find("[", end)
    return count


def postscript(arguments: Arguments) -> Check:
    """The marker of a postscript occurs, whatever its case."""
    marker = arguments.text("postscript_marker").strip()
    pattern = re.compile(_MARKERS.get(marker, re.escape(marker.lower())))
    return lambda text: pattern.search(text.lower()) is not None


_DIVIDER = "******"


def two_responses(_arguments: Arguments) -> Check:
    """Exactly two different responses with six stars between them; only the first and last part may be empty."""

    def check(text: str) -> bool:
        parts = [part.strip() for part in text.split(_DIVIDER)]
        filled = [part for part in parts if part]
        return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]

    return check


def repeat_prompt(arguments: Arguments) -> Check:
    """The response begins with the request, word for word, whatever the case."""
    prompt = arguments.text("prompt_to_repeat").strip().lower()
    return lambda text: text.strip().lower().startswith(prompt)


def end_checker(arguments: Arguments) -> Check:
    """The response ends with the phrase, whatever the case; quotation marks around the whole are dropped."""
    phrase = arguments.text("end_phrase").strip().lower()
    return lambda text: text.strip().strip('"').lower().endswith(phrase)


def quotation(_arguments: Arguments) -> Check:
    """The whole response stands in double quotation marks."""
    return lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'


def english_capital(_arguments: Arguments) -> Check:
    """English without a small letter."""
    check_code("en")
    return lambda text: text.isupper() and is_in(text, "en")


def english_lowercase(_arguments: Arguments) -> Check:
    """English without a capital."""
    check_code("en")
    return lambda text: text.islower() and is_in(text, "en")


def capital_word_frequency(arguments: Arguments) -> Check:
    """At least, or less than, so many words in capitals."""
    enough = arguments.compared("capital_relation", "capital_frequency")
    return lambda text: enough(count_capital_words(text))


def no_comma(_arguments: Arguments) -> Check:
    """No comma occurs."""
    return lambda text: "," not in text


_GROUPS: Mapping[str, tuple[Make, ...]] = {
    "keywords": (existence, frequency, forbidden_words, letter_frequency),
    "language": (response_language,),
    "length_constraints": (number_sentences, number_paragraphs, number_words, nth_paragraph_first_word),
    "detectable_content": (number_placeholders, postscript),
    "detectable_format": (
        number_bullet_lists, constrained_response, number_highlighted_sections, multiple_sections, json_format, title,
    ),
    "combination": (two_responses, repeat_prompt),
    "startend": (end_checker, quotation),
    "change_case": (capital_word_frequency, english_capital, english_lowercase),
    "punctuation": (no_comma,),
}  # fmt: skip
INSTRUCTIONS: Mapping[str, Make] = {f"{group}:{make.__name__}": make for group in _GROUPS for make in _GROUPS[group]}


# -- sentences and words ----------------------------------------------------------------------------------------------
_WORD = re.compile(r"\S+")
_STOP = re.compile(r"[.?!](?=[)\";}\]*:@'({\[?!‘’“”«»]|\Z)")
_CLOSING = re.compile(r"[\"')\]}‘’“”«»]+(?=--|\Z)")
_INITIAL = re.compile(r"[^\W\d]\.")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_EDGES = "\"'()[]{}*_<>:;,“”‘’`"
_ABBREVIATIONS = frozenset({
    "a.m", "adm", "ala", "ariz", "aug", "ave", "bros", "c", "calif", "cie", "co", "col", "colo", "conn", "corp",
    "cos", "ct", "d.c", "dec", "dr", "f", "feb", "fla", "fri", "ft", "ga", "gen", "h", "ill", "inc", "jan", "jr",
    "kan", "ky", "l", "lt", "ltd", "m", "maj", "md", "messrs", "mg", "mich", "minn", "mr", "mrs", "ms", "n", "n.c",
    "n.j", "n.y", "nev", "nov", "oct", "ok", "okla", "ore", "p.m", "pa", "ph.d", "prof", "r", "rep", "reps", "s",
    "s.c", "sen", "sep", "sept", "sr", "st", "sw", "t", "tenn", "tues", "u.k", "u.n", "u.s", "u.s.a", "u.s.s.r", "v",
    "va", "vs", "vt", "w", "w.va", "wash", "wed", "wis", "yr",
})  # fmt: skip
_OPENINGS = frozenset({
    "according", "although", "both", "but", "certainly", "currently", "despite", "does", "early", "even",
    "eventually", "finally", "following", "furthermore", "he", "hence", "her", "here", "however", "i", "if", "in",
    "indeed", "instead", "it", "many", "meanwhile", "moreover", "most", "neither", "nevertheless", "nonetheless",
    "nor", "overall", "please", "recent", "separately", "similarly", "since", "so", "some", "sometimes", "still",
    "such", "thank", "thanks", "the", "there", "therefore", "these", "they", "this", "though", "through", "thus",
    "together", "typically", "ultimately", "under", "unfortunately", "unless", "using", "various", "were", "when",
    "whereas", "whether", "which", "while", "without", "yes", "yet", "your",
})  # fmt: skip


def count_sentences(text: str) -> int:
    """The number of sentences of `text`; 0 for a text without any word."""
    count, left = 0, False
    for word, following in _words(text):
        rest = _rest(word)
        if rest is None or not _ends(word[: len(word) - len(rest)], rest, following):
            left = True
            continue
        count += 1
        left = bool(_CLOSING.sub("", rest, count=1) if rest else "")
    return count + left


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Each word with the one after it; the last word has an empty one."""
    before = ""
    for match in _WORD.finditer(text):
        if before:
            yield before, match[0]
        before = match[0]
    if before:
        yield before, ""


def _rest(word: str) -> str | None:
    """What stands behind the last mark of `word` that may end a sentence; None without one."""
    last = last_match(_STOP, word)
    return None if last is None else word[last.end() :]


def _ends(word: str, rest: str, following: str) -> bool:
    """Whether a sentence ends behind `word`, whose last character is a mark; `rest` is what stuck to it."""
    if not (rest or following):
        return False
    if word[-1] != ".":
        return True
    following = rest if rest else following
    bare = word.lstrip(_EDGES)
    if bare.endswith(".."):
        return _opens(following)
    core = bare[:-1].casefold()
    if _INITIAL.fullmatch(bare):
        return core not in _ABBREVIATIONS and (_opens(following) or not following[:1].isalpha())
    if core in _ABBREVIATIONS or core.rpartition("-")[2] in _ABBREVIATIONS:
        return _opens(following)
    if _NUMBER.fullmatch(core):
        return not following[:1].islower()
    return True


def _opens(word: str) -> bool:
    """Whether `word` is a capitalised word that often begins a sentence."""
    bare = word.strip(_EDGES + ".?!")
    return bare[:1].isupper() and bare.casefold() in _OPENINGS


_TERM = re.compile(r"\w+")
_APART = re.compile(r"\.{2,}|--|[;*@#$%&?!\[\](){}<>\"“”«»„‘’`–—]|[:,](?!\d)|''")
_ENDINGS = re.compile(r"(?<=[^\s'])(?=(?:'(?:s|m|d|ll|re|ve)|n't)(?=\s|\Z))", re.IGNORECASE)
_JOINED = re.compile(
    r"\b(?:(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n)|(wan)(na))(?=\s|\Z)"
    r"|(?<=\s)('t)(is|was)\b",
    re.IGNORECASE,
)
_EDGE_QUOTE = re.compile(r"(?<=\S)'(?=\s|\Z)")


def count_words(text: str) -> int:
    """The number of runs of letters, digits and underscores."""
    return sum(1 for _ in _TERM.finditer(text))


def count_capital_words(text: str) -> int:
    """The number of tokens that have letters, all of them capitals: `I`, `NATO`, `GPT-4`; `DON'T` is two."""
    spaced = _APART.sub(" ", f" {text} ")
    spaced = _EDGE_QUOTE.sub(" ", _ENDINGS.sub(" ", spaced))
    spaced = _JOINED.sub(lambda match: " ".join(part for part in match.groups() if part), spaced)
    return sum(token.isupper() for token in spaced.split())
