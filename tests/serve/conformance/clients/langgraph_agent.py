"""LangChain's agent on LangGraph: a tool and its result, typed answers by tools and by schema, streamed; both APIs."""

from __future__ import annotations

import os
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
CITIES: list[str] = []


@tool
def weather(city: str, unit: Literal["C", "F"]) -> str:
    """Tell the weather of a city."""
    CITIES.append(city)
    return f"12 {unit}"


class Report(BaseModel):
    """The weather."""

    city: str
    degrees: int


def asked(content: str) -> dict[str, list[dict[str, str]]]:
    return {"messages": [{"role": "user", "content": content}]}


def main() -> None:
    model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", max_retries=0, stream_usage=True)
    agent = create_agent(model, [weather], system_prompt="Use the tool.")
    last = agent.invoke(asked("How is the weather in Paris?"))["messages"][-1]
    assert CITIES == ["Paris"] and last.text, last
    kinds = [type(message).__name__ for message, _ in agent.stream(asked("And now?"), stream_mode="messages")]
    assert "ToolMessage" in kinds and len(CITIES) == 2, kinds
    for strategy in (ToolStrategy, ProviderStrategy):
        typed = create_agent(model, [], response_format=strategy(Report))
        report = typed.invoke(asked("Paris, 12 degrees"))["structured_response"]
        assert isinstance(report, Report), report
    for method in ("function_calling", "json_schema"):
        value = model.with_structured_output(Report, method=method).invoke("Paris: answer in JSON")
        assert isinstance(value, Report), value
    responses = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", max_retries=0, use_responses_api=True)
    CITIES.clear()
    last = create_agent(responses, [weather]).invoke(asked("How is it in Paris?"))["messages"][-1]
    assert CITIES == ["Paris"] and last.text, last


main()
