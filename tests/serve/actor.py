"""A model for agents that answers at once by a script, in the packaged model's tokens and under any grammar.

It calls a function that it was offered, goes on with the result, and writes JSON by its schema. What it says is walked
through llguidance token by token, so a grammar that does not allow it is an error. It reads nothing but the rendered
prompt, as a model does; so it may stand behind a server that passes ids on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ttc import nano
from ttc.core import Completion, ExtraCapabilities, ExtraSampling, Prompt, Sampling, Usage, UsageSink
from ttc.engines.embedded.core.guide import Guides
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import OnTokens, StreamingTokenEngine
from ttc.errors import ConfigError

CONTEXT = 1 << 17
THOUGHT = "I look at what is there."
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>|^Observation", re.MULTILINE)
"""A result, as a template shows it or as an agent words it itself."""
_SUM = re.compile(r"(\d+)\s*\+\s*(\d+)")
_FILE = re.compile(r"^(\S+\.py)$", re.MULTILINE)
_KEYS = re.compile(r"`(\w+)`(?: \(must be formatted as a valid Python (\w+)\))?")
_FIELDS = re.compile(r"\[\[ ## (\w+) ## \]\]")


class ScriptedActor(StreamingTokenEngine):
    """Says what `said` tells, one token at a time."""

    def __init__(self) -> None:
        """The tokenizer and the template are the packaged model's; it has no weights."""
        text = Text(nano.path("teacher"))
        super().__init__(
            text,
            ExtraCapabilities(
                model="actor",
                max_context=CONTEXT,
                logprobs=True,
                think_open=text.think_open,
                think_close=text.think_close,
                eos_ids=text.eos_ids,
                handover=text.handover,
                extras=frozenset({"grammar"}),
            ),
        )
        self._guides = Guides(text, text.size)

    async def _draws(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> list[Completion]:
        ids = self._check(prompt, sampling)
        return [self._draw(ids, prompt, sampling, draw, on_usage, on_tokens) for draw in draws]

    def _draw(
        self,
        context: tuple[int, ...],
        prompt: Prompt,
        sampling: Sampling,
        draw: int,
        on_usage: UsageSink,
        on_tokens: OnTokens | None,
    ) -> Completion:
        grammar = sampling.grammar if isinstance(sampling, ExtraSampling) else None
        words = self.encode(said(self.decode(context), grammar))
        ids, reason, rule = (*words, self._text.eos_ids[0]), None, self._rule(sampling)
        if grammar is not None:
            guide = self._guides.follow(grammar)()
            for token in ids:
                guide.take(token)
        ids = ids[: sampling.max_tokens]
        for count in range(1, len(ids) + 1):
            reason = rule.reason(ids[:count]) if ids[count - 1] in rule.watch else None
            if reason is not None:
                ids = ids[:count]
                break
        if on_tokens is not None:
            on_tokens(ids)
        usage = Usage(prompt=len(context), generated=len(ids), calls=1, attempts=1)
        self._charge(usage, on_usage)
        return Completion(
            path=(*prompt.path, draw),
            text=self.decode(ids[:-1] if reason == "eos" else ids),
            token_ids=ids,
            finish_reason="length" if reason is None else "stop",
            stop_reason=reason,
            logprobs=(-0.5,) * len(ids) if sampling.logprobs else None,
            usage=usage,
        )

    async def logprobs(self, token_ids: Any, start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; every token is as likely."""
        self._charge(Usage(prompt=len(token_ids), calls=1, attempts=1), on_usage)
        return (-0.5,) * (len(token_ids) - start)

    async def close(self) -> None:
        """Nothing to free."""


def said(text: str, grammar: str | None) -> str:
    """What follows the rendered prompt `text`; it may hold the beginning of the answer."""
    turns = _TURN.findall(text)
    begun = text.rpartition("<|im_start|>assistant\n")[2]
    thought, closed, after = begun.partition("</think>")
    if begun.startswith("<think>") and not closed:
        rest = THOUGHT.removeprefix(thought.removeprefix("<think>").strip())
        return f"{rest}\n</think>\n\n{answer(turns, grammar)}"
    had = (after if closed else begun).lstrip()
    whole = answer(turns, grammar)
    return whole[len(had) :] if whole.startswith(had) else whole


def answer(turns: list[tuple[str, str]], grammar: str | None) -> str:
    """A call, JSON or words, whichever the grammar asks for; after a result no call that nothing asks for."""
    calls, schema = _rule(grammar, "value"), _rule(grammar, "answer")
    results = sum(len(_RESULT.findall(body)) for role, body in turns if role == "user")
    must = grammar is not None and "start: BLANK call" in grammar and schema is None
    if calls is not None and (must or not results):
        options = calls["anyOf"]
        return f"<tool_call>\n{json.dumps(example(_chosen(options, results), calls))}\n</tool_call>"
    if schema is None or ("properties" not in schema and _keys(turns)):
        return words(turns)
    return json.dumps(example(schema, schema))


def _chosen(options: list[dict[str, Any]], results: int) -> dict[str, Any]:
    """A function that ends the run once there is a result, another before; the first where there is no such."""

    def ends(option: dict[str, Any]) -> bool:
        return "final" in option["properties"]["name"]["const"]

    return next((option for option in options if ends(option) == bool(results)), options[0])


def _rule(grammar: str | None, name: str) -> Any:
    """The schema that a rule of the grammar holds; None where there is none."""
    line = re.search(rf"^{name}: %json (.*)$", grammar or "", re.MULTILINE)
    return None if line is None else json.loads(line[1])


def example(schema: Any, root: Mapping[str, Any]) -> Any:
    """A value of `schema`, whose references are those of `root`."""
    if schema is True or not schema:
        return {}
    if "$ref" in schema:
        place: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            place = place[int(part) if isinstance(place, list) else part]
        return example(place, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for kind in ("anyOf", "oneOf", "allOf"):
        if kind in schema:
            return example(schema[kind][0], root)
    kinds = schema.get("type", "object")
    return _EXAMPLES[kinds if isinstance(kinds, str) else kinds[0]](schema, root)


def _object(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    return {name: example(part, root) for name, part in (schema.get("properties") or {}).items()}


def _array(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    return [example(schema["items"], root)] * max(schema.get("minItems", 1), 1) if "items" in schema else []


_EXAMPLES: Mapping[str, Any] = {
    "object": _object,
    "array": _array,
    "string": lambda schema, root: "Paris".ljust(schema.get("minLength", 0), "s"),
    "integer": lambda schema, root: schema.get("minimum", 7),
    "number": lambda schema, root: schema.get("minimum", 7),
    "boolean": lambda schema, root: True,
    "null": lambda schema, root: None,
}


def words(turns: list[tuple[str, str]]) -> str:
    """Text: the form that the last question asks for, the sum of two numbers, or a sentence."""
    last = turns[-1][1] if turns else ""
    everything = "\n".join(body for _, body in turns)
    if "SEARCH/REPLACE" in everything:
        file = ([*_FILE.findall(everything), "hello.py"])[-1]
        return f"{file}\n```python\n<<<<<<< SEARCH\n=======\nprint('hello')\n>>>>>>> REPLACE\n```\n"
    fields = list(dict.fromkeys(name for name in _FIELDS.findall(last) if name not in ("completed", "question")))
    if fields:
        return "".join(f"[[ ## {name} ## ]]\nParis\n\n" for name in fields) + "[[ ## completed ## ]]"
    if _keys(turns):
        return json.dumps(_keys(turns))
    pair = _SUM.search(last)
    return f"The answer is \\boxed{{{int(pair[1]) + int(pair[2])}}}." if pair else "The answer is 7."


def _keys(turns: list[tuple[str, str]]) -> dict[str, Any]:
    """The JSON object that the last question asks for in words, as dspy does."""
    last = turns[-1][1] if turns else ""
    _, asked, order = last.partition("JSON object in the following order of fields: ")
    samples = {"int": 7, "float": 7.5, "bool": True}
    return {name: samples.get(kind, "Paris") for name, kind in _KEYS.findall(order)} if asked else {}


def actor(model: str | None = None) -> ScriptedActor:
    """The scripted model.

    Args:
        model: None; it reads no folder.
    """
    if model is not None:
        raise ConfigError("actor reads no model")
    return ScriptedActor()
