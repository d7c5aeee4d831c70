"""Adapters apart from their model: written, merged to the same bits, read by peft's layout, refused on another base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from train.base.adapters import merge_adapter
from train.base.models import Shape, load_model, new_model, save_model
from train.base.weights import LoraLinear, add_lora, merged_state, save_adapter, weights_digest
from train.nano import tokenizer as nano
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric


def _base(folder: Path, seed: int = 1, dtype: torch.dtype = torch.bfloat16) -> Path:
    tokenizer = nano.build()
    save_model(new_model(Shape(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24), tokenizer, seed), tokenizer, folder)
    if dtype == torch.bfloat16:
        model = load_model(folder, "cpu").to(dtype)
        model.save_pretrained(folder)
    return folder


def _trained(base: Path, out: Path, seed: int = 2) -> dict[str, torch.Tensor]:
    model = load_model(base, "cpu")
    add_lora(model, 4, 8.0, seed)
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, LoraLinear):
            module.up.data = torch.randn(module.up.shape, generator=generator) * 0.1
    save_adapter(model, out)
    return merged_state(model)


def test_a_merged_folder_computes_what_the_adapted_model_did(tmp_path: Path) -> None:
    base = _base(tmp_path / "base")
    state = _trained(base, tmp_path / "run")
    digest = merge_adapter(base, tmp_path / "run", tmp_path / "merged")
    merged = load_model(tmp_path / "merged", "cpu")
    assert weights_digest(merged.named_parameters()) == digest
    for name, tensor in merged.named_parameters():
        # adapter and sum are each rounded to bf16, whose grain is 2^-8 of a number
        assert torch.allclose(tensor, state[name], rtol=2**-7, atol=2**-8), name
    before = load_model(base, "cpu").named_parameters()
    moved = [name for name, tensor in before if not tensor.equal(merged.get_parameter(name))]
    assert moved
    assert all(name.endswith("_proj.weight") for name in moved)
    assert (tmp_path / "merged" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_nothing_of_how_the_base_stored_its_weights_stays_beside_merged_ones(tmp_path: Path) -> None:
    base = _base(tmp_path / "base")
    _trained(base, tmp_path / "run")
    model = load_model(base, "cpu").to(torch.bfloat16)
    (base / "model.safetensors").unlink()
    model.save_pretrained(base, max_shard_size="5KB")
    assert len(list(base.glob("*.safetensors"))) > 1 and (base / "model.safetensors.index.json").is_file()
    torch.save(model.state_dict(), base / "pytorch_model.bin")
    (base / "NOTICE").write_text("kept")
    digest = merge_adapter(base, tmp_path / "run", tmp_path / "merged")
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert {"NOTICE", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"model.safetensors.index.json", "pytorch_model.bin"}
    assert weights_digest(load_model(tmp_path / "merged", "cpu").named_parameters()) == digest


def test_a_chain_of_adapters_is_merged_to_the_same_bits_whatever_type_the_base_is_held_in(tmp_path: Path) -> None:
    base = _base(tmp_path / "base")
    _trained(base, tmp_path / "first")
    one = merge_adapter(base, tmp_path / "first", tmp_path / "one")
    _trained(tmp_path / "one", tmp_path / "second", seed=5)
    two = merge_adapter(tmp_path / "one", tmp_path / "second" / "adapter", tmp_path / "two")
    assert merge_adapter(base, tmp_path / "first", tmp_path / "again") == one
    assert merge_adapter(tmp_path / "again", tmp_path / "second", tmp_path / "both") == two
    half = load_model(base, "cpu", dtype=torch.bfloat16)
    assert weights_digest(half.named_parameters()) == weights_digest(load_model(base, "cpu").named_parameters())


def test_the_layout_is_that_of_peft(tmp_path: Path) -> None:
    _trained(_base(tmp_path / "base"), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8.0)
    assert config["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    tensors = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    down = tensors["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"]
    up = tensors["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"]
    assert (down.shape, up.shape, up.dtype) == ((4, 16), (24, 4), torch.bfloat16)


def test_an_adapter_of_another_model_is_refused_and_so_is_a_folder_without_one(tmp_path: Path) -> None:
    base, other = _base(tmp_path / "base"), _base(tmp_path / "other", seed=9)
    _trained(base, tmp_path / "run")
    with pytest.raises(ConfigError, match="belongs to weights"):
        merge_adapter(other, tmp_path / "run", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(ConfigError, match="holds no adapter"):
        merge_adapter(base, other, tmp_path / "merged")
    with pytest.raises(ConfigError, match="exists; choose another"):
        merge_adapter(base, tmp_path / "run", other)


def test_a_model_without_adapters_writes_none(tmp_path: Path) -> None:
    save_adapter(load_model(_base(tmp_path / "base"), "cpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
