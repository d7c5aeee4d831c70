"""dspy: a prediction by each of its adapters (text with marks, JSON by a schema), and a call of a function."""

from __future__ import annotations

import os

import dspy

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{city}: 12 degrees"


class Asked(dspy.Signature):
    """Answer with the tools."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


class OwnModel(dspy.LM):
    """A model that is in no catalogue: dspy asks here what it can do."""

    supports_function_calling = True
    supports_response_schema = True


def main() -> None:
    lm = OwnModel(f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", cache=False, num_retries=0, max_tokens=2000)
    for adapter in (dspy.ChatAdapter(), dspy.JSONAdapter()):
        with dspy.context(lm=lm, adapter=adapter):
            found = dspy.Predict("question -> answer")(question="The capital of France?")
            assert found.answer == "Paris", found
            assert dspy.ChainOfThought("question -> answer")(question="And?").reasoning
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        typed = dspy.Predict("question -> count: int, sure: bool")(question="How many?")
        assert isinstance(typed.count, int) and isinstance(typed.sure, bool), typed
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        called = dspy.Predict(Asked)(question="Is it warm in Paris?", tools=[dspy.Tool(weather)])
        (call,) = called.calls.tool_calls
        assert (call.name, call.args) == ("weather", {"city": "Paris"}), called


main()
