"""Reward models behind HTTP: real requests over loopback, scores as in process, costs as the server tells them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ttc.reward_server import Answer, Refused, classify, completions, models, pooling, reward_server
from tests.ttc.test_scorers_adapters import (
    CASES,
    ORMS,
    STEPS,
    grow,
    head_of,
    hidden_of,
    logits_of,
    num_unique,
    root,
    run,
    tokenizer_of,
)
from ttc.config.registry import SCORERS
from ttc.core import Completion, Message, Prompt, Usage
from ttc.errors import ConfigError, EngineError, PromptTooLong, ScorerError
from ttc.scorers.orm import orm
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore, OverHttp, StepsOverHttp

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CASES["qwen_prm"].build(tmp_path_factory.mktemp("q") / "m")


@pytest.fixture(scope="module")
def shepherd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = CASES["math_shepherd"]
    return case.build(tmp_path_factory.mktemp("s") / case.folder)


LOADING = threading.Lock()
"""The server answers in many threads, and transformers patches its own classes while it loads: two loads at once leave
the patch in place, and every model that a later test loads has an untied head."""


def label_rows(folder: Path) -> Callable[[list[int]], list[list[float]]]:
    def rows(ids: list[int]) -> list[list[float]]:
        with LOADING:
            hidden = hidden_of(folder, ids)
        return head_of(folder, "score.0", "score.2")(hidden).tolist()

    return rows


def token_rows(folder: Path) -> Callable[[list[int]], list[list[float]]]:
    def rows(ids: list[int]) -> list[list[float]]:
        with LOADING:
            logits = logits_of(folder, ids)
        return logits.log_softmax(-1).tolist()

    return rows


def grown(delimiter: str) -> list[Prompt]:
    nodes = [root()]
    for step in STEPS:
        nodes.append(grow(nodes[-1], step + delimiter))
    return nodes[1:]


@pytest.mark.parametrize("pooled", ["every token", "every step"])
def test_a_label_model_at_pooling_scores_like_the_authors_and_costs_the_whole_path_each_time(
    qwen: Path, pooled: str
) -> None:
    tag = tokenizer_of(qwen).encode("<extra_0>")[0] if pooled == "every step" else None
    routes = {"/v1/models": models("reward"), "/pooling": pooling(label_rows(qwen), tag)}
    with reward_server(routes) as (url, seen):
        scorer = prm(str(qwen), StepsOverHttp(base_url=url))
        for number, node in enumerate(grown("\n\n"), start=1):
            (score,), scored = run(scorer, [node])
            assert score.steps == pytest.approx(CASES["qwen_prm"].direct(qwen, STEPS[:number]), abs=2e-5)
            assert scored == len(seen[-1][1]["input"])
    assert [path for path, _ in seen] == ["/v1/models", "/pooling", "/classify", "/pooling", "/pooling", "/pooling"]
    assert seen[3][1]["model"] == "reward" and seen[3][1]["task"] == "token_classify"


def test_a_token_model_at_completions_asks_for_new_steps_only_and_reads_the_prefix_cache(shepherd: Path) -> None:
    routes = {"/v1/models": models("reward"), "/v1/completions": completions(token_rows(shepherd))}
    with reward_server(routes) as (url, seen):
        scorer, total = prm(str(shepherd), StepsOverHttp(base_url=url)), 0
        nodes = grown("\n\n")
        for number, node in enumerate(nodes, start=1):
            (score,), scored = run(scorer, [node])
            total += scored
            assert score.steps == pytest.approx(CASES["math_shepherd"].direct(shepherd, STEPS[:number]), abs=2e-5)
        assert [path for path, _ in seen] == ["/v1/models", "/metrics"] + ["/v1/completions"] * len(STEPS)
        (again,), scored = run(scorer, [nodes[-1]])
        assert again == score and scored == 0
    local = prm(str(shepherd), EmbeddedCore(dtype="float32", device="cpu"))
    assert num_unique(local, nodes) <= total <= num_unique(local, nodes) + 31 * len(nodes)


@pytest.mark.parametrize("name", ["sequence_rm", "qwen_rm", "rlhflow_orm"])
def test_an_outcome_model_on_a_server_scores_like_the_authors(tmp_path: Path, name: str) -> None:
    place, build, direct = ORMS[name]
    folder = build(tmp_path / place)

    routes = {"/classify": classify(last_logits(folder))} if name == "sequence_rm" else {}
    routes |= {"/v1/models": models("reward"), "/v1/completions": completions(token_rows(folder))}
    routes |= {"/pooling": pooling(label_rows(folder), None)}
    with reward_server(routes) as (url, seen):
        answers = ["First 1+1=2.\n\nSo \\boxed{6}", "No idea."]
        scorer = orm(str(folder), OverHttp(base_url=url))
        scores, scored = run(scorer, [grow(root(), text, draw) for draw, text in enumerate(answers)])
    assert [score.value for score in scores] == pytest.approx([direct(folder, text) for text in answers], abs=2e-5)
    assert 0 < scored <= sum(len(body.get("input", body.get("prompt", ()))) for _, body in seen)


def last_logits(folder: Path) -> Callable[[list[int]], list[float]]:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(ids: list[int]) -> list[float]:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].tolist()

    return logits


@pytest.mark.parametrize("reply", [{}, {"data": []}, {"data": [{"data": None}]}, {"data": [{}]}])
def test_a_reply_without_rows_is_named_and_shown(qwen: Path, reply: dict[str, Any]) -> None:
    with reward_server({"/v1/models": models("m"), "/pooling": lambda body: reply}) as (url, _):
        scorer = prm(str(qwen), StepsOverHttp(base_url=url))
        with pytest.raises(ScorerError):
            run(scorer, [grow(root(), STEPS[0])])


def test_a_plain_json_server_with_an_incremental_scorer_behind_it_costs_each_token_once(qwen: Path) -> None:
    local = prm(str(qwen), EmbeddedCore(dtype="float32", device="cpu"))

    def score(body: dict[str, Any]) -> dict[str, Any]:
        messages = tuple(Message(turn["role"], turn["content"]) for turn in body["messages"])
        node = Prompt("", None, messages=messages, problem_id=body["problem_id"])
        for step in body["steps"]:
            node = node.then(Completion((*node.path, 0), step + "\n\n", (), "stop"))
        (found,), scored = run(local, [node])
        return {"scores": found.steps, "scored_tokens": scored}

    with reward_server({"/score": score}) as (url, seen):
        scorer, total = prm(None, StepsOverHttp(base_url=url, protocol="steps")), 0
        for number, node in enumerate(grown("\n\n"), start=1):
            (found,), scored = run(scorer, [node])
            total += scored
            assert found.steps == pytest.approx(CASES["qwen_prm"].direct(qwen, STEPS[:number]), abs=2e-5)
            assert found.value == found.steps[-1]
    assert total == num_unique(prm(str(qwen), EmbeddedCore(dtype="float32", device="cpu")), grown("\n\n"))
    assert seen[0][1]["messages"] == [{"role": "user", "content": root().messages[0].content}]


def test_a_server_that_is_busy_once_is_asked_again_and_one_loop_after_another_is_served() -> None:
    failures = iter([503])

    def score(body: dict[str, Any]) -> dict[str, Any]:
        for status in failures:
            raise Refused(status, "busy")
        return {"scores": [0.5] * len(body["steps"]), "scored_tokens": 7}

    with reward_server({"/score": score}) as (url, seen):
        scorer = prm(None, StepsOverHttp(base_url=url, protocol="steps"))
        assert [run(scorer, [node])[1] for node in grown("\n\n")] == [7, 7, 7]
    assert len(seen) == 4


def test_paths_of_one_call_are_sent_at_once() -> None:
    together, lock = threading.Barrier(2, timeout=5), threading.Lock()

    def score(body: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        with lock:
            return {"scores": [0.25], "scored_tokens": 1}

    with reward_server({"/score": score}) as (url, _):
        scorer = prm(None, StepsOverHttp(base_url=url, protocol="steps"))
        assert run(scorer, [grow(root(), "a"), grow(root(), "b", 1)])[1] == 2


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ({"scores": [0.5, 0.5], "scored_tokens": 1}, "must give 1 scores"),
        ({"scores": [0.5]}, "scored_tokens"),
        ({"detail": "what"}, "what"),
    ],
)
def test_an_answer_outside_the_contract_is_an_error_not_a_score(answer: Any, named: str) -> None:
    with reward_server({"/score": lambda body: answer}) as (url, _):
        scorer = prm(None, StepsOverHttp(base_url=url, protocol="steps"))
        with pytest.raises(ScorerError, match=named):
            run(scorer, [grow(root(), "a")])


def test_a_server_with_another_step_tag_is_named_with_the_flag_that_helps(qwen: Path) -> None:
    routes: dict[str, Answer] = {"/v1/models": models("m"), "/pooling": pooling(label_rows(qwen), 3)}
    with reward_server(routes) as (url, _):
        scorer = prm(str(qwen), StepsOverHttp(base_url=url))
        with pytest.raises(ScorerError, match="--pooler-config"):
            run(scorer, [grow(root(), STEPS[0])])


def test_a_context_overrun_is_named(qwen: Path) -> None:
    def refuse(body: dict[str, Any]) -> Any:
        raise Refused(400, "This model's maximum context length is 512 tokens")

    routes = {"/v1/models": models("m"), "/pooling": refuse}
    with reward_server(routes) as (url, _), pytest.raises(PromptTooLong, match="512"):
        run(prm(str(qwen), StepsOverHttp(base_url=url)), [grow(root(), STEPS[0])])


def test_what_cannot_work_is_refused_before_any_scoring(qwen: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        SCORERS.create("prm", {"backend": "http"}, supply={"model": str(qwen)})
    with pytest.raises(ConfigError, match="base_url"):
        SCORERS.create("prm", {"base_url": "http://127.0.0.1:1"}, supply={"model": str(qwen)})
    with pytest.raises(ConfigError, match="http://"):
        prm(str(qwen), StepsOverHttp(base_url="localhost:1"))
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        prm(str(qwen), StepsOverHttp(base_url="http://127.0.0.1:1", api_key_env="NO_SUCH_KEY"))
    with pytest.raises(EngineError, match="cannot be reached"):
        prm(str(qwen), StepsOverHttp(base_url="http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="skywork_prm"):
        skywork = CASES["skywork_prm"].build(tmp_path / "m")
        prm(str(skywork), StepsOverHttp(base_url="http://127.0.0.1:1"))
    routes = {"/v1/models": models("a", "b")}
    with reward_server(routes) as (url, _), pytest.raises(ConfigError, match="served_model"):
        prm(str(qwen), StepsOverHttp(base_url=url))


def test_cancelling_a_score_leaves_the_scorer_usable() -> None:
    release = threading.Event()

    def score(body: dict[str, Any]) -> dict[str, Any]:
        if body["steps"] == ["slow"]:
            release.wait(5)
        return {"scores": [0.5], "scored_tokens": 1}

    with reward_server({"/score": score}) as (url, _):
        scorer = prm(None, StepsOverHttp(base_url=url, protocol="steps"))

        async def go() -> None:
            usages: list[Usage] = []
            task = asyncio.create_task(scorer.score([grow(root(), "slow")], usages.append))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not usages

        asyncio.run(go())
        release.set()
        assert run(scorer, [grow(root(), "fast")])[0][0].value == 0.5
