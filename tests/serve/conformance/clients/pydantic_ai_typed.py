"""pydantic-ai: typed answers by tools and by JSON schemas, after a tool, with the history, streamed; both APIs."""

from __future__ import annotations

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]


class Place(BaseModel):
    """Where a city lies."""

    name: str
    north: float


class City(BaseModel):
    """A city, with a schema that refers to another."""

    place: Place
    twins: list[Place]


def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city}: 48.9"


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind(MODEL, provider=provider)
        for output in (ToolOutput(City), NativeOutput(City)):
            result = await Agent(model, output_type=output).run("Where is Paris?")
            assert isinstance(result.output, City), result
            assert result.usage.output_tokens > 0
        agent = Agent(model, output_type=City, tools=[look_up])
        async with agent.run_stream("Where is Paris?") as stream:
            assert isinstance(await stream.get_output(), City)
        result = await agent.run("And again?", message_history=stream.all_messages())
        assert isinstance(result.output, City)


asyncio.run(main())
