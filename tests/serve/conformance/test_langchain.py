"""LangChain's standard integration tests of a chat model, with `ChatOpenAI` pointed at the server."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("langchain_tests")

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL = os.environ.get("TTC_SERVE_URL")
pytestmark = pytest.mark.skipif(URL is None, reason="set TTC_SERVE_URL (see make conformance)")


class TestChatModel(ChatModelIntegrationTests):
    """The packaged model has no tools, no images and no JSON mode; everything else is asked of it."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # The packaged model knows arithmetic only: greeted, it may end inside its thought, so it is asked for none.
        return {
            "model": "nano-teacher",
            "base_url": f"{URL}/v1",
            "api_key": "none",
            "stream_usage": True,
            "reasoning_effort": "none",
        }

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False
