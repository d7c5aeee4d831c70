"""A value that a strategy, an engine or a scorer refuses is refused before any of them is loaded, by its name."""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
import sys

import pytest

from tests.ttc import bad_plugins
from ttc.cli.cli import main
from ttc.cli.rehearsal import refuse_early, rehearse
from ttc.config.choices import StrategyChoice
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES
from ttc.config.signatures import bind, call
from ttc.core import Answer, Message, Problem, Sampling, Strategy
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError
from ttc.session.session import MAX_SAMPLES, Session
from ttc.session.thinking import Thinking


def early(strategy: str, temperature: float = 0.8, **params: object) -> None:
    function = STRATEGIES.load(strategy)
    choice = StrategyChoice(strategy, strategy, function, params)
    refuse_early([choice], has_scorer=True, sampling=Sampling(temperature=temperature), thinking=Thinking())


@pytest.mark.parametrize("strategy", STRATEGIES.names())
def test_every_strategy_is_content_with_its_defaults(strategy: str) -> None:
    if strategy == "auto":
        with pytest.raises(ConfigError, match="auto needs plan=FILE"):
            early(strategy)
    else:
        early(strategy)


@pytest.mark.parametrize(
    ("strategy", "params", "message"),
    [
        ("majority", {"n": 0}, "majority: n must be at least 1, got 0"),
        ("majority", {"n": 10**9}, f"majority: n must be at most {MAX_SAMPLES}, got 1000000000"),
        ("tree", {"islands": 3}, "tree: islands must divide n, got islands=3 and n=16"),
        (
            "tree",
            {"islands": 2, "policy": "puct"},
            "tree: islands=2 needs a policy that grows level by level, got poli",
        ),
        ("tree", {"islands": 0}, "tree: islands must be at least 1, got 0"),
        ("tree", {"step": ""}, "tree: step must not be empty"),
        ("tree", {"window": 0}, "window must be >= 1 or absent, got 0"),
        ("confidence", {"n": 4}, "confidence: warmup must be at most n=4, got 8: lower it or raise n"),
        ("confidence", {"keep": 1.5}, "confidence: keep must be at most 1, got 1.5"),
        ("first_finished", {"n": 2}, "first_finished: m must be at most n=2, got 3: lower it or raise n"),
        ("adaptive", {"threshold": 0.5}, r"adaptive: threshold must be in \(0.5, 1\), got 0.5"),
        ("early_exit", {"repeats": 0}, "early_exit: repeats must be at least 1, got 0"),
        ("early_exit", {"probe": ""}, "early_exit: probe must not be empty"),
        ("early_exit", {"threshold": float("nan")}, "early_exit: threshold must be > 0, got nan"),
        ("no_think_then_think", {"agreement": 2.0}, "no_think_then_think: agreement must be at most 1, got 2.0"),
        ("refine", {"step": ""}, "refine: step must not be empty"),
        ("auto", {"plan": "none.json", "tokens": 9.0}, "none.json"),
        ("tools", {"tools": ("nothing",)}, "unknown tool 'nothing'"),
    ],
)
def test_a_strategy_names_the_value_that_it_refuses(strategy: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        early(strategy, **params)


def test_equal_samples_are_refused_early_too() -> None:
    with pytest.raises(ConfigError, match="majority: n=16 needs temperature > 0"):
        early("majority", temperature=0.0)


def test_a_strategy_of_the_users_own_is_not_run_before_its_engine_is_there() -> None:
    early(f"{pathlib.Path(bad_plugins.__file__)}:raises")


async def in_a_group(problem: Problem, session: Session) -> Answer:
    async with asyncio.TaskGroup() as group:
        for draw in range(2):
            group.create_task(session.generate(session.render(), range(draw, draw + 1)))
    raise AssertionError("nothing was drawn")


async def stubborn(problem: Problem, session: Session) -> Answer:
    while True:
        try:
            await session.generate(session.render(), 1)
        except Exception:
            continue


async def wrong_in_a_group(problem: Problem, session: Session) -> Answer:
    async with asyncio.TaskGroup() as group:
        group.create_task(bad_plugins.raises(problem, session))
    raise AssertionError("nothing was drawn")


def rehearsed(strategy: Strategy) -> int:
    """Rehearse a strategy; returns how many draws the engine has made."""
    engine = ScriptedEngine(lambda prompt, path, key: "2")
    problem = Problem("q", (Message("user", "1+1"),))
    rest = {"sampling": Sampling(), "thinking": Thinking(), "budget": None}
    asyncio.run(rehearse(problem, engine, strategy, seed=0, **rest))  # type: ignore[arg-type]
    return engine.counters().calls


@pytest.mark.parametrize("strategy", [in_a_group, stubborn])
def test_a_rehearsal_ends_at_the_first_request_however_it_is_made(strategy: Strategy) -> None:
    assert rehearsed(strategy) == 0


def test_a_failure_in_a_group_is_no_first_request() -> None:
    with pytest.raises(ExceptionGroup):
        rehearsed(wrong_in_a_group)


REFUSED = [
    (["--strategy", "direct,confidence", "--n", "4"], "confidence: warmup must be at most n=4, got 8"),
    (["--n", "0"], "tree: n must be at least 1, got 0"),
    (["--n", "99999999999999999999"], "tree: n must be at most 100000, got 99999999999999999999"),
    (["--concurrency", "100000000"], "--concurrency must be >= 1 and <= 65536, got 100000000"),
    (["--set", "engine.threads=100000"], "embedded: threads must be at most 1024, got 100000"),
    (["--set", "engine.device=tpu"], "embedded: device must be auto, cpu or cuda, got 'tpu'"),
    (
        ["--set", "engine.dtype=int3"],
        "embedded: dtype must be one of auto, bfloat16, float16, float32, bf16, fp16, fp32, got 'int3'",
    ),
    (["--model", "/nonexistent"], "model '/nonexistent' is neither a folder nor a hub id"),
    (["--scorer", "prm:/nonexistent"], "model '/nonexistent' is neither a folder nor a hub id"),
    (["--scorer", "orm"], "scorer orm needs a model: --scorer orm:PATH"),
    (["--scorer", "judge", "--set", "scorer.opponents=0"], "judge: opponents must be at least 1, got 0"),
    (["--scorer", "ensemble", "--set", "scorer.members=prm:/nonexistent,likelihood"], "model '/nonexistent' is"),
    (["--strategy", "auto:plan=none.json", "--budget", "tokens=100"], "plan 'none.json' cannot be read"),
    (["--strategy", "auto:width=0", "--budget", "tokens=100"], "auto: width must be >= 1, got 0"),
    (["--out", "/dev/null/run"], "/dev/null is a file; name a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_a_wrong_value_ends_an_evaluation_by_its_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--limit", "1", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_a_link_to_what_is_not_there_is_told_as_one(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "disk"
    link.symlink_to(tmp_path / "unmounted")
    for out in (link, link / "run"):
        assert main(["eval", "--engine", "simulated", "--strategy", "direct", "--limit", "1", "--out", str(out)]) == 2
        assert f"--out {out}: {link} is a link to a folder that does not exist; create it" in capsys.readouterr().err


def test_wrong_values_are_refused_before_torch_is_imported() -> None:
    code = (
        "import json, sys; from ttc.cli.cli import main; [main(arguments) for arguments in json.loads(sys.argv[1])];"
        "print('torch' in sys.modules)"
    )
    commands = json.dumps([["eval", "--limit", "1", *arguments] for arguments, _ in REFUSED])
    done = subprocess.run([sys.executable, "-c", code, commands], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="needs a folder that nobody may write to")
def test_a_folder_that_cannot_be_written_to_is_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--limit", "1", "--out", "/proc/run"]) == 2
    assert "--out /proc/run: /proc cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["embedded", "vllm"])
def test_what_a_factory_checks_it_checks_when_it_is_bound_and_when_it_is_called(name: str) -> None:
    factory = ENGINES.load(name)
    for attempt in (bind, call):
        with pytest.raises(ConfigError, match=f"{name}: threads must be at least 1, got 0"):
            attempt(factory, {"threads": 0}, supply={})


def test_a_packaged_model_and_a_hub_id_pass_the_early_checks() -> None:
    for registry, name, model in (
        (ENGINES, "embedded", None),
        (ENGINES, "vllm", "Qwen/Qwen3-4B"),
        (SCORERS, "prm", None),
    ):
        bind(registry.load(name), {}, supply={"engine": None, **({"model": model} if model else {})})
