"""Reading streams of named events, as the Responses and Messages dialects send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.serve.running import Running


def events_of(text: str) -> list[dict[str, Any]]:
    """The data of every event; each must be named as its type says."""
    found = []
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        if not lines or lines[0].startswith(":"):
            continue
        name, data = lines
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def events(server: Running, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of a streamed reply."""
    response = server.ask({**body, "stream": True}, path)
    assert response.status_code == 200, response.text
    return events_of(response.text)
