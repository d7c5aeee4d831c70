"""Reward models on the real vLLM: the same scores as in process, and what the prefix cache leaves to compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ttc.test_scorers_adapters import CASES, grow, num_unique, root, run
from tests.ttc.vllm_server import counted, vllm_server
from ttc.core import Scorer
from ttc.errors import ConfigError
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore, InVllm, StepsOverHttp

STEPS = (
    "Adding the first number to the second one gives 12, and then so on and on. ",
    "First we look at what is given: two numbers, both of them small, and a sum. ",
    "Let us write down the equation once more and see which term is not known. ",
)

ALL = ["--pooler-config", '{"tok_pooling_type": "ALL"}', "--io-processor-plugin", "ttc_steps"]
LAST = ["--pooler-config", '{"task": "classify"}']
WAYS = {"Qwen, spans": ("qwen_prm", ALL), "classifier, spans": ("trl_prm", ALL), "classifier, last": ("trl_prm", LAST)}


def search(local: Scorer, served: Scorer, delimiter: str) -> tuple[int, int, int]:
    """Score a small tree with both, step by step; what each charged, and the distinct tokens that were read."""
    nodes, paths, total, own = [root()], [], 0, 0
    for depth in range(3):
        children = [
            grow(node, f"{step} It is {depth}.{delimiter}", draw) for node in nodes for draw, step in enumerate(STEPS)
        ]
        found, scored = run(served, children)
        expected, local_scored = run(local, children)
        for one, other in zip(found, expected, strict=True):
            assert one.steps == pytest.approx(other.steps, abs=2e-3)
        total, own = total + scored, own + local_scored
        paths += children
        nodes = children[:2]
    return own, total, num_unique(local, paths)


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["qwen_prm", "math_shepherd", "rlhflow_prm", "trl_prm"])
def test_vllm_scores_like_the_embedded_core_and_reads_new_tokens_only(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    folder = str(case.build(tmp_path / case.folder))
    in_vllm = InVllm(dtype="float32", max_context=512, kv_cache_bytes=1 << 28)
    served = prm(folder, in_vllm, adapter=case.adapter)
    local = prm(folder, EmbeddedCore(dtype="float32", max_context=512, device="cpu"), adapter=case.adapter)
    own, total, unique = search(local, served, case.delimiter)
    assert own <= 1.1 * unique and total <= 1.3 * unique

    whole = [grow(root(problem="q"), case.delimiter.join(["One.", "Two is 2.", "Three"]), draw) for draw in range(2)]
    (one, other), _ = run(served, whole)
    assert one.steps == pytest.approx(run(local, whole)[0][0].steps, abs=2e-3) and one == other and len(one.steps) == 3


@pytest.mark.vllm
@pytest.mark.parametrize("name", list(WAYS))
def test_a_server_scores_like_the_embedded_core_and_computes_what_the_ledger_says(tmp_path: Path, name: str) -> None:
    way, flags = WAYS[name]
    case = CASES[way]
    folder = str(case.build(tmp_path / case.folder))
    flags = [*flags, "--dtype", "float32", "--max-model-len", "512", "--runner", "pooling"]
    local = prm(folder, EmbeddedCore(device="cpu", dtype="float32"), adapter=case.adapter)
    with vllm_server(folder, tmp_path, *flags) as url:
        served = prm(folder, StepsOverHttp(base_url=url), adapter=case.adapter)
        before = counted(url)
        own, total, unique = search(local, served, case.delimiter)
        after = counted(url)
    assert own <= 1.1 * unique and total <= 1.3 * unique
    found = after - before
    assert total == found["prompt_tokens"] - found["prefix_cache_hits"]


@pytest.mark.vllm
def test_a_head_that_vllm_has_no_code_for_is_refused_before_vllm_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="skywork_prm: use backend=embedded"):
        prm(str(CASES["skywork_prm"].build(tmp_path / "m")), InVllm())
