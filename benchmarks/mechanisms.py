"""Does every mechanism of every recipe have an effect? The table of mechanisms, with the effect of removing each.

    python -m benchmarks.mechanisms --save benchmarks/results/mechanisms.json
    python -m benchmarks.mechanisms --only dapo,r1-zero --work build/mechanisms

Every stage of every packaged recipe that learns from rewards or preferences, at its smallest scale: two updates, then
three measured ones spread over the run, each repeated without one mechanism, from the same weights, rollouts and random
stream (`mechanism_activity`). A stage starts from the base model of its recipe, that of the cipher walk from a tiny
one on a small world: on a worse base of the toy language no ratio fell between the two bounds of `dapo`, while in its
whole run two updates in three have tokens beyond the higher one. Reward models have random heads, since the question is
whether the stage uses them. A change is relative to the length of the update. An existing file is continued, and the
bases in `--work` are reused. Cost: the bases, and half a minute a stage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.mechanism_activity import ENGINE, LEAST_CHANGE, LEAST_SHARE, Activity, activity, preference_activity
from benchmarks.recipes import read
from train.base.models import load_tokenizer
from train.base.stage import Setting
from train.recipe.recipe import Recipe, RecipeStep, bind_stage, packaged
from train.registries import STAGES
from train.reward_models.reward_models import new_reward_model
from train.reward_models.step_model import new_step_model
from train.rl.policy_stage import PolicyStage
from ttc.config.recipes import parse_spec
from ttc.config.registry import ENGINES
from ttc.config.signatures import options_of

SEED = 5
TINY = {"steps": 300, "rows": 48, "hidden": 48, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp": 96}
SMALL = {"symbols": 12, "max_steps": 4}
"""Of the cipher walk, which a tiny model learns in seconds."""
LIMIT = 120
"""Problems for a stage whose output only other stages read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One mechanism of one stage of one recipe."""

    recipe: str
    stage: str
    mechanism: str
    change: float
    share: float
    acts: bool


def small(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a stage with the cipher walk made small wherever it is named."""

    def cut(value: Any) -> Any:
        if not isinstance(value, str) or parse_spec(value)[0] != "cipher":
            return value
        options = {**parse_spec(value)[1], **SMALL}
        return "cipher:" + ",".join(f"{name}={option}" for name, option in options.items())

    return {name: cut(value) for name, value in fields.items()}


def shrunk(recipe: Recipe) -> Recipe:
    """The recipe with a small walk, which a tiny model begins."""
    steps = []
    for step in recipe.steps:
        tiny = step.kind == "pretrain" and parse_spec(str(step.fields["corpus"]))[0] == "cipher"
        fields = small(step.fields) | (TINY if tiny else {})
        steps.append(replace(bind_stage({**fields, "kind": step.kind}, recipe.name), start=step.start))
    return replace(recipe, steps=tuple(steps))


class Workshop:
    """Makes the inputs of recipes' stages, each once."""

    def __init__(self, folder: Path, bases: Path | None = None) -> None:
        self.folder = folder
        self.bases = folder / "bases" if bases is None else bases

    def base(self, recipe: Recipe) -> Path:
        """The policy that the first stage of `recipe` makes."""
        first = recipe.steps[0]
        place = self.bases / first.digest
        if not (place / "model").exists():
            place.mkdir(parents=True, exist_ok=True)
            first.stage.run(self.setting(place, None))
        return place / "model"

    def setting(self, folder: Path, model: Path | None) -> Setting:
        """The setting of a stage in this benchmark."""
        return Setting(folder, model, SEED, "cpu", 1, lambda text: None)

    def make(self, recipe: Recipe, name: str, root: Path, base: Path) -> None:
        """What the stage `name` leaves for the others: rollouts, or a model that judges them."""
        folder = root / name
        if folder.exists():
            return
        folder.mkdir(parents=True)
        step = recipe.steps[int(name.partition("-")[0]) - 1]
        if step is recipe.steps[0]:
            shutil.copytree(base, folder / "model")
        elif step.kind == "reward_model":
            judge = folder / "reward_model-1"
            new_reward_model(base, SEED, "cpu").save_pretrained(judge)
            load_tokenizer(base).save_pretrained(judge)
        elif step.kind == "prm":
            model = new_step_model(base, "label", str(step.fields["step_delimiter"]), None, SEED, "cpu")
            model.network.config.ttc_prm = dict(model.reading)
            model.network.save_pretrained(folder / "prm")
            load_tokenizer(base).save_pretrained(folder / "prm")
        else:
            for other in named(step, recipe):
                self.make(recipe, other, root, base)
            limit = {"limit": LIMIT} if "limit" in options_of(STAGES.load(step.kind)) else {}
            bind_stage({**step.fields, **limit, "kind": step.kind}, name).stage.run(self.setting(folder, base))


def named(step: RecipeStep, recipe: Recipe) -> Iterator[str]:
    """The stages of the recipe that this one reads."""
    names = {f"{number}-{other.kind}" for number, other in enumerate(recipe.steps, start=1)}
    for value in step.fields.values():
        yield from (text for text in (value if isinstance(value, list) else [value]) if str(text) in names)


def measured(recipe: Recipe, workshop: Workshop, updates: int = 3) -> Iterator[tuple[str, list[Activity]]]:
    """Every stage of a recipe that learns from rewards or preferences, with its mechanisms."""
    base, root = workshop.base(recipe), workshop.folder / recipe.name
    for number, step in enumerate(recipe.steps, start=1):
        name, rewarded = f"{number}-{step.kind}", isinstance(step.stage, PolicyStage)
        if not rewarded and step.kind != "preference":
            continue
        for other in named(step, recipe):
            workshop.make(recipe, other, root, base)
        folder = root / name
        folder.mkdir(parents=True)
        setting = workshop.setting(folder, base)
        if rewarded:
            yield name, asyncio.run(_rewarded(step, base, setting, updates))
        else:
            yield name, preference_activity(step, base, setting, measured=updates)


async def _rewarded(step: RecipeStep, base: Path, setting: Setting, updates: int) -> list[Activity]:
    name, options = parse_spec(ENGINE)
    engine = ENGINES.create(name, options, supply={"model": str(base), "device": "cpu", "threads": 1})
    try:
        return await activity(step, base, setting, engine, measured=updates)
    finally:
        await engine.close()


def rows_of(recipe: Recipe, workshop: Workshop, updates: int = 3) -> list[Row]:
    """All mechanisms of a recipe."""
    return [
        Row(recipe.name, stage, one.mechanism.name, one.change, one.share, one.acts)
        for stage, found in measured(recipe, workshop, updates)
        for one in found
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: a row per stage, its mechanisms with the relative change of an update and the share."""
    yield "| recipe, stage | effect of removing a mechanism (relative change of an update; share of updates) |"
    yield "|---|---|"
    by_stage: dict[str, list[str]] = {}
    for row in rows:
        text = f"{row['mechanism']} {row['change']:.2g}"
        share = "" if row["share"] == 1 else f" ({100 * row['share']:.0f} %)"
        flag = "" if row["acts"] else " **inert**"
        by_stage.setdefault(f"{row['recipe']}, {row['stage']}", []).append(text + share + flag)
    for stage, texts in by_stage.items():
        yield f"| {stage} | {'; '.join(texts)} |"


def main() -> None:
    """Measure, print the table and save; status 1 when a mechanism is inert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="recipes, joined by commas")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--work", type=Path, help="folder of the bases, to go on with; by default a scratch one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    names = options.only.split(",") if options.only else list(packaged())
    rows = read_rows(options.save)
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), options.work)
        for name in names:
            if any(row["recipe"] == name for row in rows):
                continue
            rows += [
                {part: getattr(one, part) for part in Row.__slots__} for one in rows_of(shrunk(read(name)), workshop)
            ]
            if options.save:
                limits = {"least_change": LEAST_CHANGE, "least_share": LEAST_SHARE, "seed": SEED}
                options.save.write_text(json.dumps({**limits, "rows": rows}, indent=1) + "\n")
            print(name, file=sys.stderr, flush=True)
    print("\n".join(table(rows)))
    sys.exit(not all(row["acts"] for row in rows))


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows of an earlier call: recipes that are there are not measured again."""
    if path is None or not path.is_file():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


if __name__ == "__main__":
    main()
