"""Small models of the cipher walk, made in seconds: a careless student and teachers that always think."""

from __future__ import annotations

from pathlib import Path

from tests.train.stages import setting
from train.stages.pretrain import pretrain

SYMBOLS, STEPS = 12, 4
TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"


def make_model(folder: Path, *, share: float, steps: int, hidden: int = 32, seed: int = 0) -> Path:
    """A model that walks in `share` of its answers and guesses otherwise."""
    corpus = f"cipher:symbols={SYMBOLS},max_steps={STEPS},thinking_share={share}"
    stage = pretrain(corpus=corpus, steps=steps, lr=6e-3, hidden=hidden, layers=2, heads=2, kv_heads=1, mlp=96)
    return Path(stage.run(setting(folder, None, seed)).model)
