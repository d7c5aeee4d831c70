"""Agreement with the published tests of other verifiers, fetched by the user: every disagreement, by test and number.

    python -m benchmarks.published_suites NAME=FOLDER_OF_TESTS ... [--show] [--classes FILE.json] [--save FILE.json]

The tests are read, not run: each `@pytest.mark.parametrize` whose names include a gold, a prediction and the expected
outcome. They use formulas where a model would give an answer, so a prediction that is only a formula is put into a box;
everything else is judged unchanged, as kind `math` and, where that finds no answer, as kind `number`. The gold is the
answer that our extraction reads from it, or its only formula. `--classes` gives a class for each disagreement, assigned
by hand as {"suite::test[number]": "class"}; the texts stay where they were fetched.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttc.answers import extract
from ttc.core import Submission, Verdict
from ttc.errors import TTCError
from ttc.verifiers.choice import choice
from ttc.verifiers.math import math

_FORMULA = re.compile(
    r"\s*(?:\$\$(?P<a>[^$]+)\$\$|\$(?P<b>[^$]+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\])\s*", re.DOTALL
)
_LETTERS = "ABCDEFGHIJ"
UNCLASSED = "not classed"


@dataclass(frozen=True, slots=True)
class PublishedCase:
    """One published assertion: whether `prediction` is equal to `gold`; `name` is its place in the suite."""

    name: str
    gold: str
    prediction: str
    expected: bool
    letters: bool


def published(suite: str, folder: Path) -> Iterator[PublishedCase]:
    """The assertions in the tests under `folder`, in the order of their files."""
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for call in filter(_is_parametrize, node.decorator_list):
                    yield from _rows(f"{suite}::{file.stem}.{node.name}", call, "abc" in node.name)


def _is_parametrize(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize"


def _rows(where: str, call: Any, letters: bool) -> Iterator[PublishedCase]:
    names = [name.strip() for name in ast.literal_eval(call.args[0]).split(",")]
    if not {"gold", "pred"} <= set(names) or not {"expected", "result"} & set(names):
        return
    for number, row in enumerate(call.args[1].elts):
        cells = dict(zip(names, row.elts, strict=True))
        try:
            gold, prediction = ast.literal_eval(cells["gold"]), ast.literal_eval(cells["pred"])
            expected = bool(ast.literal_eval(cells.get("expected") or cells["result"]))
        except ValueError:  # not literals
            continue
        yield PublishedCase(f"{where}[{number}]", gold, prediction, expected, letters)


def _answer_of(text: str) -> str:
    """A gold as an answer: its one formula, what extraction reads, or the text."""
    formula = _FORMULA.fullmatch(text)
    inner = next(filter(None, formula.groups()), "") if formula else ""
    return inner if inner and "boxed" not in inner else extract(text, "math").final or text


def _submission(text: str) -> Submission:
    formula = _FORMULA.fullmatch(text)
    if formula and "boxed" not in text:
        return Submission(rf"\boxed{{{next(filter(None, formula.groups()))}}}")
    return Submission(text)


async def judged(cases: list[PublishedCase]) -> list[Verdict]:
    """The verdict on each; a second look as kind `number` where there was no answer."""
    verifiers = {"math": math(), "number": math(kind="number"), "choice": choice()}
    try:
        return [await _judge(case, verifiers) for case in cases]
    finally:
        for verifier in verifiers.values():
            await verifier.close()


async def _judge(case: PublishedCase, verifiers: Mapping[str, Any]) -> Verdict:
    if case.letters:
        letter = re.search(rf"[{_LETTERS}]\b", case.gold)
        return await verifiers["choice"].verify(letter[0] if letter else case.gold, Submission(case.prediction))
    try:
        gold, submission = _answer_of(case.gold), _submission(case.prediction)
        verdict: Verdict = await verifiers["math"].verify(gold, submission)
        return verdict if verdict.status != "no_answer" else await verifiers["number"].verify(gold, submission)
    except TTCError as exc:
        return Verdict("error", reason=str(exc)[:200])


def table(cases: list[PublishedCase], verdicts: list[Verdict], classes: Mapping[str, str]) -> dict[str, Any]:
    """Counts of each suite, the classes of its disagreements, and the disagreements."""
    suites: dict[str, Any] = {}
    for case, verdict in zip(cases, verdicts, strict=True):
        row = suites.setdefault(
            case.name.partition("::")[0], {"cases": 0, "agree": 0, "fp": 0, "fn": 0, "by_class": {}}
        )
        row["cases"] += 1
        row["agree"] += verdict.correct == case.expected
        row["fp"] += verdict.correct and not case.expected
        row["fn"] += case.expected and not verdict.correct
    apart = {
        case.name: {"class": classes.get(case.name, UNCLASSED), "expected": case.expected, "status": verdict.status}
        for case, verdict in zip(cases, verdicts, strict=True)
        if verdict.correct != case.expected
    }
    for suite, row in suites.items():
        mine = [item["class"] for name, item in apart.items() if name.startswith(f"{suite}::")]
        row["by_class"] = dict(Counter(mine).most_common())
    return {"suites": suites, "disagreements": apart}


def main() -> None:
    """Read the suites, judge, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--show", action="store_true", help="print each disagreement")
    parser.add_argument("--classes", type=Path, metavar="FILE.json")
    parser.add_argument("--save", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    pairs = [text.partition("=")[::2] for text in args.suites]
    cases = [case for name, folder in pairs for case in published(name, Path(folder))]
    verdicts = asyncio.run(judged(cases))
    result = table(cases, verdicts, json.loads(args.classes.read_text()) if args.classes else {})
    for case, verdict in zip(cases, verdicts, strict=True) if args.show else ():
        if verdict.correct != case.expected and result["disagreements"][case.name]["class"] == UNCLASSED:
            print(f"{case.name} expected {case.expected}: {verdict.status} ({verdict.reason}) {verdict.extracted!r}")
            print(f"    {case.gold[:200]!r}\n    {case.prediction[-200:]!r}")
    print(json.dumps(result["suites"], indent=1))
    if args.save:
        args.save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
