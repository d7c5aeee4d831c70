"""What parts and strategies are made of, known without loading them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.ttc.tiny_model import write_tokenizer
from ttc import nano
from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES, VERIFIERS, Registry
from ttc.identity.digests import ROLES, ModelFolder, file_digest, model_digests, part_contents, reads, strategy_contents


def part(registry: Registry, name: str, model: str | None = None, **params: object) -> PartChoice:
    return PartChoice(registry.kind, name, model, registry.load(name), params)


def test_a_default_model_is_the_packaged_one():
    contents = part_contents(part(ENGINES, "embedded"))
    assert contents == {
        f"{role} of model teacher": digest for role, digest in model_digests(nano.path("teacher")).items()
    }
    assert list(part_contents(part(SCORERS, "prm"))) == [f"{role} of scorer prm" for role in ROLES]


def test_an_adapter_of_vllm_counts_beside_its_model(tmp_path):
    shutil.copytree(nano.path("student"), tmp_path / "base")
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_model.safetensors").write_bytes(b"x")
    (tmp_path / "lora" / "adapter_config.json").write_text('{"r": 8}')
    chosen = part(ENGINES, "vllm", str(tmp_path / "base"), lora=str(tmp_path / "lora"))
    assert f"weights of adapter {tmp_path / 'lora'}" in part_contents(chosen)
    assert f"weights of model {tmp_path / 'base'}" in part_contents(chosen)


@pytest.mark.parametrize(
    ("registry", "name", "options"),
    [
        (ENGINES, "openai", {"base_url": "http://127.0.0.1:9/v1"}),
        (ENGINES, "sglang", {"base_url": "http://127.0.0.1:9"}),
        (SCORERS, "prm", {"backend": "http", "base_url": "http://127.0.0.1:9"}),
        (SCORERS, "orm", {"backend": "http", "base_url": "http://127.0.0.1:9"}),
    ],
)
def test_of_a_model_behind_a_server_only_what_is_read_here_counts(tmp_path, registry, name, options):
    write_tokenizer(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not what the server runs")
    roles = [key.partition(" of ")[0] for key in part_contents(part(registry, name, str(tmp_path), **options))]
    assert roles == ["tokenizer", "chat template"]


def test_without_a_local_tokenizer_nothing_is_known_of_a_served_model():
    assert part_contents(part(ENGINES, "openai", "gpt-x", base_url="http://127.0.0.1:9/v1")) == {}
    assert part_contents(part(ENGINES, "openai", "gpt-x", tokenizer="none")) == {}


def test_the_members_of_an_ensemble_and_the_models_of_judges_count():
    student = str(nano.path("student"))
    members = (f"prm:{nano.path('prm')}", f"judge:{student}", "likelihood")
    contents = part_contents(part(SCORERS, "ensemble", members=members))
    assert f"weights of scorer prm:{nano.path('prm')}" in contents and f"weights of model {student}" in contents
    assert f"chat template of model {student}" in part_contents(part(VERIFIERS, "judge", student))
    assert part_contents(part(SCORERS, "judge")) == {}  # the generator judges


def test_the_parts_of_a_composite_verifier_count(tmp_path):
    (tmp_path / "mine.py").write_text("def check():\n    return None\n")
    spec = tmp_path / "reward.toml"
    spec.write_text(f'[parts.a]\nverifier = "{tmp_path}/mine.py:check"\n[parts.b]\nverifier = "math"\n')
    contents = part_contents(part(VERIFIERS, "composite", spec=spec))
    assert list(contents) == ["verifier file mine.py", "spec of verifier composite: reward.toml"]


def test_files_among_the_parameters_count_and_other_texts_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plan.json", "dvts", "my_policy.py"):
        Path(name).write_text("{}")
    function = STRATEGIES.load("auto")
    params = {
        "plan": "plan.json",
        "policy": "dvts",
        "more": ("my_policy.py:f", "absent.py:f", "x" * 5000 + ".", "a\0.b"),
    }
    contents = strategy_contents(StrategyChoice("auto", "auto", function, params))
    assert list(contents) == ["plan of strategy auto: plan.json", "more of strategy auto: my_policy.py"]
    assert contents["plan of strategy auto: plan.json"] == file_digest(Path("plan.json"))


def test_the_script_of_the_scripted_engine_counts(tmp_path):
    (tmp_path / "replies.json").write_text("{}")
    chosen = part(ENGINES, "scripted", str(tmp_path / "replies.json"))
    assert list(part_contents(chosen)) == ["model of engine scripted: replies.json"]


def test_a_part_of_ones_own_is_taken_to_read_its_model_and_may_say_otherwise(tmp_path):
    shutil.copytree(nano.path("student"), tmp_path / "model")

    def plain(model=None):
        return None

    @reads(lambda *, model, size, **_: [ModelFolder(tmp_path / size, ("weights",))])
    def stating(model=None, *, size="model"):
        return None

    folder = str(tmp_path / "model")
    assert f"weights of model {folder}" in part_contents(PartChoice("engine", "plain", folder, plain, {}))
    assert list(part_contents(PartChoice("engine", "stating", None, stating, {}))) == ["weights of model model"]
