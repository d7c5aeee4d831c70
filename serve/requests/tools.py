"""What an answer may be besides text: calls of the client's functions, JSON by its schema.

A form becomes a grammar (`AnswerForm.grammar`), which the engine holds while it samples, and reads the answer back
(`read`). A thought before the answer is free. Calls are written as the model's own family writes them
(`ttc.toolformats`); with `auto` the model decides, and text that does not begin a call is free. A schema is held
whether or not it is called strict; one that the grammar library cannot hold (`serve.requests.schemas`) is refused where
it is strict, and is any object where it is not. White space within JSON is fixed, so that no model wanders off in it.
Left out: functions of a form without JSON, and custom tools with grammars of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serve.requests.errors import invalid
from serve.requests.schemas import check_together, holdable, joined, json_rule, names_others, rooted, unheld
from ttc.answers.kinds import kind_of, same_form
from ttc.core import Message, ToolCall, ToolMessage, Tools, half_character
from ttc.toolformats.notation import ToolFormat, holes_of, types_of

ToolChoice = Literal["auto", "none", "required"]
# OpenAI takes 64 characters, and Anthropic twice as many: names of MCP servers and of their functions together.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_BLANK = r"BLANK: /[ \n]{0,4}/"
_TEXT = r"TEXT: /(.|\n)*/"
_FORM = "structured"
"""The answer kind of calls and JSON."""
_WORDS = r"WORDS: /[^{\[ \n](.|\n)*/"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Functions that may be called, and whether one must be; `schema` is of an answer in JSON.

    `named` is the one function that must be called.
    """

    tools: Tools = ()
    choice: ToolChoice = "auto"
    named: str | None = None
    parallel: bool = True
    schema: Mapping[str, Any] | None = None
    strict: bool = False
    schema_field: str = "response_format"

    @property
    def offer(self) -> Tools:
        """The functions that the model is shown: none where it may call none."""
        return () if self.choice == "none" else self.tools

    @property
    def held(self) -> bool:
        """Whether a grammar holds the answer."""
        return bool(self.offer) or self.schema is not None

    @property
    def field(self) -> str:
        """The request field that asks for it."""
        return "tools" if self.tools else self.schema_field if self.schema is not None else "messages"

    def grammar(
        self, form: ToolFormat, encode: Callable[[str], tuple[int, ...]], stops: Sequence[str] = ()
    ) -> str | None:
        """The grammar of the answer, for a model that writes calls in `form`; None where it is free.

        Text beside functions ends at the first of `stops`, which no engine could keep out of a call.

        Raises:
            ApiError: a schema that no grammar can hold; names its field.
        """
        if not self.held:
            return None
        schema = None if self.schema is None else holdable(self.schema, self.strict, self.schema_field)
        if not self.offer:
            return joined("start: BLANK answer", f"answer: {json_rule(schema)}", _BLANK)
        return self._calls(form, encode, schema, stops)

    def read(self, form: ToolFormat, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The text of an answer, and its calls: JSON with a name that is no function of these is text."""
        before, calls = form.read(text, self.offer)
        names = {tool["function"]["name"] for tool in self.offer}
        return (before, calls) if all(call.name in names for call in calls) else (text, ())

    def free(self, form: ToolFormat, text: str) -> int:
        """How many characters of an answer are no call, whole or cut, and no JSON: stop strings are about those."""
        if self.schema is not None:
            return 0
        if not self.offer:
            return len(text)
        if form.trigger:
            return text.find(form.trigger) if form.trigger in text else len(text)
        return 0 if form.may_begin(text) else len(text)

    def cut(self, form: ToolFormat, text: str) -> str:
        """The beginning of a last call that was cut after whole ones; "" without one."""
        return form.cut(text) if self.read(form, text)[1] else ""

    def _calls(
        self, form: ToolFormat, encode: Callable[[str], tuple[int, ...]], schema: Any, stops: Sequence[str]
    ) -> str:
        """The grammar where functions may be called."""
        functions = [_held(tool["function"]) for tool in self.offer if self.named in (None, tool["function"]["name"])]
        check_together([function["parameters"] for function in functions], "tools")
        mark, rules = form.trigger, [*_CallRules(form, encode, self.parallel).of(functions), _BLANK]
        whole = f"{_mark(mark, encode)} body" if mark else "body"
        if self.choice == "required":
            return joined(f"start: BLANK {whole}", *rules)
        if schema is not None:
            return joined(f"start: BLANK ({whole} | answer)", f"answer: {json_rule(schema)}", *rules)
        stops = [stop for stop in stops if not mark or (stop not in mark and mark not in stop)]
        ends = "(" + " | ".join(map(_quoted, stops)) + ")"
        if not mark:
            stopped = [f"stopped[lazy]: WORDS {ends}"] if stops else []
            start = f"start: BLANK (body | WORDS{' | stopped' if stops else ''})"
            return joined(start, _WORDS, *stopped, *rules)
        # A lazy lexeme ends at the first mark and excludes all others: once a call has begun, it must be one.
        heads = [f"head[lazy]: TEXT {_quoted(mark)}", *_special(mark, encode, "special: TEXT {}")]
        start = "start: (head | special) body | TEXT" if len(heads) > 1 else "start: head body | TEXT"
        if stops:
            start, heads = f"{start} | stopped", [*heads, f"stopped[lazy]: TEXT {ends}"]
        return joined(start, *heads, _TEXT, *rules)


@dataclass(frozen=True, slots=True)
class _CallRules:
    """The rules of a grammar for calls in a format: `body` is all calls of a turn without the mark that starts them."""

    form: ToolFormat
    encode: Callable[[str], tuple[int, ...]]
    parallel: bool

    def of(self, functions: Sequence[Mapping[str, Any]]) -> list[str]:
        """The rules for calls of `functions`."""
        form, more = self.form, ""
        opening, first = form.opening, "call"
        rules = []
        if form.listed:
            list_schema = {"minItems": 1, **({} if self.parallel else {"maxItems": 1})}
            items = self._objects(functions, "/items/anyOf")
            rules.append(f"call: {json_rule({'type': 'array', 'items': {'anyOf': items}, **list_schema})}")
        else:
            if "{object}" in form.call:
                rules.append(f"value: {json_rule({'anyOf': self._objects(functions, '/anyOf')})}")
            texts = [self._call(number, function, rules) for number, function in enumerate(functions)]
            if not opening and form.trigger:  # each call begins with the mark, and that of the first has been read
                first = "unmarked"
                rules.append("unmarked: " + " | ".join(texts))
                rules.append(f"call: {_mark(form.trigger, self.encode)} unmarked")
            else:
                rules.append("call: " + " | ".join(texts))
            more = f"({self._text(form.between)} call)*" if self.parallel and form.several else ""
        behind = opening.lstrip().removeprefix(form.trigger)
        return [f"body: {self._text(behind)} {first} {more} {self._text(form.closing)}", *rules]

    def _objects(self, functions: Sequence[Mapping[str, Any]], root: str) -> list[dict[str, Any]]:
        """The schemas of calls that are JSON objects, which stand at `root` of the whole."""
        return [_call(function, self.form.fields, f"{root}/{i}") for i, function in enumerate(functions)]

    def _call(self, number: int, function: Mapping[str, Any], rules: list[str]) -> str:
        """One call of a function, without the mark where it begins with that; its rules are added to `rules`."""
        parts = holes_of(self.form.call)
        if not self.form.opening:
            parts[0] = parts[0].lstrip().removeprefix(self.form.trigger)
        texts = [self._text(part) for part in parts]
        for at, hole in list(enumerate(parts))[1::2]:
            if hole == "object":
                texts[at] = "value"
            elif hole == "name":
                texts[at] = _quoted(function["name"])
            elif hole.startswith("any:"):
                texts[at] = self._text(hole.removeprefix("any:"))
            else:
                rules += self._arguments(f"arguments{number}", hole, function)
                texts[at] = f"arguments{number}"
        return " ".join(text for text in texts if text)

    def _arguments(self, rule: str, hole: str, function: Mapping[str, Any]) -> list[str]:
        """The rules of a function's arguments, as a hole has them."""
        schema, place, is_strict = function["parameters"], _place(function), bool(function.get("strict"))
        if hole == "json":
            return [f"{rule}: {json_rule(schema)}"]
        properties = schema.get("properties", {} if schema.get("additionalProperties") is False else None)
        if not isinstance(properties, Mapping) or names_others(schema):
            if is_strict:
                raise unheld(place, "this model writes arguments one by one, so all must stand in properties")
            return self._free(rule, hole)
        text_name = next((name for name, part in properties.items() if _is_shaped(part)), None)
        if is_strict and text_name is not None and hole != "python":
            raise unheld(place, f"{text_name} has a pattern, format or length, and this model's texts have no quotes")
        required = schema.get("required")
        needs = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        rules, names = [], []
        for number, (name, part) in enumerate(properties.items()):
            whole = {**part, **definitions} if isinstance(part, Mapping) else part
            names.append((f"{rule}x{number}", name in needs))
            rules += self._argument(names[-1][0], hole, name, whole)
        return [*_sequence(rule, names, {"tags": "", "python": ", ", "map": ","}[hole]), *rules]

    def _argument(self, rule: str, hole: str, name: str, schema: Any) -> list[str]:
        """The rules of one argument."""
        types = types_of(schema, schema)
        if hole != "tags":
            sign = "=" if hole == "python" else ":"
            before, after = self.form.quotes or ("", "")
            if hole == "python":
                words = " | ".join([f"{rule}j", *_python_words(types, schema)])
                return [f"{rule}: {_quoted(name + sign)} ({words})", f"{rule}j: {json_rule(schema)}"]
            if not before or types != {"string"}:
                return [f"{rule}: {_quoted(name + sign)} {rule}v", f"{rule}v: {json_rule(schema)}"]
            text, rules = self._quoted_text(f"{rule}v", schema, after)
            return [f"{rule}: {_quoted(name + sign)} {self._text(before)} {text}", *rules]
        parts = holes_of(self.form.argument)
        kinds = {
            "key": name,
            "string": str(types == {"string"}).lower(),
            "type": (sorted(types - {"integer"}) or ["number" if types else "string"])[0],
        }
        before, after = self.form.quotes or ("", "")
        is_text = "string" in types or not types
        before, after = (before, after) if is_text else ("", "")
        texts = [
            _quoted(kinds[part]) if at % 2 and part in kinds else self._text(part) for at, part in enumerate(parts)
        ]
        at = parts.index("value")
        if not is_text:
            texts[at] = f"{rule}v"
            return [f"{rule}: {' '.join(text for text in texts if text)}", f"{rule}v: {json_rule(schema)}"]
        value, rules = self._quoted_text(f"{rule}v", schema if types == {"string"} else {}, after + parts[at + 1])
        head = [*texts[:at], self._text(before)]
        texts = [*head, value, *texts[at + 2 :]]
        return [f"{rule}: {' '.join(text for text in texts if text)}", *rules]

    def _quoted_text(self, rule: str, schema: Any, end: str) -> tuple[str, list[str]]:
        """What stands for a text and its `end`, and the rules of that: one of the texts of its enum, or any."""
        constants = [schema["const"]] if isinstance(schema, Mapping) and "const" in schema else []
        values = constants or (schema.get("enum") if isinstance(schema, Mapping) else None) or ()
        if values:
            return f"({' | '.join(_quoted(str(value)) for value in values)}) {self._text(end)}", []
        mark = _TOKEN.search(end)
        rules = [f"{rule}[lazy]: /(.|\n)*/ {_quoted(end)}"]
        special = [] if mark is None else _special(mark[0], self.encode, f"{rule}s: {rule.upper()}T {{}} ")
        if mark is None or not special:
            return rule, rules
        rest = self._text(end[mark.end() :])
        return f"({rule} | {rule}s {rest})", [*rules, *special, f"{rule.upper()}T: /(.|\n)*/"]

    def _free(self, rule: str, hole: str) -> list[str]:
        """The rules of arguments that no schema names."""
        key = "KEY: /[A-Za-z_][A-Za-z0-9_.-]*/"
        if hole != "tags":
            sign, comma = ("=", ", ") if hole == "python" else (":", ",")
            pair = f'{rule}x: KEY "{sign}" {rule}v'
            return [
                f'{rule}: ({rule}x ("{comma}" {rule}x)*)?',
                pair,
                f"{rule}v: {json_rule({})}",
                f"{rule.upper()}{key}",
            ]
        parts = holes_of(self.form.argument)
        kinds = {"key": f"{rule.upper()}KEY", "string": '"false"', "type": '"object"'}
        texts = [kinds[part] if at % 2 and part in kinds else self._text(part) for at, part in enumerate(parts)]
        texts[parts.index("value")] = f"{rule}v"
        names = " ".join(text for text in texts if text)
        return [f"{rule}: {rule}x*", f"{rule}x: {names}", f"{rule}v: {json_rule({})}", f"{rule.upper()}{key}"]

    def _text(self, text: str) -> str:
        """A literal, each mark in it as characters or as the token that it is in this vocabulary."""
        pieces = [piece for piece in _TOKEN.split(text) if piece]
        return " ".join(_mark(piece, self.encode) if _TOKEN.fullmatch(piece) else _quoted(piece) for piece in pieces)


_TOKEN = re.compile(r"(<[^<>\s]+>|\[[A-Z_]{2,}\])")
"""Texts that are one token in some vocabularies."""


def _sequence(rule: str, names: Sequence[tuple[str, bool]], comma: str) -> list[str]:
    """`rule`: the rules of `names` in their order, with commas; those that are not required may be left out."""
    if not comma or not names:
        return [f"{rule}: " + (" ".join(name if needed else f"{name}?" for name, needed in names) or '""')]
    rules = []
    for number, (name, needed) in enumerate(names):
        first, later = (f"{rule}{kind}{number + 1}" if number + 1 < len(names) else '""' for kind in ("f", "m"))
        rules.append(f"{rule}f{number}: {name} {later}" + ("" if needed else f" | {first}"))
        rules.append(f'{rule}m{number}: "{comma}" {name} {later}' + ("" if needed else f" | {later}"))
    return [f"{rule}: {rule}f0", *rules]


def _python_words(types: Collection[str], schema: Any) -> list[str]:
    """Values that Python writes in another way than JSON."""
    texts = schema.get("enum", [schema["const"]] if "const" in schema else ()) if isinstance(schema, Mapping) else ()
    words = [_quoted(repr(text)) for text in texts if isinstance(text, str)]
    words += ["/'([^'\\\\]|\\\\.)*'/"] if "string" in types and not texts and not _is_shaped(schema) else []
    words += ['"True"', '"False"'] if "boolean" in types and not texts else []
    return words + (['"None"'] if "null" in types and not texts else [])


def _is_shaped(schema: Any) -> bool:
    """Whether a schema wants texts of a form or a length."""
    names = ("pattern", "format", "minLength", "maxLength")
    return isinstance(schema, Mapping) and "string" in types_of(schema) and any(name in schema for name in names)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _special(mark: str, encode: Callable[[str], tuple[int, ...]], rule: str) -> list[str]:
    """`rule` with the token that `mark` is in this vocabulary, where it is one."""
    ids = encode(mark)
    return [rule.format(f"<[{ids[0]}]>")] if len(ids) == 1 else []


def _mark(mark: str, encode: Callable[[str], tuple[int, ...]]) -> str:
    return "(" + " | ".join([_quoted(mark), *_special(mark, encode, "{}")]) + ")"


def _held(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function with the schema that its arguments are held to: those that it does not name are none.

    Where its schema is made of others, those name them.
    """
    own = function.get("parameters") or {"type": "object", "properties": {}}
    schema = {**({} if names_others(own) else _CLOSED), **own}
    return {**function, "parameters": holdable(schema, bool(function.get("strict")), _place(function))}


def _place(function: Mapping[str, Any]) -> str:
    return f"tools: the parameters of {function['name']}"


def _call(function: Mapping[str, Any], fields: tuple[str, str], root: str) -> dict[str, Any]:
    """The schema of one call, which stands at `root` of the whole."""
    name, arguments = fields if fields[0] else ("", function["name"])
    constant = {name: {"const": function["name"]}} if name else {}
    return {
        "type": "object",
        "properties": {**constant, arguments: rooted(function["parameters"], f"{root}/properties/{arguments}")},
        "required": [*constant, arguments],
        "additionalProperties": False,
    }


_CLOSED: Mapping[str, Any] = {"additionalProperties": False}


@dataclass(frozen=True, slots=True)
class FormReader:
    """How answers that may be calls or JSON are read and grouped: by their values, words as answers of kind `words`.

    Implements `ttc.core.AnswerReader`. Calls are in the format `form`, and of `tools`.
    """

    words: str
    form: ToolFormat | None = None
    tools: Tools = ()

    def final(self, text: str) -> str | None:
        """The calls or the JSON in one spelling, the final answer of words, or else the words themselves."""
        calls = self.form.read(text, self.tools)[1] if self.form is not None and self.tools else ()
        values = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return same_form("; ".join(values) or text) or kind_of(self.words).final(text) or text.strip() or None

    def key(self, final: str) -> str:
        """The class that a final answer votes in."""
        is_form = final.startswith("{") and same_form(final) == final
        return kind_of(_FORM if is_form else self.words).key(final)


def read_tools(
    tools: Sequence[Mapping[str, Any]] | None,
    name_field: str = "function.name",
    schema_field: str = "function.parameters",
) -> Tools:
    """The functions of a request, checked; raises ApiError naming the first that is none.

    The fields are where the dialect has name and schema of a function.
    """
    names: set[str] = set()
    for number, tool in enumerate(tools or ()):
        place = f"tools[{number}]"
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise invalid(place, f"{place} must be {{type: 'function', function: {{name, parameters}}}}")
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise invalid(f"{place}.{name_field}", f"{place}.{name_field} must match {_NAME.pattern}")
        if name in names:
            raise invalid(f"{place}.{name_field}", f"{place}.{name_field}: {name} stands there twice")
        if parameters is not None and (
            not isinstance(parameters, dict) or parameters.get("type", "object") != "object"
        ):
            field = f"{place}.{schema_field}"
            raise invalid(field, f"{field} must be a JSON Schema of type object")
        names.add(name)
    return tuple(tools or ())


def is_allowance(choice: Any) -> bool:
    """Whether a choice names some of the functions as allowed (OpenAI's `allowed_tools`)."""
    return isinstance(choice, Mapping) and choice.get("type") == "allowed_tools"


def read_choice(choice: Any, tools: Tools) -> tuple[Tools, ToolChoice, str | None]:
    """The functions that may be called, whether one must be, and which; raises ApiError for a choice of others.

    The model is shown those that are allowed and no others.
    """
    if choice is None or choice in ("auto", "none"):
        return tools, choice or "auto", None
    if not tools:
        raise invalid("tool_choice", "tool_choice needs tools")
    if choice in ("required", "any"):
        return tools, "required", None
    if is_allowance(choice):
        return _allowed(choice.get("allowed_tools", choice), tools)
    name = _name_of(choice)
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        known = ", ".join(names)
        raise invalid("tool_choice", f"tool_choice must be auto, none, required or one of the functions {known}")
    return tools, "required", name


def _allowed(allowance: Any, tools: Tools) -> tuple[Tools, ToolChoice, str | None]:
    """What `read_choice` returns for a choice among allowed functions, which Responses does not nest."""
    mode = allowance.get("mode") if isinstance(allowance, Mapping) else None
    if mode not in ("auto", "required"):
        raise invalid("tool_choice", "tool_choice: allowed_tools must have the mode auto or required")
    known = {tool["function"]["name"]: tool for tool in tools}
    entries = allowance.get("tools")
    names = [_name_of(entry) for entry in entries] if isinstance(entries, list) else []
    if not names or any(name not in known for name in names):
        raise invalid("tool_choice", f"tool_choice: allowed_tools must list some of the functions {', '.join(known)}")
    return tuple(tool for name, tool in known.items() if name in names), mode, None


def _name_of(entry: Any) -> str | None:
    """The function that an entry names, nested as in chats or not."""
    function = entry.get("function", entry) if isinstance(entry, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def function_tool(tool: Mapping[str, Any], schema_field: str) -> dict[str, Any]:
    """A function of a dialect that does not nest it, as OpenAI's chat has it; its schema stands in `schema_field`."""
    names = {"name": "name", "description": "description", schema_field: "parameters", "strict": "strict"}
    function = {name: tool[own] for own, name in names.items() if tool.get(own) is not None}
    return {"type": "function", "function": function}


def forward_of(form: AnswerForm | None, messages: Sequence[Message]) -> dict[str, Any]:
    """The fields for an upstream server, in OpenAI's form; empty if only text is requested."""
    if form is None:
        return {}
    body: dict[str, Any] = {"messages": [_sent(message) for message in messages]}
    if form.tools:
        named = {"type": "function", "function": {"name": form.named}}
        body |= {"tools": list(form.tools), "tool_choice": form.choice if form.named is None else named}
        body |= {} if form.parallel else {"parallel_tool_calls": False}
    if form.schema is not None:
        schema = {"name": "answer", "schema": form.schema, "strict": form.strict}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _sent(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if isinstance(message, ToolMessage):
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
        turn |= {"tool_calls": calls} if calls else {}
        turn |= {"tool_call_id": message.call_id} if message.call_id else {}
    return turn


def call_of(name: str, arguments: str, name_id: str, place: str) -> ToolCall:
    """A call of an earlier turn, its arguments as they came: an upstream server may have written what is no JSON.

    Raises:
        ApiError: they hold half of a character.
    """
    if half_character(_unescaped(arguments)) is not None:
        raise invalid(place, f"{place}: the arguments of {name} hold half of a character, which is no text")
    return ToolCall(name, arguments or "{}", name_id)


def _unescaped(arguments: str) -> str:
    """The text of arguments with what JSON escapes; as it is where it is none."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def check_calls(messages: Sequence[Message]) -> None:
    """Refuse calls of earlier turns that a chat template cannot show; raises ApiError."""
    for call in (call for message in messages if isinstance(message, ToolMessage) for call in message.calls):
        what = f"messages: the arguments of {call.name} (call {call.id})"
        try:
            value = json.loads(call.arguments)
        except (ValueError, RecursionError) as exc:
            raise invalid("messages", f"{what} are no JSON, so this model cannot be shown them: {exc}") from exc
        if not isinstance(value, dict):
            raise invalid("messages", f"{what} must be a JSON object")
