"""The formats in which model families write function calls, and in which functions are presented to them.

A format is one entry of `TOOL_FORMATS`: the text of a call with holes in it. What reads calls, writes them and holds
them to a grammar (`serve.requests.tools`) is derived from it, so a new family needs one entry and nothing else.

A model's format is the one in which its own chat template writes a call: a conversation with a call is rendered and
read in each (`writing_of`). For a template that presents functions and writes no calls, what it tells the model
decides, or a token of its vocabulary, and calls are words of its turns. For one that presents no functions, or does not
say how to call them, they are presented in the Hermes format, in the system message, with calls and results as text of
the turns (https://github.com/NousResearch/Hermes-Function-Calling).

Calls need not have been written under a grammar: what cannot be read is text. Where a format has no types, arguments
have those of the function's schema. Left out: functionary 3.2, Command R, Muse, MiniMax M3, and code as a call
(SmolLM3's Python mode, `<|python_tag|>` code), for which a request with tools is refused.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ttc.core import Message, ToolCall, ToolMessage, Tools, half_character
from ttc.errors import ConfigError

__all__ = [
    *("PLAIN", "TOOL_FORMATS", "ToolFormat", "Writing", "holes_of", "plain_turns", "shows_tools"),
    *("texts_of", "turns_of", "types_of", "writing_of"),
]

_HOLES = re.compile(r"\{(object|name|json|tags|python|map|any:[^}]*|key|value|string|type)\}")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written. `call` is one of them; `opening` and `closing` enclose all calls of a turn.

    Holes in `call` are {object}, JSON with the name and the arguments in `fields` ("" for the name: it is the key of
    the arguments), or {name} and one of
        {json}    the arguments as a JSON object
        {tags}    one `argument` after another, with the holes {key} and {value}, and where it says what a value is
                  {string} (true or false) or {type} (a type of JSON)
        {python}  keyword arguments
        {map}     key:value, as in an object of JavaScript
    and {any:TEXT}, which is TEXT or something else. Texts stand in `quotes` where a format has some of its own. White
    space between the words of a pattern may be any. With `listed` the calls are one JSON list. A `prefix` may stand
    before calls without an opening, and a `lead` before others: neither is part of the answer's words. `stop` is an end
    of sequence that the model ends its turn of calls with; it need not be in the text. Not `several`: a turn has one.
    """

    call: str
    opening: str = ""
    closing: str = ""
    between: str = ""
    fields: tuple[str, str] = ("name", "arguments")
    listed: bool = False
    argument: str = ""
    quotes: tuple[str, str] | None = None
    prefix: str = ""
    lead: str = ""
    stop: str = ""
    several: bool = True

    @property
    def trigger(self) -> str:
        """The text that starts the calls; "" where only a bracket does."""
        match = _TRIGGER.match(_HOLES.split(self.opening + self.call)[0])
        return match[1].strip() if match else ""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts from which on an answer is no words."""
        return tuple(mark for mark in (self.trigger, self.lead) if mark)

    @property
    def shape(self) -> str:
        """A call of this format as it is described to a model."""
        if "{object}" in self.call:
            name, arguments = self.fields
            inner = f'"{arguments}": {{"input": TEXT}}'
            return "{" + (f'"{name}": NAME, {inner}' if name else '"NAME": {"input": TEXT}') + "} as JSON"
        return self._filled("NAME", {"input": "TEXT"}).strip()

    def read(self, text: str, tools: Tools = ()) -> tuple[str, tuple[ToolCall, ...]]:
        """Split an answer into the text before the calls, and the calls; all is text if no call can be parsed.

        If the last call was cut off, the calls before it are returned; `cut` returns the rest. `tools` have the types
        of the arguments.
        """
        reading = self._reading(text, tools)
        if reading is None or not reading.calls:
            return text, ()
        before = text[: reading.start]
        if self.lead and before.rstrip().endswith(self.lead):
            before = before.rstrip().removesuffix(self.lead)
        return (before if before.strip() else ""), tuple(reading.calls)

    def cut(self, text: str) -> str:
        """The incomplete last call after others; "" where all calls are complete."""
        reading = self._reading(text, ())
        return text[reading.at :].strip() if reading is not None and reading.calls else ""

    def begins(self, text: str, names: Collection[str]) -> bool:
        """Whether some call was begun in `text`, whole or not: without a mark, one of `names`."""
        if self.trigger:
            return self.trigger in text
        match = _BEGIN.match(text.strip().removeprefix(self.prefix))
        return match is not None and match[1] in names

    def may_begin(self, text: str) -> bool:
        """Whether an answer that begins with `text` may be calls, where no mark says so."""
        text = text.lstrip()
        starts = ("{", "[", *([self.prefix] if self.prefix else []))
        return any(text.startswith(start) or start.startswith(text) for start in starts)

    def write(self, calls: Sequence[ToolCall]) -> str:
        """`calls` as a model of this family writes them."""
        texts = [self._filled(call.name, json.loads(call.arguments)) for call in calls]
        if self.listed:
            return f"{self.opening}[{', '.join(texts)}]{self.closing}"
        return self.opening + self.between.join(texts) + self.closing

    def starts(self, text: str) -> Iterator[int]:
        """Where calls may begin in `text`."""
        mark = self.trigger
        if not mark:
            blank = len(text) - len(text.lstrip())
            yield _blank(text, blank + len(self.prefix)) if text.startswith(self.prefix, blank) else blank
            return
        at = text.find(mark)
        while at >= 0:
            yield at
            at = text.find(mark, at + 1)

    def parse(self, text: str, start: int, tools: Tools = ()) -> _Reading:
        """Read calls from `start` on, as many as there are."""
        reading = _Reading(text, start, start, _types_by_name(tools))
        try:
            reading.at = _behind(text, start, self.opening)
            self._list(reading) if self.listed else self._each(reading)
        except (_EndOfText, _NoCall) as end:  # both leave `at` behind the last call that is whole
            reading.is_cut = isinstance(end, _EndOfText)
        return reading

    def _reading(self, text: str, tools: Tools) -> _Reading | None:
        """The first calls in `text` that end with it; None where there are none."""
        least = 0
        for start in self.starts(text):
            if start < least:
                continue
            reading = self.parse(text, start, tools)
            if reading.is_cut or not text[reading.at :].strip():
                return reading
            least = reading.at  # what began within that would end there, too
        return None

    def _each(self, reading: _Reading) -> None:
        """Read calls one by one; `at` stands behind the last that is whole."""
        text, closing = reading.text, (self.closing or self.stop).split()
        while True:
            at = _blank(text, reading.at)
            if reading.calls:
                between = text[at : at + 1]
                at = _blank(text, at + 1) if between and between in f"{self.between.strip()}," else at
                ends = bool(closing) and text.startswith(closing[0], at)
                if at == len(text) or ends or (closing and closing[0].startswith(text[at:])):
                    reading.at = _over(text, at, self.closing or self.stop)
                    return
            reading.at = at
            call, end = self._call(reading, at)
            reading.calls.append(call)
            reading.at = end

    def _list(self, reading: _Reading) -> None:
        """Read a JSON list of calls, or the one call that stands in its place."""
        text = reading.text
        at = _blank(text, reading.at)
        if not text.startswith("[", at):
            self._each(reading)
            return
        reading.at = at + 1
        while True:
            at = _blank(text, reading.at)
            if reading.calls and (at == len(text) or text[at] == "]"):
                reading.at = _over(text, min(at + 1, len(text)), self.closing or self.stop)
                return
            if reading.calls:
                at = _blank(text, _behind(text, at, ","))
            reading.at = at
            call, end = self._call(reading, at)
            reading.calls.append(call)
            reading.at = end

    def _call(self, reading: _Reading, at: int) -> tuple[ToolCall, int]:
        """The call at `at`, and where it ends."""
        text, name, arguments = reading.text, "", dict[str, Any]()
        parts = _HOLES.split(self.call)
        for literal, hole, rest in zip(parts[::2], parts[1::2], parts[2::2], strict=False):
            at = _behind(text, at, literal)
            if hole == "name":
                name, at = _word(text, at)
            elif hole.startswith("any:"):
                at = _upto(text, at, rest)
            elif hole == "object":
                (name, arguments), at = self._object(text, at)
            else:
                read = _ARGUMENTS[hole]
                arguments, at = read(self, reading, at, name, rest)
        at = _behind(text, at, parts[-1])
        spelling = json.dumps(arguments, ensure_ascii=False)
        is_text = half_character(spelling) is None  # else its escapes are
        return ToolCall(name, spelling if is_text else json.dumps(arguments)), at

    def _object(self, text: str, at: int) -> tuple[tuple[str, dict[str, Any]], int]:
        """Name and arguments in a JSON object."""
        value, end = _json_at(text, at)
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = value["function"]  # as OpenAI nests it
        if not isinstance(value, dict):
            raise _NoCall
        if not self.fields[0]:
            ((name, arguments),) = value.items() if len(value) == 1 else [("", None)]
        else:
            name = value.get(self.fields[0], value.get("name"))
            arguments = next((value[key] for key in (self.fields[1], "arguments", "parameters") if key in value), {})
        arguments = _object_in(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict) or half_character(name) is not None:
            raise _NoCall
        return (name, arguments), end

    def _filled(self, name: str, arguments: Mapping[str, Any]) -> str:
        """One call as text."""
        own, key = self.fields
        value = {own: name, key: arguments} if own else {name: arguments}
        parts = _HOLES.split(self.call)
        for at, hole in enumerate(parts):
            if at % 2:
                parts[at] = self._hole(hole, name, arguments, value)
        return "".join(parts)

    def _hole(self, hole: str, name: str, arguments: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
        if hole.startswith("any:"):
            return hole.removeprefix("any:")
        texts: dict[str, Callable[[], str]] = {
            "name": lambda: name,
            "object": lambda: json.dumps(whole, ensure_ascii=False),
            "json": lambda: json.dumps(arguments, ensure_ascii=False),
            "tags": lambda: "".join(self._tag(key, value) for key, value in arguments.items()),
            "python": lambda: ", ".join(f"{key}={value!r}" for key, value in arguments.items()),
            "map": lambda: ",".join(f"{key}:{self._mapped(value)}" for key, value in arguments.items()),
        }
        return texts[hole]()

    def _tag(self, key: str, value: Any) -> str:
        is_text = isinstance(value, str)
        before, after = self.quotes or ("", "")
        text = f"{before}{value}{after}" if is_text else json.dumps(value, ensure_ascii=False)
        holes = {
            "key": key,
            "value": text,
            "string": str(is_text).lower(),
            "type": _type_of(value).replace("integer", "number"),
        }
        return "".join(holes[part] if at % 2 else part for at, part in enumerate(_HOLES.split(self.argument)))

    def _mapped(self, value: Any) -> str:
        if isinstance(value, str):
            before, after = self.quotes or ('"', '"')
            return f"{before}{value}{after}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self._mapped(part)}" for key, part in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._mapped, value)) + "]"
        return json.dumps(value)


@dataclass(slots=True)
class _Reading:
    """The calls from `start` on; `at` is where the last whole one ends, or the incomplete one after it begins."""

    text: str
    start: int
    at: int
    types: Mapping[str, Mapping[str, Collection[str]]]
    calls: list[ToolCall] = field(default_factory=list)
    is_cut: bool = False


class _EndOfText(Exception):
    """The text ends within a call."""


class _NoCall(Exception):
    """What stands here is no call."""


_TRIGGER = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z_]{2,}\]|[^\n{\[]*)")
_NAME = re.compile(r"[\w.-]+")
_BEGIN = re.compile(r'\s*[\[{][\s\[{]*(?:"\w+"\s*:\s*)?"?([\w.-]+)')
_LONGEST_ANY = 200
"""Characters of what may stand between a name and the arguments."""


def holes_of(pattern: str) -> list[str]:
    """The parts of a pattern: text, hole, text, hole, .., text."""
    return _HOLES.split(pattern)


def _types_by_name(tools: Tools) -> Mapping[str, Mapping[str, Collection[str]]]:
    """The types of the arguments of each function, by their names."""
    functions = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return {
        name: {key: types_of(part, schema) for key, part in (schema.get("properties") or {}).items()}
        for name, schema in functions.items()
        if isinstance(schema.get("properties") or {}, Mapping)
    }


def _blank(text: str, start: int) -> int:
    """The first index from `start` on that is not white space."""
    return len(text) - len(text[start:].lstrip()) if text[start : start + 1].isspace() else start


def _behind(text: str, at: int, literal: str) -> int:
    """The place behind `literal`, whose white space may be any."""
    for word in literal.split():
        at = _blank(text, at)
        if not text.startswith(word, at):
            raise _EndOfText if word.startswith(text[at : at + len(word)]) else _NoCall
        at += len(word)
    return at


def _common(left: str, right: str) -> int:
    """How many characters two texts have in common, from the first on."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


def _over(text: str, at: int, closing: str) -> int:
    """The place behind as much of `closing` as there is: the end of what is whole may be missing."""
    for word in closing.split():
        at = _blank(text, at)
        size = _common(word, text[at : at + len(word)])
        if size < len(word) and at + size < len(text):
            return at
        at += size
    return at


def _word(text: str, at: int) -> tuple[str, int]:
    """The name at `at`, and where it ends."""
    at = _blank(text, at)
    match = _NAME.match(text, at)
    if match is None:
        raise _EndOfText if at == len(text) else _NoCall
    return match[0], match.end()


def _upto(text: str, at: int, literal: str) -> int:
    """Where `literal` begins, a few characters from `at` on."""
    word = literal.split()[0]
    end = text.find(word, at, at + _LONGEST_ANY)
    if end < 0:
        raise _EndOfText if len(text) - at < _LONGEST_ANY else _NoCall
    return end


# -- arguments ---------------------------------------------------------------------------------------------------------
_DECODER = json.JSONDecoder(strict=False)
"""Models write programs with plain line ends in a string."""


def _json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON at `at`, and where it ends."""
    at = _blank(text, at)
    if text[at : at + 1] not in ("{", '"', ""):
        raise _NoCall
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as exc:
        raise (_EndOfText if _is_cut(text, exc) else _NoCall) from exc
    except (RecursionError, ValueError) as exc:  # a number of thousands of digits
        raise _NoCall from exc


def _object_in(text: str) -> object:
    """The JSON in a text, as which some models write arguments; None where it is none."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _is_cut(text: str, fault: json.JSONDecodeError) -> bool:
    """Whether JSON is invalid only because `text` ends too early."""
    tail = text[fault.pos : fault.pos + _ESCAPE].rstrip()
    is_last = not text[fault.pos + _ESCAPE :].strip()
    return fault.msg.startswith("Unterminated string") or (
        is_last
        and (
            any(word.startswith(tail) for word in ("true", "false", "null", "-"))
            or ("escape" in fault.msg and len(tail) < _ESCAPE)
        )
    )


_ESCAPE = len("\\u1234")


def _of_json(form: ToolFormat, reading: _Reading, at: int, name: str, rest: str) -> tuple[dict[str, Any], int]:
    value, end = _json_at(reading.text, at)
    value = _object_in(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise _NoCall
    return value, end


def _of_tags(form: ToolFormat, reading: _Reading, at: int, name: str, rest: str) -> tuple[dict[str, Any], int]:
    """Arguments, each in tags of its own, up to `rest`."""
    text, types = reading.text, reading.types.get(name, {})
    parts = _HOLES.split(form.argument)
    head, end = parts[0].split()[0], rest.split()[0]
    values: dict[str, Any] = {}
    while True:
        at = _blank(text, at)
        if text.startswith(end, at) and not (head.startswith(end) and text.startswith(head, at)):
            return values, at
        if at + len(end) > len(text) and end.startswith(text[at:]):
            raise _EndOfText
        key, kind, value = "", "", ""
        for literal, hole, after in zip(parts[::2], parts[1::2], parts[2::2], strict=False):
            at = _behind(text, at, literal)
            if hole == "value":
                value, at = _enclosed(text, at, literal, after, (head, end))
            else:
                match = _KEY.match(text, at)
                if match is None or match.end() == len(text):
                    raise _EndOfText
                key, kind, at = (match[0], kind, match.end()) if hole == "key" else (key, match[0], match.end())
        at = _behind(text, at, parts[-1])
        values[key] = _typed(value, kind, types.get(key, ()), form.quotes)


_KEY = re.compile(r'[^<>"\n]+')


def _enclosed(text: str, at: int, before: str, after: str, follows: tuple[str, str]) -> tuple[str, int]:
    """The value from `at` to the first `after` that an argument or the end of the call follows, and where it ends.

    The line ends that the pattern has around it are not its own.
    """
    close = after.split()[0]
    end = text.find(close, at)
    while end >= 0:
        behind = _blank(text, _ending(text, end, after))
        ahead = text[behind : behind + max(map(len, follows))]
        if any(ahead.startswith(mark) or mark.startswith(ahead) for mark in follows):
            break
        end = text.find(close, end + 1)
    if end < 0:
        raise _EndOfText
    value = text[at:end]
    value = value.removeprefix("\n") if before.endswith("\n") else value
    return (value.removesuffix("\n") if after.startswith("\n") else value), end


def _ending(text: str, at: int, literal: str) -> int:
    """`_behind`, or the first place behind its first word."""
    try:
        return _behind(text, at, literal)
    except _NoCall:
        return at + 1


def _typed(text: str, kind: str, types: Collection[str], quotes: tuple[str, str] | None) -> Any:
    """The value that a text is: of the types of its schema, or of its `kind` where the call says that."""
    if quotes and text.startswith(quotes[0]) and text.endswith(quotes[1]):
        return text[len(quotes[0]) : len(text) - len(quotes[1])]
    types = _TYPES_OF.get(kind, types)
    if types == {"string"}:
        return text
    value = _literal(text.strip())
    if isinstance(value, str) or (types and _type_of(value) not in types and "string" in types):
        return text
    return value


_TYPES_OF: Mapping[str, Collection[str]] = {"true": {"string"}, "string": {"string"}, "false": set()}
"""Types by what a call says of a value; others stand for themselves."""
_NAMES = {"str": "string", "bool": "boolean", "int": "integer", "float": "number", "NoneType": "null", "list": "array"}


def _type_of(value: Any) -> str:
    """The type of a value as a schema names it."""
    return _NAMES.get(type(value).__name__, "object")


def types_of(schema: Any, root: Any = None) -> set[str]:
    """The types that a schema allows; empty where it does not say. `root` has the definitions that it refers to."""
    if not isinstance(schema, Mapping):
        return set()
    own, place = schema.get("type"), schema.get("$ref")
    if isinstance(place, str) and isinstance(root, Mapping):
        table, _, name = place.removeprefix("#/").partition("/")
        part = (root.get(table) or {}).get(name)
        return types_of({**part, "$ref": None}) if isinstance(part, Mapping) else set()
    types = {own} if isinstance(own, str) else set(own) if isinstance(own, list) else set()
    types |= {"integer"} if "number" in types else set()
    if not types:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        types = {_type_of(value) for value in values} if isinstance(values, list) else set()
    parts = (part for name in ("anyOf", "oneOf") for part in schema.get(name) or ())
    return types.union(*(types_of(part, root) for part in parts))


def _literal(text: str) -> Any:
    """The value of a text as JSON or Python has it; the text where it is none."""
    value = _object_in(text)
    if value is not None or text == "null":
        return value
    if text[:1] in "{[(" or text in ("True", "False", "None"):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
    return text


def _of_python(form: ToolFormat, reading: _Reading, at: int, name: str, rest: str) -> tuple[dict[str, Any], int]:
    return _Values(reading.text, form.quotes).pairs(at, "=", rest.split()[0])


def _of_map(form: ToolFormat, reading: _Reading, at: int, name: str, rest: str) -> tuple[dict[str, Any], int]:
    return _Values(reading.text, form.quotes).pairs(at, ":", rest.split()[0][:1])


class _Values:
    """Reads values of Python and of objects with bare keys; quotes that end no value are part of a text."""

    def __init__(self, text: str, quotes: tuple[str, str] | None) -> None:
        self._text, self._quotes = text, quotes

    def pairs(self, at: int, sign: str, end: str) -> tuple[dict[str, Any], int]:
        """Pairs up to `end`, which is not read."""
        text, pairs = self._text, dict[str, Any]()
        while True:
            at = _blank(text, at)
            if text.startswith(end, at):
                return pairs, at
            if pairs:
                at = _blank(text, _behind(text, at, ","))
            if text.startswith(end, at):
                return pairs, at
            key, at = self._key(at)
            at = _behind(text, at, sign)
            pairs[key], at = self.value(at, 0)

    def value(self, at: int, level: int) -> tuple[Any, int]:
        """The value at `at`, and where it ends."""
        at = _blank(self._text, at)
        if level > _DEEPEST or at == len(self._text):
            raise _NoCall if level > _DEEPEST else _EndOfText
        first = self._text[at]
        if self._opens(at):
            return self._string(at)
        if first == "{":
            return self._dict(at + 1, level)
        if first in "[(":
            return self._items(at + 1, "]" if first == "[" else ")", level)
        match = _BARE.match(self._text, at)
        if match is None:
            raise _NoCall
        if match.end() == len(self._text):
            raise _EndOfText
        return _literal(match[0].strip()), match.end()

    def _key(self, at: int) -> tuple[str, int]:
        if at < len(self._text) and self._opens(at):
            return self._string(at)
        match = _BARE_KEY.match(self._text, at)
        if match is None:
            raise _EndOfText if at == len(self._text) else _NoCall
        return match[0].strip(), match.end()

    def _dict(self, at: int, level: int) -> tuple[dict[str, Any], int]:
        text, pairs = self._text, dict[str, Any]()
        while True:
            at = _blank(text, at)
            if text.startswith("}", at):
                return pairs, at + 1
            if pairs:
                at = _blank(text, _behind(text, at, ","))
            key, at = self._key(at)
            at = _behind(text, at, ":")
            pairs[key], at = self.value(at, level + 1)

    def _items(self, at: int, end: str, level: int) -> tuple[list[Any], int]:
        text, items = self._text, list[Any]()
        while True:
            at = _blank(text, at)
            if text.startswith(end, at):
                return items, at + 1
            if items:
                at = _behind(text, at, ",")
                if text.startswith(end, _blank(text, at)):
                    continue
            item, at = self.value(at, level + 1)
            items.append(item)

    def _opens(self, at: int) -> bool:
        own = self._quotes is not None and self._text.startswith(self._quotes[0], at)
        return (
            own
            or (self._quotes is not None and self._quotes[0].startswith(self._text[at:]))
            or (self._text[at] in "\"'")
        )

    def _string(self, at: int) -> tuple[str, int]:
        text = self._text
        if self._quotes is not None and text[at] not in "\"'":
            start = _behind(text, at, self._quotes[0])
            end = text.find(self._quotes[1], start)
            if end < 0:
                raise _EndOfText
            return text[start:end], end + len(self._quotes[1])
        quote = text[at]
        end = at + 1
        while True:
            match = _QUOTES[quote].search(text, end)
            if match is None:
                raise _EndOfText
            end = match.end()
            if match[0] == quote and _ENDS.match(text, end):
                break
        return _unescaped(text[at + 1 : end - 1]), end


_DEEPEST = 100
_BARE = re.compile(r"[^\s,()\[\]{}\"'][^,()\[\]{}\"']*")
_BARE_KEY = re.compile(r"[^\s,:=()\[\]{}\"']+")
_QUOTES = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in "\"'"}
_ENDS = re.compile(r"\s*([,)\]}:]|$)")
_ESCAPES = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}


def _unescaped(text: str) -> str:
    """A text of Python or JSON as it is meant."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        return _PLAIN_ESCAPES.get(code, code if code in "\\'\"/" else f"\\{code}")

    text = _ESCAPES.sub(character, text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_ARGUMENTS: Mapping[str, Callable[[ToolFormat, _Reading, int, str, str], tuple[dict[str, Any], int]]] = {
    "json": _of_json,
    "tags": _of_tags,
    "python": _of_python,
    "map": _of_map,
}


# -- the formats -------------------------------------------------------------------------------------------------------
PLAIN = "plain"
"""The format of templates that present no functions."""
_HERMES = ToolFormat("<tool_call>\n{object}\n</tool_call>", between="\n")
_GLM = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
_DSML = '<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n'
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_HY = "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n"
_STEP = '<steptml:parameter name="{key}">{value}</steptml:parameter>\n'
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    # JSON: Qwen 2.5 and 3, Hermes, SmolLM3, Granite 4, ERNIE; Mistral and Mixtral; Granite 3; Hunyuan, Jamba, Apriel
    "hermes": _HERMES,
    "mistral": ToolFormat("{object}", "[TOOL_CALLS]", listed=True),
    "granite": ToolFormat("{object}", "<|tool_call|>", listed=True),
    "tool_calls": ToolFormat("{object}", "<tool_calls>", "</tool_calls>", listed=True),
    "minimax_m1": ToolFormat("{object}", "<tool_calls>\n", "\n</tool_calls>", "\n"),
    "nemotron": ToolFormat("{object}", "<TOOLCALL>", "</TOOLCALL>", listed=True),
    "command_a": ToolFormat(
        "{object}", "<|START_ACTION|>", "<|END_ACTION|>", fields=("tool_name", "parameters"), listed=True
    ),
    "apertus": ToolFormat("{object}", "<|tools_prefix|>", "<|tools_suffix|>", fields=("", "arguments"), listed=True),
    "internlm": ToolFormat("<|action_start|><|plugin|>\n{object}<|action_end|>"),
    "gigachat3": ToolFormat("<|message_sep|>\n\nfunction call<|role_sep|>\n{object}", several=False),
    "gigachat3_1": ToolFormat("<|function_call|>{object}", stop="<|message_sep|>", several=False),
    "granite_20b": ToolFormat("<function_call> {object}", between="\n"),
    "phi4": ToolFormat("{object}", "functools", listed=True),
    # a name and JSON: Mistral Small 3.2, Devstral, Ministral 3; DeepSeek R1, V3, V3.1; Kimi K2; gpt-oss; Solar
    "mistral_args": ToolFormat("[TOOL_CALLS]{name}{any:}[ARGS]{json}"),
    "deepseek_v3": ToolFormat(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>", *_DEEPSEEK, "\n"
    ),
    "deepseek_v31": ToolFormat("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>", *_DEEPSEEK),
    "kimi_k2": ToolFormat(
        "<|tool_call_begin|>functions.{name}{any::0}<|tool_call_argument_begin|>{json}<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "harmony": ToolFormat(
        " to=functions.{name}{any:<|channel|>commentary json}<|message|>{json}",
        lead="<|channel|>commentary",
        stop="<|call|>",
        several=False,
    ),
    "functionary": ToolFormat("<function={name}>{json}</function>"),
    "solar": ToolFormat(
        "<|tool_call:begin|>{any:0}<|tool_call:name|>{name}<|tool_call:args|>{json}<|tool_call:end|>",
        "<|tool_calls|>",
        stop="<|calls|>",
    ),
    # tags: Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5; GLM, Spark; Seed; MiniMax M2; DeepSeek V3.2, V4; Hunyuan 3
    "qwen3_coder": ToolFormat(
        "<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>",
        between="\n",
        argument="<parameter={key}>\n{value}\n</parameter>\n",
    ),
    "glm": ToolFormat("<tool_call>{name}\n{tags}</tool_call>", between="\n", argument=_GLM),
    "glm_4_7": ToolFormat("<tool_call>{name}{tags}</tool_call>", argument=_GLM.replace("\n", "")),
    "seed": ToolFormat(
        "<seed:tool_call>\n<function={name}>\n{tags}</function>\n</seed:tool_call>",
        between="\n",
        argument="<parameter={key}>{value}</parameter>\n",
    ),
    "minimax_m2": ToolFormat(
        '<invoke name="{name}">\n{tags}</invoke>\n',
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
        argument='<parameter name="{key}">{value}</parameter>\n',
    ),
    "deepseek_v32": ToolFormat(
        '<｜DSML｜invoke name="{name}">\n{tags}</｜DSML｜invoke>\n',
        "<｜DSML｜function_calls>\n",
        "</｜DSML｜function_calls>",
        argument=_DSML,
    ),
    "deepseek_v4": ToolFormat(
        '<｜DSML｜invoke name="{name}">\n{tags}</｜DSML｜invoke>\n',
        "<｜DSML｜tool_calls>\n",
        "</｜DSML｜tool_calls>",
        argument=_DSML,
    ),
    "hunyuan_3": ToolFormat(
        "<tool_call:opensource>{name}<tool_sep:opensource>\n{tags}</tool_call:opensource>\n",
        "<tool_calls:opensource>\n",
        "</tool_calls:opensource>",
        argument=_HY,
    ),
    "step_3": ToolFormat(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n{tags}</steptml:invoke>'
        "<｜tool_call_end｜>\n",
        "<｜tool_calls_begin｜>\n",
        "<｜tool_calls_end｜>",
        argument=_STEP,
    ),
    "minicpm5": ToolFormat(
        '<function name="{name}">{tags}</function>',
        between="\n",
        argument='<param name="{key}">{value}</param>',
        quotes=("<![CDATA[", "]]>"),
    ),
    "kimi_k3": ToolFormat(
        '<|open|>call tool="{name}" index="{any:1}"<|sep|>{tags}<|close|>call<|sep|>',
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        argument='<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
        lead="<|close|>response<|sep|>",
    ),
    # Python and JavaScript: LFM2; Olmo 3; Gemma 4; FunctionGemma
    "lfm2": ToolFormat("{name}({python})", "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "olmo3": ToolFormat("{name}({python})", "<function_calls>", "</function_calls>", "\n"),
    "gemma4": ToolFormat("<|tool_call>call:{name}{{map}}<tool_call|>", quotes=('<|"|>', '<|"|>')),
    "functiongemma": ToolFormat(
        "<start_function_call>call:{name}{{map}}<end_function_call>", quotes=("<escape>", "<escape>")
    ),
    # without a mark, as the whole answer: Llama 3.1 and later; xLAM; the small Llama 3.2, Llama 4, Gemma 3
    "llama3": ToolFormat("{object}", between="; ", fields=("name", "parameters"), prefix="<|python_tag|>"),
    "json": ToolFormat("{object}", between="; "),
    "json_list": ToolFormat("{object}", listed=True),
    "pythonic": ToolFormat("{name}({python})", "[", "]", ", ", prefix="<|python_start|>"),
    PLAIN: _HERMES,
}
"""By name. Where several read what a template writes, the first that writes the same is the model's."""


# -- which of them a model has -----------------------------------------------------------------------------------------
class Writing(NamedTuple):
    """How a template writes calls: the name of a format, "" for one that is not read here.

    And what it expects of a turn with calls: no content instead of an empty one, arguments as text, or the calls as
    words of the turn, because it writes none.
    """

    name: str
    content: str | None = ""
    as_text: bool = False
    in_words: bool = False


_PROBE, _VALUE = "ttcprobe", "ttcvalue"
"""A function and its argument, in words that no template has."""
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]


def writing_of(template: str, marks: Collection[str], render: Render) -> Writing:
    """How the model of a chat template writes calls.

    `render` applies the template to turns and functions and raises ConfigError where it refuses them; `marks` are the
    control tokens of the vocabulary.
    """
    if not shows_tools(template):
        return Writing(PLAIN)
    properties = {"input": {"type": "string", "description": "?"}}
    schema = {"type": "object", "properties": properties, "required": ["input"]}
    offer = [{"type": "function", "function": {"name": _PROBE, "description": "?", "parameters": schema}}]
    question = {"role": "user", "content": "?"}
    call = ToolCall(_PROBE, json.dumps({"input": _VALUE}), "call00000")
    try:
        text = render([question], offer)
    except ConfigError:
        return Writing("")
    if _PROBE not in text:  # it has the word, but presents none
        return Writing(PLAIN)
    own = [name for name in TOOL_FORMATS if name != PLAIN]
    hints = [name for name in own if (mark := TOOL_FORMATS[name].trigger) and mark in text]
    writes = False
    for as_text, content in itertools.product((False, True), ("", None)):
        writing = Writing("", content, as_text)
        try:
            dialogue = render([question, *turns_of([ToolMessage("assistant", "", (call,))], writing=writing)], offer)
            other = render([question, {"role": "assistant", "content": _VALUE.upper()}], offer)
        except ConfigError:  # the template refuses such a turn
            continue
        writes = writes or _VALUE in dialogue
        size = _common(dialogue, other)
        head = other[size:].partition(_VALUE.upper())[0].strip()
        turn = dialogue[size:].lstrip().removeprefix(head)
        names = [name for name in own if _reads(TOOL_FORMATS[name], dialogue, size, turn)]
        names = [name for name in names if TOOL_FORMATS[name].write((call,)) in dialogue] or names
        if names:  # a mark that the template tells the model of, and does not write itself, is more than none
            return writing._replace(name=names[0] if TOOL_FORMATS[names[0]].trigger else [*hints, names[0]][0])
    if writes:
        return Writing("")
    # The template writes no call: what it tells the model decides, then what the vocabulary has a token for.
    names = [*hints, *(name for name in own if TOOL_FORMATS[name].trigger in marks)]
    return Writing(names[0], in_words=True) if names else Writing(PLAIN)


def _reads(form: ToolFormat, dialogue: str, size: int, turn: str) -> bool:
    """Whether a format reads the call in the last turn: `turn`, about `size` characters into `dialogue`."""
    if form.trigger:
        at = dialogue.find(form.trigger, max(size - len(form.trigger), 0))
        return at >= 0 and _is_probe(form, dialogue, at)
    return any(_is_probe(form, turn, start) for start in form.starts(turn))


def _is_probe(form: ToolFormat, text: str, at: int) -> bool:
    """Whether the call at `at` is that of the probe."""
    calls = form.parse(text, at).calls
    return bool(calls) and calls[0].name == _PROBE and json.loads(calls[0].arguments) == {"input": _VALUE}


def shows_tools(template: str | None) -> bool:
    """Whether a chat template presents functions itself."""
    return "tools" in (template or "")


def texts_of(message: Message) -> list[str]:
    """All texts in a message."""
    calls = message.calls if isinstance(message, ToolMessage) else ()
    return [message.content, *(text for call in calls for text in (call.name, call.arguments))]


def turns_of(
    messages: Sequence[Message], spell: Callable[[str], str] = str, writing: Writing | None = None
) -> list[dict[str, Any]]:
    """`messages` as chat templates expect them, with `spell` applied to every text.

    Arguments are objects unless `writing` says otherwise.
    """
    return [_turn(message, spell, writing or Writing(PLAIN)) for message in messages]


def _turn(message: Message, spell: Callable[[str], str], writing: Writing) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": spell(message.content)}
    if not isinstance(message, ToolMessage):
        return turn
    if message.calls and writing.in_words:
        calls = [ToolCall(spell(call.name), spell(call.arguments)) for call in message.calls]
        words = TOOL_FORMATS[writing.name].write(calls)
        turn["content"] = "\n".join([turn["content"], words]) if turn["content"] else words
    elif message.calls:
        turn["content"] = turn["content"] or writing.content
        turn["tool_calls"] = [_function(call, spell, as_text=writing.as_text) for call in message.calls]
    if message.call_id:
        turn["tool_call_id"] = message.call_id
    return turn


def _function(call: ToolCall, spell: Callable[[str], str], *, as_text: bool) -> dict[str, Any]:
    text = spell(call.arguments)
    function = {"name": spell(call.name), "arguments": text if as_text else json.loads(text)}
    return {"id": call.id, "type": "function", "function": function}


_OFFER = """You are a function calling AI model. You are provided with function signatures within <tools></tools> XML \
tags. You may call one or more functions to assist with the user query. Don't make assumptions about what values to \
plug into functions.
<tools>
{tools}
</tools>
For each function call return a json object with function name and arguments within <tool_call></tool_call> XML tags \
as follows:
<tool_call>
{{"name": <function-name>, "arguments": <args-dict>}}
</tool_call>"""


def plain_turns(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`turns` for a template without functions: calls and results become text, in the Hermes format."""
    plain: list[dict[str, Any]] = []
    for before, turn in zip([{"role": ""}, *turns], turns, strict=False):
        if turn["role"] == before["role"] == "tool":  # templates expect alternating speakers
            plain[-1]["content"] += "\n" + _plain_turn(turn)["content"]
        else:
            plain.append(_plain_turn(turn))
    if not tools:
        return plain
    offer = _OFFER.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{offer}"}, *plain[1:]]
    return [{"role": "system", "content": offer}, *plain]


def _plain_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in turn.get("tool_calls", ())]
    blocks = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return {"role": turn["role"], "content": "\n".join([*([turn["content"]] if turn["content"] else []), *blocks])}
