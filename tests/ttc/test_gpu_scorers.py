"""Reward models over the pool of a GPU, on an emulated one: the scores of a CPU, within a memory that does not grow."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from tests.ttc import gpu_reference, test_prm
from tests.ttc.emulated_cuda import EmulatedCuda
from ttc.core import Prompt, Score, Usage
from ttc.engines.embedded.core.model import beside_body
from ttc.engines.embedded.core.weights import read_tensors
from ttc.engines.embedded.device.runtime import CudaRuntime
from ttc.engines.embedded.device.shape import fold
from ttc.engines.embedded.gpu.body import DeviceBody
from ttc.engines.embedded.gpu.families import architecture
from ttc.engines.embedded.gpu.loading import reward_body
from ttc.engines.shared.shape import read_config
from ttc.errors import ConfigError, ScorerError
from ttc.scorers.prm import prm
from ttc.scorers.reward_models import embedded
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.reward_models.embedded import IncrementalScorer

pytestmark = pytest.mark.numeric
STEPS = ("1+1=2 and then some more of it\n\n", "2*3=6\n\n", "so 6, as all of this has shown by now\n\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForTokenClassification

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("classifier")
    test_prm.make_tokenizer(path)
    config = Qwen3Config(**test_prm.KIND, **test_prm.SIZE, head_dim=32, num_labels=2, initializer_range=0.2)
    Qwen3ForTokenClassification(config).save_pretrained(path)
    return path


def on_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch, num_pages: int) -> IncrementalScorer:
    """The scorer of the folder, whose worker computes on an emulated GPU."""
    cuda = EmulatedCuda()

    class EmulatedBody(DeviceBody):
        def place(self) -> Any:
            return cuda  # what a thread computes is emulated in that thread only

    def load(folder: Path, place: EmbeddedCore, *, head: bool) -> tuple[DeviceBody, dict[str, torch.Tensor]]:
        family, state = architecture(read_config(folder)), read_tensors(folder)
        assert family is not None
        weights = fold(state, family.dims, torch.float32, torch.device("cpu"), max_context=256, head=head)
        kernels, ops = gpu_reference.attention(cuda), gpu_reference.operations(cuda)
        runtime = CudaRuntime(torch.device("cuda:0"), cuda)
        body = EmulatedBody(weights, runtime, num_pages=num_pages, max_context=256, kernels=kernels, ops=ops)
        return body, beside_body(state)

    monkeypatch.setattr(embedded, "load", load)
    scorer = prm(str(folder), EmbeddedCore(dtype="float32"))
    assert isinstance(scorer, IncrementalScorer)
    reader: Any = scorer._reader
    head = reader._head

    def waited_for(hidden: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = head(hidden)
        cuda.flush()  # reading a value waits for the device, which the emulation does not see
        return scores

    reader._head = waited_for
    return scorer


def search(scorer: Any, folder: Path, problems: int, rounds: int = 1) -> tuple[list[Score], list[int]]:
    """A small tree for each problem, one problem after the other: its scores, and tokens computed by round."""
    scores: list[Score] = []
    counts: list[int] = []

    async def tree(problem: int, usages: list[Usage]) -> None:
        prompt = test_prm.root(folder, f"user: {problem}+1, what is it?\n", f"p{problem}")
        paths: list[Prompt] = [test_prm.grow(prompt, f"{draw}{STEPS[0]}", draw) for draw in range(3)]
        for step in STEPS[1:]:
            scores.extend(await scorer.score(paths, usages.append))
            paths = [test_prm.grow(path, f"{draw}{step}", draw) for path in paths[:2] for draw in range(2)]
        scores.extend(await scorer.score(paths, usages.append))

    async def go() -> None:
        for _ in range(rounds):
            usages: list[Usage] = []
            for problem in range(problems):
                await tree(problem, usages)
            counts.append(sum(usages, Usage()).scored)

    asyncio.run(go())
    return scores, counts


def values(scores: list[Score]) -> list[float]:
    return [value for score in scores for value in score.steps]


def test_scores_are_those_of_a_cpu_and_each_token_is_computed_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = prm(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    expected, computed = search(cpu, folder, 2, rounds=2)
    scores, counts = search(on_gpu(folder, monkeypatch, 150), folder, 2, rounds=2)
    assert values(scores) == pytest.approx(values(expected), abs=1e-4)
    assert counts == computed and counts[1] == 0


def test_problems_that_do_not_fit_together_are_computed_again_and_none_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = prm(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    expected, (computed, _) = search(cpu, folder, 4, rounds=2)
    scorer = on_gpu(folder, monkeypatch, 60)
    stored = scorer._body.pool.shelf.stored  # type: ignore[attr-defined]
    scores, counts = search(scorer, folder, 4, rounds=2)
    assert values(scores) == pytest.approx(values(expected), abs=1e-4)
    assert counts[0] == computed and 0 < counts[1] <= computed
    assert scorer._body.pool.shelf.stored is stored  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_pages", [90, 24])
def test_a_batch_of_more_answers_than_memory_holds_is_scored_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_pages: int
) -> None:
    """As best-of-n asks: every problem is in the batch, so none is idle, and what is scored already must make room."""
    roots = [test_prm.root(folder, f"user: {problem}+1, what is it?\n", f"p{problem}") for problem in range(6)]
    paths = [test_prm.grow(root, f"{draw}" * 40 + STEPS[0], draw) for root in roots for draw in range(8)]

    def scored(scorer: Any) -> list[Score]:
        async def go() -> list[Score]:
            calls = [scorer.score(paths[start : start + 8], lambda _: None) for start in range(0, len(paths), 8)]
            return [score for call in await asyncio.gather(*calls) for score in call]

        return asyncio.run(go())

    expected = scored(prm(str(folder), EmbeddedCore(dtype="float32", device="cpu")))
    assert values(scored(on_gpu(folder, monkeypatch, num_pages))) == pytest.approx(values(expected), abs=1e-4)


def test_what_does_not_fit_is_refused_before_anything_is_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = on_gpu(folder, monkeypatch, 10)._body
    monkeypatch.setattr(body, "forward", lambda *_: pytest.fail("computed what would be thrown away"))
    with pytest.raises(MemoryError, match="all 10 pages"), body.place():
        body.extend([(None, [1] * 17)] * 6)  # two pages each


def test_a_path_that_memory_is_never_enough_for_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = on_gpu(folder, monkeypatch, 10)
    prompt = test_prm.root(folder)
    short, long = test_prm.grow(prompt, "2\n\n", 0), test_prm.grow(prompt, "3" * 180, 1)

    async def go() -> list[Any]:
        calls = (scorer.score([path], lambda _: None) for path in (short, long))
        return await asyncio.gather(*calls, return_exceptions=True)

    (first,), lost = asyncio.run(go())
    assert 0 < first.value < 1
    assert isinstance(lost, ScorerError) and "out of memory for a single path of" in str(lost)


@pytest.mark.parametrize(
    ("free", "changes", "message"),
    [
        (1 << 28, {}, r"does not fit on the GPU: weights take .* leave it more with engine.kv_bytes"),
        (1 << 30, {"kv_bytes": 1 << 40}, r"scorer.kv_bytes=.* set scorer.kv_bytes to at most \d+"),
        (1 << 30, {"kv_bytes": 1 << 17}, r"scorer.max_context=256 .* set scorer.max_context=\d+, or raise scorer.kv_b"),
    ],
)
def test_a_reward_model_that_does_not_fit_beside_the_engine_is_refused_before_its_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, changes: dict[str, int], message: str
) -> None:
    from ttc.engines.embedded.gpu import loading

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 << 30))
    monkeypatch.setattr(loading, "read_tensors", lambda folder: pytest.fail("weights were read"))
    options: Any = {"dtype": "float32", "max_context": None, "kv_bytes": None, "head": False, **changes}
    with pytest.raises(ConfigError, match=message):
        reward_body(folder, device=torch.device("cuda:0"), **options)


def test_a_pool_for_a_cpu_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"scorer.kv_bytes is for GPUs"):
        prm(str(folder), EmbeddedCore(device="cpu", kv_bytes=1 << 20))
