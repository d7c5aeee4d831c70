"""instructor: typed answers by tools, strict tools and JSON schema, each also as a stream of parts."""

from __future__ import annotations

import os

import instructor
import openai
from pydantic import BaseModel, Field

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]


class Item(BaseModel):
    """One thing."""

    name: str
    count: int = Field(ge=0, le=9)


class Order(BaseModel):
    """Things that somebody wants."""

    items: list[Item]


def main() -> None:
    messages = [{"role": "user", "content": "Seven apples, please."}]
    raw = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
        client = instructor.from_openai(raw, mode=mode)
        order = client.chat.completions.create(
            model=MODEL, messages=messages, response_model=Order, max_retries=1, max_tokens=400
        )
        assert isinstance(order, Order) and order.items[0].count <= 9, order
        for part in client.chat.completions.create_partial(
            model=MODEL, messages=messages, response_model=Order, max_tokens=400
        ):
            last = part
        assert last.items, last


main()
