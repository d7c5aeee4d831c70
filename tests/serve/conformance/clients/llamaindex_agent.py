"""LlamaIndex: an agent of functions and a typed answer, over `OpenAILike`."""

from __future__ import annotations

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
CITIES: list[str] = []


def weather(city: str) -> str:
    """Tell the weather of a city."""
    CITIES.append(city)
    return "12 degrees"


class Report(BaseModel):
    """The weather."""

    city: str
    degrees: int


async def main() -> None:
    llm = OpenAILike(
        model=MODEL,
        api_base=f"{URL}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=8000,
        max_retries=0,
    )
    agent = FunctionAgent(tools=[weather], llm=llm, system_prompt="Use the tool.")
    reply = await agent.run("How is the weather in Paris?")
    assert CITIES == ["Paris"] and str(reply), reply
    report = llm.as_structured_llm(Report).chat([ChatMessage(role="user", content="Paris, 12")]).raw
    assert isinstance(report, Report), report
    pieces = [part.delta or "" async for part in await llm.astream_chat([ChatMessage(role="user", content="3+4")])]
    assert "7" in "".join(pieces)


asyncio.run(main())
