"""openai-agents: an agent with a tool, a hand-off and a typed answer, streamed and not; over Chat and Responses."""

from __future__ import annotations

import asyncio
import os

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
CITIES: list[str] = []


class Report(BaseModel):
    """The weather."""

    city: str
    degrees: int


@function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    CITIES.append(city)
    return "12 degrees"


async def main() -> None:
    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model=MODEL, openai_client=client)
        agent = Agent(name="asker", instructions="Use the tool.", model=model, tools=[weather])
        CITIES.clear()
        result = await Runner.run(agent, "How is the weather in Paris?", max_turns=4)
        assert CITIES == ["Paris"] and result.final_output, (kind, result)
        assert result.context_wrapper.usage.output_tokens > 0
        again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "And now?"}])
        assert again.final_output, kind
        streamed = Runner.run_streamed(agent, "How is the weather in Paris?", max_turns=4)
        kinds = {event.type async for event in streamed.stream_events()}
        assert {"raw_response_event", "run_item_stream_event"} <= kinds and streamed.final_output, kinds
        typed = await Runner.run(Agent(name="typist", model=model, output_type=Report), "Paris, 12 degrees")
        assert isinstance(typed.final_output, Report), (kind, typed)
        first = Agent(name="first", model=model, handoffs=[agent], model_settings=ModelSettings(tool_choice="required"))
        handed = await Runner.run(first, "How is the weather in Paris?", max_turns=6)
        assert handed.last_agent is agent and handed.final_output, (kind, handed)


asyncio.run(main())
