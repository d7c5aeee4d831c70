"""inspect_ai: a task, and one whose solver uses a tool, scored."""

from __future__ import annotations

import os
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
CITIES: list[str] = []


@tool
def weather():
    async def execute(city: str) -> str:
        """Tell the weather of a city.

        Args:
            city: its name
        """
        CITIES.append(city)
        return "3+4"

    return execute


def main() -> None:
    model = get_model(f"openai-api/ttc/{MODEL}", base_url=f"{URL}/v1", api_key="none")
    plain = Task(dataset=[Sample(input="3+4", target="7"), Sample(input="10+9", target="19")], solver=generate())
    agent = Task(
        dataset=[Sample(input="How is the weather in Paris?", target="7")], solver=[use_tools(weather()), generate()]
    )
    for task in (plain, agent):
        task.scorer = [includes()]
    with tempfile.TemporaryDirectory() as folder:
        logs = eval([plain, agent], model=model, log_dir=folder, display="none", max_tokens=400)
    for log in logs:
        assert log.status == "success" and log.results is not None, log.error
        assert log.results.scores[0].metrics["accuracy"].value == 1, log.results
    assert CITIES == ["Paris"], CITIES


main()
