"""One format of function calls: the text of a call with holes in it, from which reading and writing are derived.

Calls need not have been written under a grammar: what cannot be read is text. Where a format has no types, arguments
have those of the function's schema.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc.core import ToolCall, Tools, half_character

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
    before calls without an opening, and a `lead` before others: neither is part of the answer's words. `stop` may end a
    turn of calls, such as an end of sequence. Not `several`: a turn has one.
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
        for mark in filter(None, (self.lead, self.prefix)):
            if before.rstrip().endswith(mark):
                before = before.rstrip().removesuffix(mark)
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
                    reading.at = self._over_end(text, at)
                    return
            reading.at = at
            call, end = self._call(reading, at)
            reading.calls.append(call)
            reading.at = end

    def _over_end(self, text: str, at: int) -> int:
        """The place behind what ends the calls, as much of it as there is."""
        return _over(text, _over(text, at, self.closing), self.stop)

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
                reading.at = self._over_end(text, min(at + 1, len(text)))
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
        try:
            spelling = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except ValueError as exc:  # NaN, or a number beyond all floats
            raise _NoCall from exc
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


def common_size(left: str, right: str) -> int:
    """How many characters two texts have in common, from the first on."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


def _over(text: str, at: int, closing: str) -> int:
    """The place behind as much of `closing` as there is: the end of what is whole may be missing."""
    for word in closing.split():
        at = _blank(text, at)
        size = common_size(word, text[at : at + len(word)])
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
            value = ast.literal_eval(text)
            json.dumps(value)  # a set, bytes and others are no values of JSON
            return value
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
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

    def pairs(self, at: int, sign: str, end: str, level: int = 0) -> tuple[dict[str, Any], int]:
        """Pairs up to `end`, which is not read; their values lie within `level` others."""
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
            pairs[key], at = self.value(at, level)

    def value(self, at: int, level: int) -> tuple[Any, int]:
        """The value at `at`, and where it ends."""
        at = _blank(self._text, at)
        if level > _DEEPEST or at == len(self._text):
            raise _NoCall if level > _DEEPEST else _EndOfText
        first = self._text[at]
        if self._opens(at):
            return self._string(at)
        if first == "{":
            pairs, at = self.pairs(at + 1, ":", "}", level + 1)
            return pairs, at + 1
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
