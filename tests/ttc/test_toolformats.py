"""Formats of function calls: each is read as it stands here, whatever the arguments, and chosen by a chat template.

The calls and templates are short ones of our own in the families' notations; none is a copy of a model's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import pytest

from ttc.core import ToolCall, ToolMessage
from ttc.errors import ConfigError
from ttc.toolformats.families import PLAIN, TOOL_FORMATS, Writing, turns_of, writing_of

VALUES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "on": {"type": "boolean"},
    "none": {"type": ["object", "null"]},
    "deep": {"type": "object"},
    "many": {"type": "array"},
    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "wide": {"type": ["string", "number"]},
    "own": {"$ref": "#/$defs/Own"},
}
SCHEMA = {"type": "object", "properties": VALUES, "$defs": {"Own": {"type": "string", "enum": ["1", "2"]}}}
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("heat", "cool"))

# A call of heat with the text x"y and the count 3, as each family writes it.
JSON = '{"text": "x\\"y", "count": 3}'
OBJECT = f'{{"name": "heat", "arguments": {JSON}}}'
DSML = '<｜DSML｜invoke name="heat"><｜DSML｜parameter name="text" string="true">x"y</｜DSML｜parameter>'
DSML += '<｜DSML｜parameter name="count" string="false">3</｜DSML｜parameter></｜DSML｜invoke>'
FUNCTION = '<function=heat>\n<parameter=text>\nx"y\n</parameter>\n<parameter=count>\n3\n</parameter>\n</function>'
GLM = '<arg_key>text</arg_key>\n<arg_value>x"y</arg_value>\n<arg_key>count</arg_key>\n<arg_value>3</arg_value>'
STEP = '<steptml:parameter name="text">x"y</steptml:parameter><steptml:parameter name="count">3</steptml:parameter>'
SAYS = {
    "hermes": f"<tool_call>{OBJECT}</tool_call>",
    "mistral": f'[TOOL_CALLS] [{OBJECT[:-1]}, "id": "123456789"}}]',
    "granite": f"<|tool_call|> [{OBJECT}]",
    "tool_calls": f"<tool_calls>\n[{OBJECT}]\n</tool_calls>",
    "minimax_m1": f"<tool_calls>\n{OBJECT}\n</tool_calls>",
    "nemotron": f"<TOOLCALL>[{OBJECT}]</TOOLCALL>",
    "command_a": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "heat", "parameters": {JSON}}}]<|END_ACTION|>',
    "apertus": f'<|tools_prefix|>[{{"heat": {JSON}}}]<|tools_suffix|>',
    "internlm": f"<|action_start|><|plugin|>\n{OBJECT.replace('arguments', 'parameters')}<|action_end|>",
    "gigachat3": f"<|message_sep|>\n\nfunction call<|role_sep|>\n{OBJECT}",
    "gigachat3_1": f"<|function_call|>{OBJECT}<|message_sep|>",
    "granite_20b": f"<function_call> {OBJECT}",
    "phi4": f"functools[{OBJECT}]",
    "mistral_args": f"[TOOL_CALLS]heat[CALL_ID]123456789[ARGS]{JSON}",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>heat\n```json\n"
    f"{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>heat<｜tool▁sep｜>"
    f"{JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.heat:12<|tool_call_argument_begin|>"
    f"{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    "harmony": f"<|channel|>commentary to=functions.heat <|constrain|>json<|message|>{JSON}<|call|>",
    "functionary": f"<function=heat>{JSON}</function>",
    "solar": f"<|tool_calls|><|tool_call:begin|>ab12<|tool_call:name|>heat<|tool_call:args|>{JSON}<|tool_call:end|>",
    "qwen3_coder": f"<tool_call>\n{FUNCTION}\n</tool_call>",
    "glm": f"<tool_call>heat\n{GLM}\n</tool_call>",
    "glm_4_7": f"<tool_call>heat{GLM}</tool_call>".replace("\n", ""),
    "seed": '<seed:tool_call>\n<function=heat>\n<parameter=text>x"y</parameter>\n<parameter=count>3</parameter>\n'
    "</function>\n</seed:tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="heat">\n<parameter name="text">x"y</parameter>\n'
    '<parameter name="count">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "deepseek_v32": f"<｜DSML｜function_calls>\n{DSML}\n</｜DSML｜function_calls>",
    "deepseek_v4": f"<｜DSML｜tool_calls>\n{DSML}\n</｜DSML｜tool_calls>",
    "hunyuan_3": "<tool_calls:opensource>\n<tool_call:opensource>heat<tool_sep:opensource>\n"
    + GLM.replace("arg_key>", "arg_key:opensource>").replace("arg_value>", "arg_value:opensource>")
    + "\n</tool_call:opensource>\n</tool_calls:opensource>",
    "step_3": f'<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="heat">{STEP}'
    "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
    "minicpm5": '<function name="heat"><param name="text"><![CDATA[x"y]]></param>'
    '<param name="count">3</param></function>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="heat" index="1"<|sep|>'
    '<|open|>argument key="text" type="string"<|sep|>x"y<|close|>argument<|sep|>'
    '<|open|>argument key="count" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|>",
    "lfm2": "<|tool_call_start|>[heat(text='x\"y', count=3)]<|tool_call_end|>",
    "olmo3": '<function_calls>\nheat(text="x\\"y", count=3)\n</function_calls>',
    "gemma4": '<|tool_call>call:heat{text:<|"|>x"y<|"|>,count:3}<tool_call|>',
    "functiongemma": '<start_function_call>call:heat{text:<escape>x"y<escape>,count:3}<end_function_call>',
    "llama3": OBJECT.replace("arguments", "parameters"),
    "llama4": "<|python_start|><|python_end|>" + OBJECT.replace("arguments", "parameters"),
    "json": OBJECT,
    "json_list": f"[{OBJECT}]",
    "pythonic": "[heat(text='x\"y', count=3)]",
    PLAIN: f"<tool_call>\n{OBJECT}\n</tool_call>",
}


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_call_is_read_as_the_models_of_a_family_write_it(name: str) -> None:
    before, (call,) = TOOL_FORMATS[name].read(SAYS[name], TOOLS)
    assert (before, call.name, json.loads(call.arguments)) == ("", "heat", {"text": 'x"y', "count": 3})


TEXTS = (
    "12*3",
    "it's \"so\", he said: 'yes'",
    "a = 1\nif a:\n    print(a)\n",
    '{"a": [1, 2]} }}]) ), x',
    "<b>x</b> </parameter> </tool_call> [/x] </arg_value>",
    "é 漢字 😀 \\ \t",
    "12",
    "true",
    "",
    " x ",
)
ARGUMENTS: list[dict[str, Any]] = [{"text": text} for text in TEXTS]
ARGUMENTS += [{}, {"count": -7, "share": 1.5, "on": False}, {"on": True, "none": None}, {"own": "1"}]
ARGUMENTS += [
    {"deep": {"k": ["x", "y, z"], "n": {"m": 1}}, "many": ["a", 2, []]},
    {"either": "x"},
    {"either": 3},
    {"wide": 3},
]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_what_is_written_is_read_back_whatever_the_arguments(name: str) -> None:
    form = TOOL_FORMATS[name]
    for arguments in ARGUMENTS:
        calls = tuple(ToolCall(own, json.dumps(arguments, ensure_ascii=False)) for own in ("heat", "cool"))
        for several in (calls[:1], calls) if form.several else (calls[:1],):
            text = form.write(several)
            assert form.read(text, TOOLS) == ("", several), text
            if form.trigger:
                before, read = form.read(f"I see.\n{text}", TOOLS)
                assert (before.strip(), read) == ("I see.", several)


@pytest.mark.parametrize(
    ("name", "before", "behind"),
    [("llama3", "<|python_tag|>", ""), ("pythonic", "<|python_start|>", "<|python_end|>"), ("pythonic", "", "")],
)
def test_marks_around_calls_that_need_none_are_no_words_of_the_answer(name: str, before: str, behind: str) -> None:
    words, calls = TOOL_FORMATS[name].read(f"{before}{SAYS[name]}{behind}", TOOLS)
    assert (words, [call.name for call in calls]) == ("", ["heat"])


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_what_only_looks_like_a_call_is_text(name: str) -> None:
    form = TOOL_FORMATS[name]
    mark = form.trigger or "["
    for text in ("", "x", f"Calls begin with {mark}.", f"{mark} heat", f"{SAYS[name]} is how.", f"`{SAYS[name]}`"):
        assert form.read(text, TOOLS) == (text, ()), text


def test_what_is_no_value_of_json_is_a_text_or_no_call() -> None:
    for said in ("{1, 2}", "[b'x']", "{(1, 2): 3}"):
        text = f"<tool_call>heat<arg_key>deep</arg_key><arg_value>{said}</arg_value></tool_call>"
        (call,) = TOOL_FORMATS["glm_4_7"].read(text, TOOLS)[1]
        assert json.loads(call.arguments) == {"deep": said}
    for number in ("NaN", "-Infinity", "1e999"):
        text = f'<tool_call>{{"name": "heat", "arguments": {{"share": {number}}}}}</tool_call>'
        assert TOOL_FORMATS["hermes"].read(text, TOOLS) == (text, ())


def test_a_mark_in_the_words_before_a_call_hides_none() -> None:
    for name in ("hermes", "glm", "qwen3_coder", "lfm2"):
        form = TOOL_FORMATS[name]
        words = f"I use {form.trigger} here. "
        before, calls = form.read(words + SAYS[name], TOOLS)
        assert before == words and [call.name for call in calls] == ["heat"]


def test_a_call_in_the_argument_of_a_call_that_was_cut_is_none() -> None:
    for name in ("glm", "qwen3_coder", "seed", "minimax_m2", "lfm2", "gemma4"):
        form = TOOL_FORMATS[name]
        whole = form.write([ToolCall("heat", json.dumps({"text": form.write([ToolCall("cool", "{}")])}))])
        end = whole.index("cool")
        for size in range(end, len(whole)):
            assert "cool" not in [call.name for call in form.read(whole[:size], TOOLS)[1]], whole[:size]


def test_values_are_read_as_python_and_as_json_have_them() -> None:
    form = TOOL_FORMATS["lfm2"]
    values: dict[str, Any] = {
        "'a\\n\\'b\\''": "a\n'b'",
        "'a\nb'": "a\nb",
        "'it's'": "it's",
        '"\\u00e9\\x41"': "éA",
        "[1, (2, 'x')]": [1, [2, "x"]],
        "{'k': True, \"j\": null}": {"k": True, "j": None},
        "-1.5e3": -1500.0,
        "None": None,
        "false": False,
        "word": "word",
    }
    for text, value in values.items():
        (call,) = form.read(f"<|tool_call_start|>[heat(x={text}, y=1)]<|tool_call_end|>")[1]
        assert json.loads(call.arguments) == {"x": value, "y": 1}, text
    coder = TOOL_FORMATS["qwen3_coder"]
    for text, arguments in (("True", {"on": True}), ("{'a': [1]}", {"deep": {"a": [1]}}), ("soon", {"count": "soon"})):
        (key,) = arguments
        said = f"<tool_call><function=heat><parameter={key}>\n{text}\n</parameter></function></tool_call>"
        assert json.loads(coder.read(said, TOOLS)[1][0].arguments) == arguments


def test_numbers_of_thousands_of_digits_and_half_characters_break_nothing() -> None:
    for name in ("hermes", "mistral", "kimi_k2", "llama3"):
        form = TOOL_FORMATS[name]
        said = form.write([ToolCall("heat", '{"count": 3}')])
        long = said.replace("3", "9" * 5000)
        assert form.read(long) == (long, ())
        half = form.read(said.replace("count", "\\ud83d"))[1]
        assert [call.arguments for call in half] == ['{"\\ud83d": 3}'], "as JSON escapes it, which can be sent"
    named = TOOL_FORMATS["hermes"].write([ToolCall("heat", "{}")]).replace("heat", "\\ud83d")
    assert TOOL_FORMATS["hermes"].read(named) == (named, ())


# -- the choice --------------------------------------------------------------------------------------------------------
def template(call: str, *, head: str = "", tail: str = "", shows: str = "{{ tools | tojson }}", when: str = "") -> str:
    """A chat template that writes calls as `call` and shows functions as `shows`."""
    condition = f"m.tool_calls {when}"
    return (
        f"{{% if tools %}}SYSTEM {shows}<end>{{% endif %}}{{% for m in messages %}}{{{{ m.role }}}}: "
        f"{{% if {condition} %}}{head}{{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}{{% endfor %}}{tail}"
        "{% else %}{{ m.content }}{% endif %}<end>{% endfor %}"
    )


def renderer(text: str) -> Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]:
    compiled = jinja2.Environment(autoescape=False).from_string(text)

    def render(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            return compiled.render(messages=turns, tools=tools)
        except TypeError as exc:
            raise ConfigError(str(exc)) from exc

    return render


TAGS = "{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}"
PYTHON = "{% for k, v in f.arguments.items() %}{{ k }}='{{ v }}'{% endfor %}"
OWN = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
KIMI = "<|tool_call_begin|>functions.{{ f.name }}:0<|tool_call_argument_begin|>{{ f.arguments | tojson }}"
CHOICES = {
    "hermes": template(f"<tool_call>\n{OWN}\n</tool_call>"),
    "mistral": template(OWN, head="[TOOL_CALLS][", tail="]"),
    "granite": template(OWN, head="<|tool_call|>[", tail="]"),
    "tool_calls": template(OWN, head="<tool_calls>[", tail="]</tool_calls>"),
    "minimax_m1": template(OWN, head="<tool_calls>\n", tail="\n</tool_calls>"),
    "llama3": template(OWN.replace('arguments"', 'parameters"')),
    "llama4": template(OWN.replace('arguments"', 'parameters"'), head="<|python_start|><|python_end|>"),
    "json": template(OWN),
    "json_list": template(OWN, head="[", tail="]"),
    "mistral_args": template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "kimi_k2": template(
        f"{KIMI}<|tool_call_end|>", head="<|tool_calls_section_begin|>", tail="<|tool_calls_section_end|>"
    ),
    "harmony": template(" to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}"),
    "qwen3_coder": template(f"<tool_call>\n<function={{{{ f.name }}}}>\n{TAGS}</function>\n</tool_call>"),
    "glm": template(
        "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>"
    ),
    "glm_4_7": template(
        "<tool_call>{{ f.name }}{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>"
        "<arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>"
    ),
    "lfm2": template(f"{{{{ f.name }}}}({PYTHON})", head="<|tool_call_start|>[", tail="]<|tool_call_end|>"),
    "pythonic": template(f"{{{{ f.name }}}}({PYTHON})", head="[", tail="]"),
    "gemma4": template(
        "<|tool_call>call:{{ f.name }}{% raw %}{{% endraw %}{% for k, v in f.arguments.items() %}"
        '{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}}<tool_call|>'
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_format_is_chosen_by_what_the_template_writes(name: str) -> None:
    assert writing_of(CHOICES[name], (), renderer(CHOICES[name])) == Writing(name)


def test_a_template_may_want_no_content_beside_calls_or_arguments_as_text() -> None:
    silent = template(f"<tool_call>\n{OWN}\n</tool_call>", when="and m.content is none")
    assert writing_of(silent, (), renderer(silent)) == Writing("hermes", None)
    text = template('<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ "" + f.arguments }}}\n</tool_call>')
    writing = writing_of(text, (), renderer(text))
    assert writing == Writing("hermes", "", as_text=True)
    call = ToolMessage("assistant", "", (ToolCall("heat", '{"a": 1}', "c"),))
    assert '"arguments": {"a": 1}' in renderer(text)(turns_of([call], writing=writing), [])
    assert turns_of([call], writing=Writing("hermes", None))[0]["content"] is None


def test_a_template_that_writes_no_calls_is_believed_in_what_it_tells_and_gets_them_as_words() -> None:
    tells = template("", shows="{{ tools | tojson }} answer with <tool_call></tool_call>", when="and false")
    writing = writing_of(tells, (), renderer(tells))
    assert writing == Writing("hermes", in_words=True)
    (turn,) = turns_of([ToolMessage("assistant", "Hm.", (ToolCall("heat", '{"a": 1}', "c"),))], writing=writing)
    assert turn["content"] == 'Hm.\n<tool_call>\n{"name": "heat", "arguments": {"a": 1}}\n</tool_call>'
    mute = template("", when="and false")
    assert writing_of(mute, ("<|tool_call_start|>",), renderer(mute)) == Writing("lfm2", in_words=True)
    assert writing_of(mute, (), renderer(mute)) == Writing(PLAIN), "neither says how"


def test_calls_in_a_form_that_is_not_read_are_none_of_the_formats() -> None:
    odd = template("<call of={{ f.name }}>{{ f.arguments | tojson }}</call>")
    assert writing_of(odd, ("<tool_call>",), renderer(odd)) == Writing("")
    blind = template(f"<tool_call>\n{OWN}\n</tool_call>", shows="")
    for none in ("{{ messages }}", blind):
        assert writing_of(none, (), renderer(none)) == Writing(PLAIN), "it shows no functions"
