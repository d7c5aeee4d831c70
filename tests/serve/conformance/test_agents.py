"""Agents of others over tools and typed answers of the packaged model, which a grammar alone makes whole."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

MODEL = "nano-teacher"
QUESTION = "Is 7 warm?"
SCHEMA = {
    "type": "object",
    "properties": {"degrees": {"type": "integer", "minimum": 0, "maximum": 99}, "unit": {"enum": ["C", "F"]}},
    "required": ["degrees", "unit"],
}


def test_an_agent_of_openai_agents_calls_its_tool_and_goes_on_with_the_result(url: str) -> None:
    agents = pytest.importorskip("agents")
    import openai

    seen: list[tuple[int, str]] = []

    def heat(degrees: Literal[10, 20, 30], unit: Literal["C", "F"]) -> str:
        """Heat the room."""
        seen.append((degrees, unit))
        return "done"

    agents.set_tracing_disabled(True)
    # Cut by its tokens, the model's last words are an error to the second kind: it ends with the tool's result.
    kinds = {agents.OpenAIChatCompletionsModel: "run_llm_again", agents.OpenAIResponsesModel: "stop_on_first_tool"}
    for kind, behaviour in kinds.items():
        seen.clear()
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        settings = agents.ModelSettings(
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=200,
            temperature=0,
            reasoning={"effort": "none"},
        )
        model = kind(model=MODEL, openai_client=client)
        tools = [agents.function_tool(heat)]
        agent = agents.Agent(name="a", model=model, model_settings=settings, tools=tools, tool_use_behavior=behaviour)
        result = agents.Runner.run_sync(agent, QUESTION, max_turns=4)
        assert len(seen) == 1 and seen[0][0] in (10, 20, 30) and seen[0][1] in ("C", "F")
        assert isinstance(result.final_output, str)


def test_anthropics_library_gets_tool_use_streamed_or_not_and_sends_its_result(url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": QUESTION}],
        "thinking": {"type": "disabled"},
        "tools": [{"name": "heat", "description": "Heat the room.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "extra_body": {"ttc": {"seed": 3}},
    }
    reply = client.messages.create(**asked)
    (block,) = reply.content
    assert (reply.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "heat")
    assert 0 <= block.input["degrees"] <= 99 and block.input["unit"] in ("C", "F")
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().content[0].input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
    turns = [*asked["messages"], {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    last = client.messages.create(**asked | {"messages": turns, "tool_choice": {"type": "none"}})
    assert last.content[0].type == "text"


def test_openais_library_parses_tools_of_its_own_making(url: str) -> None:
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")

    class Heat(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        degrees: Literal[10, 20, 30]
        unit: Literal["C", "F"]

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    reply = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[openai.pydantic_function_tool(Heat)],
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning_effort="none",
        max_tokens=200,
    )
    call = reply.choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, Heat)
    assert json.loads(call.function.arguments)["unit"] in ("C", "F")
