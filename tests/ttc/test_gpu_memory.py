"""What fits on a GPU is settled before weights are read, and what runs there stays within it."""

from __future__ import annotations

import importlib.util
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu_counts import SHAPES
from ttc.engines.embedded.engine import embedded
from ttc.engines.embedded.gpu.budget import budget, scratch_bytes, stored_numbers
from ttc.engines.embedded.loading import load
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError

with_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
SEVEN = Dims.from_config(SHAPES["7B"])
TOKEN = 57_344  # bytes of keys and values of one token: 2 x 28 layers x 4 heads x 128 x 2
OPTIONS = {"weights": 7_616_000_000, "itemsize": 2, "free": 80 * 10**9, "max_batch": 256}


def test_the_pool_is_four_fifths_of_what_weights_and_scratch_leave() -> None:
    plan = budget(SEVEN, **OPTIONS, max_context=8192, kv_bytes=None)
    left = 80 * 10**9 - 2 * 7_616_000_000 - scratch_bytes(SEVEN, 2, 256, 8192)
    assert SEVEN.kv_bytes(2) == TOKEN
    assert abs(plan.num_pages * 16 * TOKEN - left * 4 // 5) <= 16 * TOKEN
    assert plan.num_pages * 16 * TOKEN - plan.kv_bytes == 8192 * TOKEN  # left free for what the tree copies
    assert plan.max_context == 8192


def test_kv_bytes_is_what_the_pool_takes() -> None:
    plan = budget(SEVEN, **OPTIONS, max_context=4096, kv_bytes=10**10)
    assert 10**10 - 16 * TOKEN < plan.num_pages * 16 * TOKEN <= 10**10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"free": 15 * 10**9}, r"weights take 14.19 GiB, scratch .* 13.97 GiB are free; take a smaller model"),
        ({"kv_bytes": 70 * 10**9}, r"kv_bytes=70000000000 \(65.19 GiB\) does not fit .* kv_bytes to at most 6\d{10}"),
        ({"free": 18 * 10**9, "max_context": 32768}, r"max_context=32768 needs 1.75 GiB .* set max_context=\d+$"),
        ({"kv_bytes": 10**9}, r"max_context=32768 needs 1.75 GiB .* set max_context=\d+, or raise kv_bytes$"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(changes: dict[str, int], message: str) -> None:
    options = {**OPTIONS, "max_context": None, "kv_bytes": None, **changes}
    with pytest.raises(ConfigError, match=message) as error:
        budget(SEVEN, **options)
    words = str(error.value)
    for name in ("max_context=", "kv_bytes to at most "):
        if name in words.rpartition("set ")[2]:
            fix = int(words.rpartition(name)[2].split(",")[0])
            budget(SEVEN, **{**options, name.split("=")[0].split()[0]: fix})  # the fix fixes


def test_numbers_are_counted_by_the_headers_alone(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}, "__metadata__": {"format": "pt"}}
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(60))
    assert stored_numbers(tmp_path) == 15
    (tmp_path / "model.safetensors").write_bytes(b"no header of weights")
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a safetensors file"):
        stored_numbers(tmp_path)


def test_quantised_weights_are_refused_by_name(tmp_path: Path) -> None:
    config = {**SHAPES["0.5B"], "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"quantised \(awq\), .* --engine vllm or --engine sglang"):
        load(
            tmp_path, device="cpu", dtype="auto", threads=1, max_batch=4, max_context=None, kv_bytes=None,
            batch_invariant=False,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "names", "words"),
    [
        ("bert", ["BertForMaskedLM"], r"of type 'bert' \(BertForMaskedLM\) fills gaps in a text and does not generate"),
        ("xlm-roberta", ["XLMRobertaModel"], "of type 'xlm-roberta'.* encodes a whole text"),
        ("modernbert", None, "no architecture named"),
        ("qwen2", ["Qwen2ForSequenceClassification"], "--scorer orm:FOLDER"),
        ("qwen2", ["Qwen2ForTokenClassification"], "--scorer prm:FOLDER"),
    ],
)
def test_models_that_continue_no_text_are_refused_before_anything_of_them_is_read(
    kind: str, names: list[str] | None, words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPES["0.5B"], "model_type": kind, "architectures": names}))
    with pytest.raises(ConfigError, match=words) as refusal:
        embedded(str(tmp_path))
    assert str(tmp_path) in str(refusal.value) and "ending in ForCausalLM" in str(refusal.value)


@pytest.mark.parametrize("fields", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_a_model_that_reads_in_both_directions_is_refused(fields: dict[str, bool], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPES["0.5B"], "model_type": "qwen2", **fields}))
    with pytest.raises(ConfigError, match=f"{next(iter(fields))}=.* both directions and does not generate"):
        embedded(str(tmp_path))


def test_a_bert_that_is_a_decoder_is_no_encoder(tmp_path: Path) -> None:
    for config in ({"is_decoder": True, "architectures": ["BertModel"]}, {"architectures": ["BertLMHeadModel"]}):
        (tmp_path / "config.json").write_text(json.dumps({**SHAPES["0.5B"], "model_type": "bert", **config}))
        with pytest.raises(ConfigError, match="no tokenizer"):
            embedded(str(tmp_path))


@with_triton
def test_held_keys_are_near_the_unique_ones_and_all_branches_run() -> None:
    from benchmarks.gpu_memory import Scenario, measure

    use = measure("7B", Scenario("branches", 1, 4_000, 24, 300))
    assert use.most_rows == use.finished == 24
    assert use.unique <= use.live <= use.held <= use.pool and use.live < 1.4 * use.unique
    assert use.peak <= 80 * 10**9


@with_triton
def test_more_rows_than_the_pool_holds_wait_and_all_end() -> None:
    from benchmarks.gpu_memory import Scenario, measure

    use = measure("7B", Scenario("rows", 40, 300, 1, 2_000), free=19 * 10**9)
    assert 1 < use.most_rows < 40 and use.finished == 40
    assert use.held <= use.pool and use.peak <= 19 * 10**9


@with_triton
@pytest.mark.parametrize("rows", [1, 5])
def test_a_token_costs_one_replay_few_launches_and_the_unique_keys(rows: int) -> None:
    from benchmarks.gpu_counts import count

    counted = count("0.5B", rows, looks=16)
    assert counted.nodes_a_layer <= 8 and counted.replays == 1
    assert counted.launches_beside < 0.5 and counted.launches_beside_with_rows_that_change <= 2
    assert counted.blocking <= 0.25 and counted.keys_read == counted.keys_unique


@with_triton
def test_the_counted_scratch_covers_what_a_step_allocates() -> None:
    from benchmarks.gpu_counts import meta_weights
    from ttc.engines.embedded.device.buffers import StepBuffers

    dims = replace(SEVEN, num_layers=1)
    buffers = StepBuffers.allocate(meta_weights(dims), 256, 512, 4)
    assert sum(tensor.nbytes for tensor in buffers.tensors) < scratch_bytes(dims, 2, 256, 8192) / 2
