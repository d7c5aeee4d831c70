"""The cheap ways to read a label model on a vLLM server: scores as by the authors, and every new token about once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ttc.reward_server import PrefixCache, classify, metrics, models, reward_server, spans
from tests.ttc.test_scorers_adapters import CASES, STEPS, grow, num_unique, root, run
from tests.ttc.test_scorers_http import grown, label_rows
from ttc.errors import ScorerError
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore, StepsOverHttp

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CASES["qwen_prm"].build(tmp_path_factory.mktemp("q") / "m")


@pytest.mark.parametrize("block", [16, 32])
def test_a_server_with_the_plugin_is_asked_once_a_path_and_computes_new_tokens_only(qwen: Path, block: int) -> None:
    cache = PrefixCache(block)
    routes = {"/v1/models": models("reward"), "/metrics": metrics(block), "/pooling": spans(label_rows(qwen), cache)}
    with reward_server(routes) as (url, seen):
        scorer, total, nodes = prm(str(qwen), StepsOverHttp(base_url=url)), 0, grown("\n\n")
        asked, probed = len(seen), cache.computed
        for number, node in enumerate(nodes, start=1):
            (score,), scored = run(scorer, [node])
            total += scored
            assert score.steps == pytest.approx(CASES["qwen_prm"].direct(qwen, STEPS[:number]), abs=2e-5)
        assert len(seen) == asked + len(STEPS)
        assert total == cache.computed - probed
        (whole,), _ = run(scorer, [grow(root(problem="q"), "\n\n".join(STEPS))])
        assert whole.steps == pytest.approx(score.steps, abs=1e-6)
    local = prm(str(qwen), EmbeddedCore(dtype="float32", device="cpu"))
    assert num_unique(local, nodes) <= total <= num_unique(local, nodes) + block * len(nodes)


def token_class_rows(folder: Path) -> Callable[[list[int]], list[list[float]]]:
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()

    def rows(ids: list[int]) -> list[list[float]]:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].tolist()

    return rows


@pytest.mark.parametrize("told", [True, False])
def test_a_server_that_pools_the_last_token_is_asked_once_a_step_out_of_its_cache(tmp_path: Path, told: bool) -> None:
    case, cache = CASES["trl_prm"], PrefixCache(16)
    folder = case.build(tmp_path / case.folder)
    rows = token_class_rows(folder)
    routes = {"/v1/models": models("reward"), "/classify": classify(lambda ids: rows(ids)[-1], cache)}
    routes |= {"/metrics": metrics(16)} if told else {}
    with reward_server(routes) as (url, seen):
        scorer = prm(str(folder), StepsOverHttp(base_url=url), adapter=case.adapter)
        asked, probed, charged = len(seen), cache.computed, 0
        nodes = grown(case.delimiter)
        for number, node in enumerate(nodes, start=1):
            (score,), scored = run(scorer, [node])
            charged += scored
            assert score.steps == pytest.approx(case.direct(folder, STEPS[:number]), abs=2e-5)
        assert len(seen) == asked + len(STEPS)
        one, other = (grow(nodes[0], f"Then {word}.{case.delimiter}", at) for at, word in enumerate(["this", "that"]))
        charged += run(scorer, [one, other])[1]
        computed = cache.computed - probed
        sent = sum(len(body["input"]) for path, body in seen[asked:] if path == "/classify")
    assert charged == (computed if told else sent) and computed < sent


def test_a_plugin_that_answers_nonsense_is_named(qwen: Path) -> None:
    answers = iter([{"data": {"rows": [[0, 1]], "cached": 0}}])

    def answer(body: dict[str, Any]) -> Any:
        return next(answers, {"data": {"rows": [[0, 1]], "cached": 3}})

    with reward_server({"/v1/models": models("m"), "/pooling": answer}) as (url, _):
        scorer = prm(str(qwen), StepsOverHttp(base_url=url))
        with pytest.raises(ScorerError, match="1 rows and 3 cached"):
            run(scorer, [grow(root(), STEPS[0])])
