"""The formats of function calls by family, and which of them a model has.

A format is one entry of `TOOL_FORMATS`. What reads calls, writes them and holds them to a grammar
(`serve.requests.tools`) is derived from it, so a new family needs one entry and nothing else.

A model's format is the one in which its own chat template writes a call: a conversation with a call is rendered and
read in each (`writing_of`). For a template that presents functions and writes no calls, what it tells the model
decides, or a token of its vocabulary, and calls are words of its turns. For one that presents no functions, or does not
say how to call them, they are presented in the Hermes format, in the system message, with calls and results as text of
the turns (https://github.com/NousResearch/Hermes-Function-Calling).

Left out, so that a request with tools is refused: Command R (its template asks for actions only, and an answer needs
another one), Muse (a call is a message to a channel of its name), MiniMax M3 (arguments are elements within each
other), functionary 3.2, firefunction, MiroThinker, and code as a call (SmolLM3's Python mode, `<|python_tag|>` code).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ttc.core import Message, ToolCall, ToolMessage
from ttc.errors import ConfigError
from ttc.toolformats.notation import ToolFormat, common_size

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
    # without a mark, as the whole answer: Llama 3.1 and later; Llama 4; xLAM; the small Llama 3.2, Gemma 3
    "llama3": ToolFormat("{object}", between="; ", fields=("name", "parameters"), prefix="<|python_tag|>"),
    "llama4": ToolFormat("{object}", fields=("name", "parameters"), prefix="<|python_start|><|python_end|>"),
    "json": ToolFormat("{object}", between="; "),
    "json_list": ToolFormat("{object}", listed=True),
    "pythonic": ToolFormat("{name}({python})", "[", "]", ", ", prefix="<|python_start|>", stop="<|python_end|>"),
    PLAIN: _HERMES,
}
"""By name. Where several read what a template writes, the first that writes the same is the model's."""


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
        size = common_size(dialogue, other)
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
