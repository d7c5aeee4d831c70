"""What a plan says is what a model has: parameters counted, memory that fits, a setting that makes the rest fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import Qwen2Config, Qwen3Config

from tests import qwen_like
from train.base.models import load_model, turn_tokenizer
from train.base.weights import add_lora, num_parameters
from train.examples.examples import read_examples
from train.examples.pairs import read_pairs
from train.recipe.plan import StageCost, config_of, counts_of, lines, plan_recipe
from train.recipe.recipe import read_recipe
from ttc import nano
from ttc.cli.cli import main
from ttc.config.values import storage
from ttc.engines.shared.text import Text

QWEN25 = Qwen2Config(
    vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
    num_key_value_heads=2, max_position_embeddings=32_768, tie_word_embeddings=True,
)  # fmt: skip
"""Qwen2.5-1.5B."""
QWEN3 = Qwen3Config(
    vocab_size=151_936, hidden_size=4096, intermediate_size=12_288, num_hidden_layers=36, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960, tie_word_embeddings=False,
)  # fmt: skip
"""Qwen3-8B."""


def planned(name: str, scale: str, config: Any, **changes: Any) -> list[Any]:
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return plan_recipe(read_recipe(name, scale=scale, overrides=overrides), config, scale, None)


def test_parameters_are_counted_as_the_model_has_them(tmp_path: Path) -> None:
    folder = qwen_like.model(tmp_path)
    model, counts = load_model(folder, "cpu"), counts_of(config_of(folder))
    assert counts.parameters == num_parameters(model)
    add_lora(model, 3, 6.0, 0)
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert adapters == 3 * counts.per_rank


def test_r1_zero_fits_one_device_of_80_gb_at_15_b_and_eight_at_8_b() -> None:
    (small,) = planned("r1-zero", "1x80gb", QWEN25)
    (large,) = planned("r1-zero", "8x80gb", QWEN3)
    assert small.fits and large.fits
    assert small.memory["weights"] == pytest.approx(4 * 1.5437, rel=1e-3)
    assert large.memory["optimiser"] == pytest.approx(8 * 8.19 / 8, rel=1e-2)
    assert small.sampled == 650 * 512 * 16 * 4096


def test_what_does_not_fit_says_which_setting_does() -> None:
    (plain,) = planned("r1-zero", "1x80gb", QWEN25, grpo__checkpointing="false", grpo__autocast="false")
    assert not plain.fits and plain.memory["activations"] > 20
    assert plain.fix is not None and plain.fix["checkpointing"] is True
    assert any("DOES NOT FIT; it does with --set 1.autocast=true" in line for line in lines([plain]))
    (never,) = planned("r1-zero", "1x24gb", QWEN3)
    assert not never.fits and never.fix == {}
    assert any("take more devices" in line for line in lines([never]))


def test_every_kind_of_stage_that_trains_has_its_parts() -> None:
    costs = {cost.name: cost for cost in planned("constitutional", "1x80gb", QWEN25)}
    assert list(costs) == ["2-sft", "3-sample", "5-reward_model", "6-ppo"]
    assert "critic" in costs["6-ppo"].memory and "reference" not in costs["2-sft"].memory
    assert all(cost.steps for cost in costs.values())


def test_models_that_reward_are_in_the_memory_of_the_stage_that_asks_them() -> None:
    (labels, steps) = planned("math-shepherd", "1x80gb", QWEN25)
    assert labels.name == "1-prm" and labels.memory["optimiser"] == pytest.approx(8 * 1.5437, rel=1e-3)
    assert labels.sampled is None and "draws for labels, at most" in next(lines([labels]))
    assert steps.memory["judges"] == pytest.approx(4 * 1.5437, rel=1e-3)
    assert "judges" not in planned("r1-zero", "1x80gb", QWEN25)[0].memory


def test_a_pass_holds_pairs_whole_and_is_larger_on_a_gpu(tmp_path: Path) -> None:
    recipe = tmp_path / "two.toml"
    own = 'data = "rows.jsonl"\nsteps = 1\nlr = 1e-5\n'
    recipe.write_text("".join(f'[[stage]]\nkind = "{kind}"\n{own}' for kind in ("sft", "reward_model", "preference")))
    stages = [
        {cost.name: cost.memory for cost in plan_recipe(read_recipe(str(recipe)), QWEN25, None, None, memory, device)}
        for memory, device in ((None, "cpu"), (24.0, "cuda"))
    ]
    for memory in stages:
        single, pairs = memory["1-sft"]["activations"], memory["2-reward_model"]["activations"]
        assert pairs == memory["3-preference"]["activations"] and single <= pairs
    on_cpu, on_gpu = stages
    # rows of 1,280 tokens: one alone or a pair in 2,048 tokens, 12 in 16,384
    assert on_cpu["2-reward_model"]["activations"] == pytest.approx(2 * on_cpu["1-sft"]["activations"], rel=0.01)
    assert on_gpu["1-sft"]["activations"] == pytest.approx(12 * on_cpu["1-sft"]["activations"], rel=0.01)


def test_an_engine_is_counted_where_something_is_asked_and_merged_weights_beside_adapters(tmp_path: Path) -> None:
    recipe = tmp_path / "two.toml"
    own = '[[stage]]\nkind = "sft"\ndata = "rows.jsonl"\nsteps = 1\nlr = 1e-5\n'
    recipe.write_text(f'{own}{own}held_out = "svamp"\nlora = 8\n')
    plain, asking = (cost.memory for cost in plan_recipe(read_recipe(str(recipe)), QWEN25, None, None))
    assert "engine" not in plain and "engine" in asking
    assert "merged" not in plain and asking["merged"] == pytest.approx(4 * 1.5437, rel=1e-3)


def test_a_process_on_a_cpu_holds_its_libraries_and_a_copy_of_what_it_pushed(tmp_path: Path) -> None:
    recipe = tmp_path / "three.toml"
    own = 'task = "arithmetic"\nheld_out = "svamp"\nsteps = 1\nlr = 1e-5\n'
    rows = 'data = "rows.jsonl"\nsteps = 1\nlr = 1e-5\n'
    recipe.write_text(f'[[stage]]\nkind = "grpo"\n{own}[[stage]]\nkind = "sft"\n{rows}')
    (rl, tuned), (rl_on_gpu, _) = (
        [cost.memory for cost in plan_recipe(read_recipe(str(recipe)), QWEN25, None, None, memory, device)]
        for memory, device in ((None, "cpu"), (24.0, "cuda"))
    )
    assert rl["pushed"] == rl["weights"] and "pushed" not in tuned
    assert rl["libraries"] == tuned["libraries"] == 0.5
    assert not {"pushed", "libraries"} & rl_on_gpu.keys()


def test_tokens_of_a_plan_are_said_to_be_bounds() -> None:
    cost = StageCost("1-sft", {"weights": 1.0}, None, 0, 30720, 6, None, None)
    assert next(lines([cost])) == "1-sft: 6 steps, at most 0 tokens sampled and 30,720 trained"


def test_the_memory_of_a_small_model_is_said_in_megabytes() -> None:
    cost = StageCost("1-sft", {"weights": 0.0037, "head": 0.25}, 24.0, 0, 30720, 6, None, None)
    assert list(lines([cost]))[1] == "    254 MB of 24 GB a device: weights 3.7 MB, head 250 MB"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 MB"), (1000, "0.001 MB"), (3_700_000, "3.7 MB"), (999_400_000, "999 MB"), (999_600_000, "1.00 GB"),
     (7_204_000_000, "7.20 GB"), (1_500_000_000_000, "1,500.00 GB")],
)  # fmt: skip
def test_a_size_has_the_unit_in_which_it_is_a_number(size: int, text: str) -> None:
    assert storage(size) == text


def test_the_command_measures_a_model_and_says_hours_of_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "plan", "r1-zero", "--model", str(nano.path("teacher")), "--scale", "cpu"]
    assert main(words) == 0
    measured = capsys.readouterr().out
    assert " h at the probe's speed" in measured and " MB a device: weights" in measured
    assert main([*words, "--no-probe"]) == 0
    assert "probe" not in capsys.readouterr().out
    assert main([*words, "--no-probe", "--memory", "0.001"]) == 3
    assert "DOES NOT FIT" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["Bloom", "OPT", "Mixtral", "Qwen3Moe"])
def test_families_that_read_masks_otherwise_or_have_experts_are_planned_too(family: str) -> None:
    sizes = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    own = {"intermediate_size": 64, "num_key_value_heads": 4, "ffn_dim": 64, "word_embed_proj_dim": 64, "head_dim": 16}
    config = getattr(transformers, f"{family}Config")(**sizes, **experts, **own)
    (cost,) = planned("r1-zero", "1x80gb", config)
    tokens = 8192  # of a pass
    assert cost.memory["activations"] > 2 * 8 * 64 * tokens / 1e9  # some eight tensors of each of two layers


def test_stages_that_are_not_planned_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = qwen_like.model(tmp_path)
    main(["train", "plan", "constitutional", "--model", str(folder), "--scale", "cpu", "--no-probe"])
    assert capsys.readouterr().out.splitlines()[-1] == "not planned: 1-revise, 4-feedback"


STAGES = {
    "sft": ('"sft"', {"completion": "a b"}, {"completion": "a b c d e f g h"}),
    "pairs": ('"preference"', {"chosen": "a b", "rejected": "a"}, {"chosen": "a b c d e f g h", "rejected": "b"}),
}


@pytest.mark.parametrize("form", STAGES)
def test_rows_of_a_file_are_counted_in_the_models_tokens(tmp_path: Path, form: str) -> None:
    folder, (kind, short, long) = qwen_like.model(tmp_path / "base"), STAGES[form]
    rows = [{"prompt": f"{number}?", **(short if number else long)} for number in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f'[[stage]]\nkind = {kind}\ndata = "{tmp_path}/rows.jsonl"\nlr = 1e-5\nrows = 2\nheld_out_share = 0\n'

    def cost(steps: int, folder: Path | None = folder) -> StageCost:
        (tmp_path / "recipe.toml").write_text(f"{text}steps = {steps}\n")
        recipe = read_recipe(str(tmp_path / "recipe.toml"))
        (planned,) = plan_recipe(recipe, config_of(qwen_like.model(tmp_path / "base")), None, None, folder=folder)
        return planned

    end = int(turn_tokenizer(folder).eos_token_id)
    if form == "sft":
        sides = read_examples(tmp_path / "rows.jsonl", Text(folder), end)
    else:
        pairs = read_pairs(tmp_path / "rows.jsonl", Text(folder), end)
        sides = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    epoch = sum(len(side.prompt_ids) + len(side.token_ids) for side in sides)
    assert cost(2).trained == epoch and cost(4).trained == 2 * epoch
    assert epoch < cost(3).trained < 2 * epoch < cost(2, None).trained / 10
    assert cost(2).memory["activations"] < cost(2, None).memory["activations"]
