"""Start from a model that ships with the package (`ttc/nano`), so that a recipe needs no download and no `--model`.

The folder is written in fp32, which training keeps. Cost: a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from train.base.models import load_model, load_tokenizer, save_model
from train.base.stage import Setting, Stage, StageResult
from ttc import nano
from ttc.errors import ConfigError


def packaged(*, name: str = "teacher") -> Stage:
    """Take a packaged model.

    Args:
        name: teacher or student.
    """
    return _Packaged(nano.path(name))


@dataclass(frozen=True, slots=True)
class _Packaged:
    source: Path

    def check(self, has_model: bool) -> None:
        if has_model:
            raise ConfigError("packaged brings its own model: make it the first stage and give no --model")

    def run(self, setting: Setting) -> StageResult:
        folder = setting.folder / "model"
        save_model(load_model(self.source, "cpu"), load_tokenizer(self.source), folder)
        return StageResult(str(folder))
