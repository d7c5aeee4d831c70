"""Traces of a reasoning teacher behind an endpoint, into a student whose tokenizer has no thinking markers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from distill.job.job import plan_job, run_job
from distill.spec.spec import parse_spec
from tests import qwen_like
from tests.ttc.openai_server import Behaviour, OpenAIServer
from ttc.core import Message, Problem, Prompt, Sampling
from ttc.core import Path as TreePath
from ttc.engines.embedded.engine import embedded
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, EngineError
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.direct import direct

THOUGHT = "First I count. Wait, let me check. Yes"


def reasons(prompt: Prompt, path: TreePath, key: int) -> str:
    """A teacher that thinks at length and is right."""
    return f"{THOUGHT}.</think>\n\nThe answer is \\boxed{{3}}."


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_like.model(tmp_path_factory.mktemp("student"), pad=None)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = qwen_like.data(tmp_path_factory.mktemp("data"))
    rows = [json.loads(line) for line in (folder / "gsm8k_train.jsonl").read_text().splitlines()]
    path = folder / "threes.jsonl"
    fields = ("id", "problem")
    path.write_text("".join(json.dumps({**{f: row[f] for f in fields}, "answer": "3"}) + "\n" for row in rows))
    return path


@pytest.mark.long
def test_traces_become_a_student_that_thinks_with_exact_budgets(student: Path, problems: Path, tmp_path: Path) -> None:
    behaviour = Behaviour(completions=False, ids=False, scores=False, reasoning="reasoning_content")
    said: list[str] = []
    with OpenAIServer(lambda: ScriptedEngine(reasons, thinking=True), behaviour) as server:
        table = {
            "name": "traces", "method": "rejection", "student": str(student), "seed": 1, "task": str(problems), "n": 1,
            "limit": 24, "train": {"steps": 12, "rows": 8, "lr": 1e-2}, "eval": {"limit": 4, "teachers": False},
            "teacher": {"name": "r1", "model": "served", "engine": "openai", "options": {"base_url": server.url}},
            "filters": {"near": False},
        }  # fmt: skip
        done = run_job(parse_spec(table), tmp_path / "job", said.append)
        asked = len(server.generations())
        again = run_job(parse_spec(table), tmp_path / "job", said.append)
        assert len(server.generations()) == asked, "nothing is paid for twice"
    assert done.model is not None and again.model is not None
    text = Text(done.model)
    assert text.markers == ("<think>", "</think>") and len(text.think_close) > 1
    rows = [json.loads(line) for line in (tmp_path / "job" / "data" / "train.jsonl").read_text().splitlines()]
    assert rows and all(row["thinking"].strip().startswith("First I count") for row in rows)
    asyncio.run(budgets(done.model))


async def budgets(model: Path) -> None:
    """Every cap holds to the token, and the thought is what was taught."""
    engine = embedded(str(model))
    try:
        for cap in (1, 3, 8, 200):
            control = Thinking(mode="on", max_tokens=cap)
            problem = Problem("p", (Message("user", "How many?"),))
            answer = await solve(
                problem, engine=engine, strategy=direct, seed=1, sampling=Sampling(temperature=0.0, max_tokens=256),
                thinking=control,
            )  # fmt: skip
            assert answer.usage.thinking <= cap and answer.enforced == "ids"
            assert "</think>" not in answer.text and "<think>" not in answer.thinking
            if cap < 8:
                assert answer.usage.thinking == cap
    finally:
        await engine.close()


def test_a_student_that_is_not_adapted_is_refused_before_anything_is_paid_for(
    student: Path, problems: Path, tmp_path: Path
) -> None:
    from distill import preflight
    from distill.plan.resolve import resolve
    from ttc import nano

    table = {"name": "t", "method": "rejection", "student": str(student), "teacher": str(nano.path("teacher")),
             "seed": 1, "task": str(problems), "n": 1}  # fmt: skip
    plan = resolve(parse_spec(table), tmp_path / "job")
    assert plan.job.student == tmp_path / "job" / "student-start"
    assert all(finding.ok for finding in preflight.run(plan.job) if finding.check in ("thinking", "padding"))
    off = resolve(parse_spec({**table, "thinking": {"mode": "off"}}), tmp_path / "off")
    assert off.job.student == student
    with pytest.raises(ConfigError, match="was made with"):
        resolve(parse_spec({**table, "form": "boxed"}), tmp_path / "job")


def test_a_plan_writes_the_lock_beside_the_adapted_student(student: Path, problems: Path, tmp_path: Path) -> None:
    from ttc import nano

    table = {"name": "t", "method": "rejection", "student": str(student), "teacher": str(nano.path("teacher")),
             "seed": 1, "task": str(problems), "n": 1, "form": "think-answer"}  # fmt: skip
    for _ in range(2):
        plan_job(parse_spec(table), tmp_path / "job")
    prompt = Text(tmp_path / "job" / "student-start").render((Message("user", "2?"),), True)
    assert "<answer> answer here </answer>" in prompt.text and prompt.think_state == "open"


def _small_job(student: Path, problems: Path) -> dict[str, Any]:
    return {
        "name": "traces", "method": "rejection", "student": str(student), "seed": 1, "task": str(problems), "n": 1,
        "limit": 4, "train": {"steps": 1, "rows": 4, "lr": 1e-2}, "eval": {"limit": 2, "teachers": False},
        "filters": {"near": False},
    }  # fmt: skip


def _served(server: OpenAIServer) -> dict[str, Any]:
    return {"name": "r1", "model": "served", "engine": "openai", "options": {"base_url": server.url}}


def test_more_tokens_than_the_teacher_holds_are_refused_with_the_setting_and_fewer_go_on(
    student: Path, problems: Path, tmp_path: Path
) -> None:
    behaviour = Behaviour(completions=False, ids=False, scores=False, reasoning="reasoning_content", max_model_len=1000)
    with OpenAIServer(lambda: ScriptedEngine(reasons, thinking=True), behaviour) as server:
        table = {**_small_job(student, problems), "teacher": _served(server)}
        with pytest.raises(
            ConfigError, match=r"4 failed: PromptTooLong.*Set sampling.max_tokens lower.*length is 1000"
        ):
            run_job(parse_spec({**table, "sampling": {"max_tokens": 1024}}), tmp_path / "job", lambda text: None)
        done = run_job(parse_spec({**table, "sampling": {"max_tokens": 512}}), tmp_path / "job", lambda text: None)
    assert done.model is not None


def test_calls_that_failed_are_named_and_the_same_command_asks_them_anew(
    student: Path, problems: Path, tmp_path: Path
) -> None:
    texts = [json.loads(line)["problem"] for line in problems.read_text().splitlines()]
    broken = [True]

    def refuses(prompt: Prompt, path: TreePath, key: int) -> str:
        if broken and any(text in prompt.messages[-1].content for text in texts):
            raise EngineError("the account is empty")
        return reasons(prompt, path, key)

    behaviour = Behaviour(completions=False, ids=False, scores=False, reasoning="reasoning_content")
    with OpenAIServer(lambda: ScriptedEngine(refuses, thinking=True), behaviour) as server:
        spec = parse_spec({**_small_job(student, problems), "teacher": _served(server)})
        with pytest.raises(ConfigError, match=r"Fix what stopped the calls, then run the same command.*account is"):
            run_job(spec, tmp_path / "job", lambda text: None)
        broken.clear()
        assert run_job(spec, tmp_path / "job", lambda text: None).model is not None
