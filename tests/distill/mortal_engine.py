"""A scripted engine whose process dies over some questions, given to jobs as `FILE:mortal`."""

from __future__ import annotations

import os
from pathlib import Path

from ttc.core import Engine, Prompt
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError


def mortal(model: str | None = None, *, graves: str, jitter: int | None = None) -> Engine:
    """Answers with random digits; a question with `stumble` kills the first process that meets it, `poison` each.

    Args:
        model: not used.
        graves: a folder in which each dead process leaves a file.
        jitter: see `ScriptedEngine`.
    """
    if not Path(graves).is_dir():
        raise ConfigError(f"graves: {graves} is no folder")

    def script(prompt: Prompt, path: tuple[int, ...], key: int) -> str:
        first = "stumble" in prompt.text and not any(Path(graves).iterdir())
        if first or "poison" in prompt.text:
            (Path(graves) / str(os.getpid())).touch()
            os._exit(1)
        return f"\\boxed{{{key % 10}}}"

    return ScriptedEngine(script, jitter=jitter)
