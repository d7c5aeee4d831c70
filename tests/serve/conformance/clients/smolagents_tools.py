"""smolagents' ToolCallingAgent: a tool, its result, and the final answer, which is a tool as well; streamed and not."""

from __future__ import annotations

import os

from smolagents import OpenAIModel, ToolCallingAgent, tool

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
CITIES: list[str] = []


@tool
def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: its name
    """
    CITIES.append(city)
    return "12 degrees"


def main() -> None:
    for streamed in (False, True):
        CITIES.clear()
        model = OpenAIModel(model_id=MODEL, api_base=f"{URL}/v1", api_key="none")
        agent = ToolCallingAgent(tools=[weather], model=model, max_steps=4, stream_outputs=streamed)
        answer = agent.run("How is the weather in Paris?")
        assert CITIES == ["Paris"] and answer == "Paris", (CITIES, answer)


main()
