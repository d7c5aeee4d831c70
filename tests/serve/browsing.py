"""A real browser, headless: Playwright (`pip install playwright`) on the Chromium of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ANSWER_S = 60_000


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start the browser; the test is skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    path = os.environ.get("TTC_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} on the path, and TTC_BROWSER is not set")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


class Playground:
    """The page as a user has it, and what went wrong in it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        from playwright.sync_api import expect

        self.expect = expect
        self.page = browser.new_page(**{"viewport": {"width": 1300, "height": 1000}, **options})
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.problems.append(said.text))
        self.page.goto(url)

    def ready(self) -> Playground:
        """Wait until a question can be asked."""
        self.expect(self.page.locator("#run")).to_be_enabled(timeout=ANSWER_S)
        return self

    def set(self, name: str, value: str, panel: int = 0) -> None:
        """Choose or type a setting of a panel."""
        field = self.page.locator(f"[data-name={name}], [data-parameter={name}]").locator("visible=true").nth(panel)
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)

    def state(self, panel: int = 0) -> Any:
        """The line that says how a panel stands."""
        return self.page.locator(".state").nth(panel)

    def ends(self, state: str = "done", panel: int = 0) -> None:
        """Wait until a panel has ended so."""
        self.expect(self.state(panel)).to_have_text(state, timeout=ANSWER_S)

    def meter(self, name: str, panel: int = 0) -> str:
        """What a meter shows."""
        return str(self.page.locator(f"[data-meter={name}]").nth(panel).text_content())
