"""`ttc.evaluate`: rows and data frames in, functions for every part, typed results out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial

import pytest

import ttc
from evals.commands.eval import EvalOptions, evaluate
from evals.numbers.summary import read_summary
from ttc.core import Prices
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError, EngineError, RecordError

ROWS = [
    {"question": "What is 3+4?", "answer": 7, "topic": "sums"},
    {"question": "What is 9-1?", "answer": "9-1=8\n#### 8", "topic": "differences"},
    {"id": "last", "question": "What is 2*3?", "answer": "6"},
]


class Table:
    """As pandas gives its rows: empty cells are NaN."""

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        assert orient == "records"
        return [{"id": float("nan"), **row} for row in ROWS]


def engine(final: int = 7) -> ScriptedEngine:
    """Answers the same, whatever is asked."""
    return ScriptedEngine(lambda prompt, path, key: f"\\boxed{{{final}}}")


async def first(problem: ttc.Problem, session: ttc.Session, *, n: int = 2) -> ttc.Answer:
    prompt = session.render()
    candidates = [session.candidate(prompt, completion) for completion in await session.generate(prompt, n)]
    return session.answer(candidates[0], candidates)


def test_rows_give_accuracy_with_an_interval_a_ledger_and_a_row_for_each() -> None:
    result = ttc.evaluate(ROWS, engine=engine(), strategy="majority", n=4, seed=1, prices=Prices(1.0, 10.0))
    assert [problem.correct for problem in result] == [True, False, False] and len(result) == 3
    assert result.accuracy.value == pytest.approx(1 / 3) and result.accuracy.low < 1 / 3 < result.accuracy.high
    assert result.usage == sum((problem.usage for problem in result), ttc.Usage())
    assert result.dollars == pytest.approx((result.usage.prompt + 10 * result.usage.generated) / 1e6)
    assert [row["id"] for row in result.to_rows()] == ["row-1", "row-2", "last"]
    assert result.to_rows()[1] | {"final": "7", "target": "8", "status": "incorrect"} == result.to_rows()[1]
    assert str(result).startswith("majority-n4: 33.3 %") and "of 3 problems" in str(result)


def test_a_data_frame_is_read_and_given_back() -> None:
    pandas = pytest.importorskip("pandas")
    given = ttc.evaluate(pandas.DataFrame(ROWS), engine=engine(), seed=1)
    assert given.to_rows()[2]["id"] == "last" and ttc.evaluate(Table(), engine=engine(), seed=1).errors == ()
    frame = given.to_frame()
    assert list(frame["correct"]) == [True, False, False] and set(frame.columns) == set(given.to_rows()[0])


def test_without_pandas_the_error_says_what_to_install_and_rows_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ttc.evaluate(ROWS, engine=engine(), seed=1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ttc.TTCError, match=r"pandas is not installed.*\[frames\]"):
        result.to_frame()
    assert len(result.to_rows()) == 3


def test_functions_stand_for_strategy_scorer_and_verifier() -> None:
    varied = ScriptedEngine(lambda prompt, path, key: f"\\boxed{{{path[-1]}}}")

    async def later(prompt: ttc.Prompt) -> float:
        return float(prompt.generated_text[7])

    own = ttc.evaluate(ROWS, engine=varied, strategy=first, n=3, seed=1, verifier=lambda target, submission: 0.5)
    assert [len(problem.answer.candidates) for problem in own if problem.answer] == [3, 3, 3]
    assert [row["score"] for row in own.to_rows()] == [0.5] * 3 and own.accuracy.value == 0
    best = ttc.evaluate(ROWS, engine=varied, strategy="best_of_n", n=9, scorer=later, seed=1)
    assert [problem.correct for problem in best] == [False, True, False]
    answer = ttc.run("2*3", engine=varied, strategy="best_of_n", n=4, scorer=lambda prompt: -later_value(prompt))
    assert answer.final == "0"


def later_value(prompt: ttc.Prompt) -> float:
    return float(prompt.generated_text[7])


def test_a_check_is_not_shown_what_was_cut_and_may_give_no_verdict() -> None:
    seen: list[str] = []

    def check(target: str, submission: ttc.Submission) -> bool | None:
        seen.append(submission.text)
        return None

    cut = ttc.evaluate(ROWS, engine=engine(), verifier=check, sampling=ttc.Sampling(max_tokens=2), seed=1)
    assert [row["status"] for row in cut.to_rows()] == ["no_answer"] * 3 and not seen
    whole = ttc.evaluate(ROWS, engine=engine(), verifier=check, seed=1)
    assert [row["status"] for row in whole.to_rows()] == ["error"] * 3 and len(seen) == 3


def test_it_opens_in_a_running_loop_as_notebooks_have_one() -> None:
    async def cell() -> tuple[ttc.Evaluation, ttc.Evaluation]:
        return await ttc.aevaluate(ROWS, engine=engine(), seed=1), ttc.evaluate(ROWS, engine=engine(), seed=1)

    waited, blocked = asyncio.run(cell())
    assert [problem.answer.final for problem in waited if problem.answer] == ["7"] * 3
    assert waited.accuracy == blocked.accuracy


def test_a_problem_that_fails_is_a_row_with_its_error_and_costs_nothing_else() -> None:
    class Moody(ScriptedEngine):
        async def generate(self, prompt, sampling, draws, on_usage):  # type: ignore[no-untyped-def]
            if "9-1" in prompt.text:
                raise ttc.TTCError("gone")
            return await super().generate(prompt, sampling, draws, on_usage)

    result = ttc.evaluate(ROWS, engine=Moody(lambda prompt, path, key: "\\boxed{7}"), seed=1)
    assert [problem.id for problem in result.errors] == ["row-2"] and "gone" in str(result[1].error)
    assert result.accuracy.value == pytest.approx(1 / 3) and "1 failed" in str(result)


def test_a_split_of_a_dataset_and_a_frame_of_polars_are_read_by_their_rows() -> None:
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_list([{"question": "What is 3+4?", "answer": "7"}])
    (problem,) = ttc.evaluate(split, engine=engine(), seed=1)
    assert problem.correct and problem.target == "7"
    with pytest.raises(ttc.TTCError, match=r"give one split of the dataset, such as dataset\['test'\]"):
        ttc.evaluate(datasets.DatasetDict({"train": split, "test": split}), engine=engine())

    class Polars:
        def to_dicts(self) -> list[dict[str, object]]:
            return ROWS

    assert len(ttc.evaluate(Polars(), engine=engine(), seed=1)) == 3  # type: ignore[arg-type]


def test_what_a_function_raises_goes_through_as_it_is() -> None:
    def broken(target: str, submission: ttc.Submission) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ttc.evaluate(ROWS, engine=engine(), verifier=broken, seed=1)


def test_what_was_paid_for_comes_back_where_a_check_a_strategy_or_the_engine_fails_late() -> None:
    def check(target: str, submission: ttc.Submission) -> bool:
        seen.append(target)
        if len(seen) == 2:
            raise KeyError("mine")
        return True

    async def late(problem: ttc.Problem, session: ttc.Session) -> ttc.Answer:
        answer = await first(problem, session)
        seen.append(problem.id)
        return answer if len(seen) == 1 else [][0]

    class Leaving(ScriptedEngine):
        async def generate(self, prompt, sampling, draws, on_usage):  # type: ignore[no-untyped-def]
            if "3+4" not in prompt.text:
                asked.append(prompt.text)
                raise EngineError("gone")
            return await super().generate(prompt, sampling, draws, on_usage)

    seen: list[str] = []
    judged = ttc.evaluate(ROWS, engine=engine(), verifier=check, seed=1, concurrency=1)
    assert [row["status"] for row in judged.to_rows()] == ["correct", "error", "correct"]
    assert judged[1].verdict is not None and "KeyError: 'mine'" in judged[1].verdict.reason
    assert judged.num_undecided == 1 and judged[1].answer is not None

    seen.clear()
    solved = ttc.evaluate(ROWS, engine=engine(), strategy=late, seed=1, concurrency=1)
    assert [problem.error is None for problem in solved] == [True, False, False]
    assert "IndexError" in str(solved[1].error) and solved[1].usage.calls == 2, "and what it cost is counted"

    asked: list[str] = []
    rows = [ROWS[0], *({"question": f"What is {i}*1?", "answer": str(i)} for i in range(30))]
    reached = ttc.evaluate(rows, engine=Leaving(lambda prompt, path, key: "\\boxed{7}"), seed=1, concurrency=1)
    assert reached[0].correct and len(asked) == 8, "an engine that is gone is not asked for the rest"
    assert [problem.error for problem in reached.errors] == ["EngineError: gone"] * 30

    class Filtering(ScriptedEngine):
        async def generate(self, prompt, sampling, draws, on_usage):  # type: ignore[no-untyped-def]
            is_filtered = "*1?" in prompt.text
            await asyncio.sleep(0 if is_filtered else 0.02)
            if is_filtered:
                raise EngineError("filtered")
            return await super().generate(prompt, sampling, draws, on_usage)

    rows = [*rows[1:9], *[{"question": f"What is {i}+0?", "answer": "7"} for i in range(9)]]
    late_ones = ttc.evaluate(rows, engine=Filtering(lambda prompt, path, key: "\\boxed{7}"), seed=1, concurrency=10)
    assert [problem.error is None for problem in late_ones] == [False] * 8 + [True] * 9


@pytest.mark.parametrize(
    ("problems", "options", "message"),
    [
        ("rows.jsonl", {}, "got str; of a file its rows, such as list(csv.DictReader"),
        ([], {}, "problems: there are none"),
        ([1], {}, "row 1 is no dictionary but int"),
        ([{"question": "a"}], {}, "row 1: answer: there is none; name its column"),
        ([{"question": "a", "answer": float("nan")}], {}, "row 1: answer: nan is no number"),
        ([{"id": "a", **ROWS[0]}] * 2, {}, "two rows have the id 'a'"),
        (ROWS, {"kind": "sums"}, "kind must be one of math, number"),
        (ROWS, {"n": 4}, "direct has no parameter 'n'"),
        (ROWS, {"strategy": first, "params": {"m": 2}}, "first has no parameter 'm'"),
        (ROWS, {"strategy": lambda problem, session: None}, "is not an async function"),
        (ROWS, {"strategy": "majority", "scorer": lambda prompt: 1.0}, "scorer has no effect: majority takes none"),
        (ROWS, {"strategy": "best_of_n", "scorer": 3}, "scorer: a int is neither a name"),
        (ROWS, {"verifier": lambda target: True}, "is given target, submission: write def check"),
        (ROWS, {"verifier": lambda target, submission: "yes"}, "returned 'yes'; return True, False"),
        (ROWS, {"concurrency": 0}, "concurrency must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(problems: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(ttc.TTCError, match=message.replace("(", r"\(")):
        ttc.evaluate(problems, engine=engine(), seed=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [partial(ttc.run, "1+1"), partial(ttc.evaluate, ROWS)])
def test_an_option_that_there_is_not_is_refused_with_the_nearest_and_where_a_parameter_stands(
    ask: Callable[..., object],
) -> None:
    with pytest.raises(ConfigError, match=r"no option 'm' \(known: strategy, .*parameter .* in params={'m': ...}"):
        ask(strategy="majority", m=3)
    with pytest.raises(ConfigError, match="no option 'stratgy'; did you mean 'strategy'"):
        ask(stratgy="majority")


def test_the_door_and_the_command_line_measure_the_same(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "rows.csv"
    file.write_text("id,question,answer\n" + "".join(f"row-{i},What is {i}+{i}?,{2 * i}\n" for i in range(1, 5)))
    options = EvalOptions(
        engine="simulated", task=str(file), strategy=("majority",), n=4, seed=3, limit="all", out=str(tmp_path / "r"),
        baseline="none",
    )  # fmt: skip
    assert evaluate(options, tmp_path / "r")[0] == 0
    rows = [{"id": f"row-{i}", "question": f"What is {i}+{i}?", "answer": str(2 * i)} for i in range(1, 5)]
    result = ttc.evaluate(rows, engine="simulated", strategy="majority", n=4, seed=3)
    (entry,) = read_summary(tmp_path / "r")
    assert (entry["accuracy"], entry["low"], entry["high"]) == (
        result.accuracy.value, result.accuracy.low, result.accuracy.high,
    )  # fmt: skip
    assert ttc.Usage(**entry["usage"]) == result.usage


def test_columns_that_are_named_are_read_and_the_error_says_how_they_are_named() -> None:
    rows = [{"ctx": "Which?", "endings": ["red", "green"], "label": label} for label in ("1", "0")]
    with pytest.raises(RecordError, match=r"row 1: .* in Python, columns=\{'KEY': 'COLUMN'\} stands for --set"):
        ttc.evaluate(rows, engine="simulated")
    named = {"question": "ctx", "choices": "endings", "answer": "label"}
    result = ttc.evaluate(rows, engine="simulated", seed=0, columns=named)
    assert [problem.target["answer"] for problem in result] == ["B", "A"]
    with pytest.raises(ConfigError, match=r"unknown key 'columns.answr'; did you mean 'answer'"):
        ttc.evaluate(rows, engine="simulated", columns={"answr": "label"})


def test_values_of_numpy_are_those_of_python() -> None:
    import numpy as np

    rows = [
        {"id": np.int64(5), "question": "What is 14/2?", "answer": np.float64(7.0)},
        {"question": "What is 3+4?", "answer": np.int64(7), "cluster": np.str_("sums")},
        {"messages": np.array([{"role": "user", "content": "3+4?"}]), "answer": np.float32(7.0)},
    ]
    result = ttc.evaluate(rows, engine=engine(), seed=np.int64(1))
    assert [problem.target for problem in result] == ["7.0", "7", "7.0"] and result.accuracy.value == 1
    assert result[0].id == "5" and result.seed == 1
    (choice,) = ttc.evaluate(
        [{"question": "Largest?", "choices": np.array(["1", "2"], dtype=object), "answer": "B"}],
        engine=engine(),
        seed=1,
    )
    assert choice.target == {"answer": "B", "alternatives": ["2"]} and "(B) 2" in choice.question
    with pytest.raises(ttc.TTCError, match="row 1: image: pictures cannot be asked about"):
        ttc.evaluate([{**ROWS[0], "image": np.zeros((2, 2))}], engine=engine())
    assert ttc.run("1+1", engine=engine(), strategy="majority", n=np.int64(2), seed=1).usage.calls == 2


@pytest.mark.parametrize("given", ["bool_", "float32", "int64", "array"])
def test_what_functions_give_may_be_a_number_of_numpy(given: str) -> None:
    import numpy as np

    one = np.array(1.0) if given == "array" else getattr(np, given)(1)
    judged = ttc.evaluate(ROWS, engine=engine(), verifier=lambda target, submission: one, seed=1)
    assert judged.accuracy.value == 1 and judged.num_undecided == 0
    assert (
        ttc.run("1+1", engine=engine(), strategy="best_of_n", n=2, scorer=lambda prompt: one).candidates[0].score == 1
    )


def test_answers_without_a_verdict_are_told_with_the_accuracy() -> None:
    result = ttc.evaluate(ROWS, engine=engine(), verifier=lambda target, submission: None, seed=1)
    assert result.num_undecided == 3 and str(result).endswith(", 3 without a verdict")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 4, "params": {"n": 8}}, "n is 4, and 8 in params: give it once"),
        ({"n": 4, "strategy": "majority:n=8"}, "n is 4, and 8 in 'majority:n=8': give it once"),
    ],
)
def test_a_parameter_that_is_given_twice_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ttc.evaluate(ROWS, **{"engine": engine(), "strategy": "majority", **options})  # type: ignore[arg-type]
