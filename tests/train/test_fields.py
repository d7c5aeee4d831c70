"""Shared fields: a stage takes them as one value, and is bound and listed as if it had written them out."""

from typing import Any

import pytest

from tests.train.stages import make_stage
from train.offline.epochs import FitFields
from train.recipe.recipe import bind_stage
from train.registries import ADVANTAGES, LOSSES, PREFERENCES, STAGES, make
from train.stages.sft import sft
from train.update.terms import Correction
from ttc.errors import ConfigError

_SPREAD = "group", "batch", "reinforce_pp", "steps"
"""Advantages that divide by a spread."""
SFT = {"data": "rows.jsonl", "steps": "3", "lr": 1e-3}


def test_shared_fields_are_listed_with_their_defaults_and_their_words() -> None:
    parameters = {parameter.name: parameter for parameter in STAGES.describe("sft").parameters}
    assert "course" not in parameters and "build" not in parameters
    assert parameters["steps"].required and parameters["steps"].type == "int"
    assert parameters["steps"].doc == "updates."
    assert parameters["lora_alpha"].type == "float | None" and parameters["lora_alpha"].default is None
    assert parameters["save_every"].default == 100 and parameters["save_every"].doc == "steps between checkpoints."
    engine = next(parameter for parameter in STAGES.describe("ppo").parameters if parameter.name == "engine")
    assert "so that a run resumed on the same machine" in engine.doc


def test_text_is_parsed_by_the_type_of_a_shared_field_and_comes_as_one_value() -> None:
    stage = make_stage("sft", **SFT, held_out_limit="7", lora="2", lora_alpha="none", health={})
    assert isinstance(stage.course, FitFields)
    assert (stage.course.steps, stage.course.save_every, stage.course.health) == (3, 100, {})
    assert (stage.measured.held_out_limit, stage.build.lora, stage.build.lora_alpha) == (7, 2, None)


def test_a_shared_field_is_missed_and_misspelt_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match="sft needs 'steps'"):
        make_stage("sft", data="rows.jsonl", lr=1e-3)
    with pytest.raises(ConfigError, match="did you mean 'warmup'"):
        make_stage("sft", **SFT, wramup=3)
    with pytest.raises(ConfigError, match=r"sft: lr must be float"):
        make_stage("sft", **{**SFT, "lr": "fast"})
    with pytest.raises(TypeError, match="steps"):
        sft(data="rows.jsonl", steps=3)


LIMITED = [
    (kind, parameter.name)
    for kind in STAGES.names()
    for parameter in STAGES.describe(kind).parameters
    if parameter.name.endswith("limit")
]
REQUIRED = {
    "task": "cipher:split=train", "held_out": "cipher:split=eval", "teacher": "a", "data": "a", "steps": 1, "lr": 1e-3,
    "n": 2, "round": 0, "max_tokens": 8, "critique": "{prompt} {answer}", "revision": "{critique}", "method": "dpo",
    "environment": "calculation",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "field"), LIMITED)
def test_a_limit_of_no_problem_is_refused_by_the_name_of_its_field(kind: str, field: str) -> None:
    taken = {parameter.name for parameter in STAGES.describe(kind).parameters}
    if kind == "prm":  # it takes one of them
        taken.remove("data")
    fields = {name: value for name, value in REQUIRED.items() if name in taken}
    make_stage(kind, **fields, **{field: 1})
    with pytest.raises(ConfigError, match=rf"\b{field} must be at least 1, got 0"):
        make_stage(kind, **fields, **{field: 0})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, {"warmup": -1}) for kind in ("sft", "preference", "reward_model", "grpo", "ppo", "on_policy")),
        *((kind, {"max_tokens": 0}) for kind in ("sample", "revise", "grpo", "ppo", "agent", "on_policy")),
        *((kind, {name: 0}) for kind in ("grpo", "agent") for name in ("epochs", "minibatches")),
        *(
            (kind, {name: "nan"})
            for kind in ("grpo", "ppo")
            for name in ("kl_weight", "reward_weight", "verifier_weight")
        ),
        ("ppo", {"value_lr": -1.0}),
        ("reward_model", {"centre": "nan"}),
        ("on_policy", {"health": "off"}),
        ("grpo", {"until": 90}),
        ("grpo", {"retire": 0}),
        ("grpo", {"max_staleness": -1}),
        ("grpo", {"correction_cap": 0.5}),
        ("grpo", {"correction_cap": "nan"}),
        ("grpo", {"refills": 1, "asynchronous": True}),
        ("sft", {"corpus": "cipher", "corpus_rows": 0}),
        *((kind, {"weight_decay": "inf"}) for kind in ("sft", "preference", "grpo", "on_policy", "prm")),
        ("sft", {"lora": 2, "lora_alpha": "inf"}),
        ("preference", {"likelihood": "inf"}),
        ("reward_model", {"centre": "inf"}),
        ("ppo", {"entropy_weight": "inf"}),
        ("grpo", {"verifier_s": "inf"}),
        ("grpo", {"missing_end": "nan"}),
        ("on_policy", {"reward_weight": "inf"}),
    ],
)
def test_a_number_that_cannot_be_is_refused_before_any_model_is_loaded(kind: str, change: dict[str, object]) -> None:
    taken = {parameter.name for parameter in STAGES.describe(kind).parameters}
    fields = {name: value for name, value in REQUIRED.items() if name in taken}
    name = "refills" if "refills" in change else list(change)[-1]
    with pytest.raises(ConfigError, match=rf"\b{name} (must be|needs)"):
        make_stage(kind, **{**fields, **change})


@pytest.mark.parametrize(
    ("registry", "spec"),
    [
        *((PREFERENCES, f"{loss}:beta={beta}") for loss in PREFERENCES.names() for beta in ("nan", "inf", "-1")),
        *((PREFERENCES, f"kto:{weight}=-1") for weight in ("good_weight", "bad_weight")),
        (PREFERENCES, "simpo:gamma=nan"),
        (LOSSES, "squared:tau=inf"),
        *((LOSSES, spec) for spec in ("squared:tau=nan", "cispo:cap=nan", "ppo:clip_high=nan", "ppo:dual_clip=nan")),
        *((ADVANTAGES, f"{name}:eps={eps}") for name in _SPREAD for eps in ("nan", "inf", "-1")),
        (ADVANTAGES, "steps:outcome=nan"),
        (ADVANTAGES, "tree:local=inf"),
    ],
)
def test_a_number_of_a_loss_or_an_advantage_that_cannot_be_is_refused_by_its_name(registry: Any, spec: str) -> None:
    name, _, option = spec.partition(":")
    with pytest.raises(ConfigError, match=rf"\b{name}\b.*\b{option.partition('=')[0]}\b must be"):
        make(registry, spec)


@pytest.mark.parametrize("change", [{"threshold": float("nan")}, {"patience": 0}, {"after": -1}])
def test_a_health_rule_that_could_never_act_or_always_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"health\.truncation: {next(iter(change))} must be"):
        make_stage("sft", **SFT, health={"truncation": change})


@pytest.mark.parametrize(
    ("field", "value", "owner"),
    [("ptx_weight", 0.5, "ptx"), ("critiques", 4, "verifier_lm"), ("reward_how", "worst", "reward_model")],
)
def test_a_field_that_nothing_reads_is_refused_with_the_one_that_would(field: str, value: object, owner: str) -> None:
    fields = {name: REQUIRED[name] for name in ("task", "held_out", "steps", "lr")}
    with pytest.raises(ConfigError, match=f"grpo: {field} is read with {owner} alone"):
        make_stage("grpo", **fields, **{field: value})


@pytest.mark.parametrize(
    ("kind", "owner", "change"),
    [
        ("sft", "rollouts", {"per_problem": 2}),
        ("sft", "rollouts", {"shortest": True}),
        ("sft", "per_problem", {"rollouts": "1-sample", "shortest": True}),
        ("sft", "corpus", {"corpus_rows": 500}),
        ("preference", "rollouts", {"per_problem": 8}),
        ("reward_model", "rollouts", {"per_problem": None}),
        ("grpo", "leave_out", {"leave_out_above": 2}),
        ("on_policy", "divergence = jsd", {"beta": 0.2}),
    ],
)
def test_a_field_of_a_stage_that_nothing_reads_is_refused(kind: str, owner: str, change: dict[str, object]) -> None:
    taken = {parameter.name for parameter in STAGES.describe(kind).parameters}
    fields = {name: value for name, value in REQUIRED.items() if name in taken}
    make_stage(kind, **fields)
    with pytest.raises(ConfigError, match=f"{kind}: {list(change)[-1]} is read with {owner} alone"):
        make_stage(kind, **fields, **change)


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("sft", {"eval_every": 50, "save_every": 100, "decay": True, "rows": 32}),
        ("preference", {"eval_every": 20, "save_every": 50, "decay": False}),
        ("reward_model", {"decay": True, "held_out_share": 0.1}),
        ("grpo", {"prompts": 16, "n": 8, "sampler": "frontier", "kl_weight": 0.0, "mask_truncated": False}),
        ("ppo", {"prompts": 128, "n": 1, "sampler": "uniform", "kl_weight": 0.05}),
        ("agent", {"n": 8, "asynchronous": True, "normaliser": "constant"}),
        ("on_policy", {"n": 4, "sampler": "uniform", "mask_truncated": True, "decay": False}),
    ],
)
def test_kinds_keep_their_own_defaults(kind: str, defaults: dict[str, object]) -> None:
    found = {parameter.name: parameter.default for parameter in STAGES.describe(kind).parameters}
    assert defaults.items() <= found.items()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows"),
        ({"lr": 0.0}, "lr"),
        ({"held_out_share": 1}, "held_out_share"),
        ({"health": {"truncaton": {}}}, "truncation"),
    ],
)
def test_a_course_that_cannot_be_is_refused_when_its_stage_is_bound(change: dict[str, object], message: str) -> None:
    table = {"kind": "sft", "data": "x.jsonl", "steps": 1, "lr": 1e-3, **change}
    with pytest.raises(ConfigError, match=message):
        bind_stage(table, "recipe, stage 1")


def test_a_recipe_sets_how_weights_between_engine_and_trainer_are_bounded() -> None:
    fields = {name: REQUIRED[name] for name in ("task", "held_out", "steps", "lr")}
    stage = make_stage("grpo", **fields, correction="sequence", correction_how="mask", correction_cap="5")
    assert stage.objective.correction == Correction("sequence", "mask", 5.0)
    with pytest.raises(ConfigError, match="correction_how is read with correction alone"):
        make_stage("grpo", **fields, correction="none", correction_how="mask")
