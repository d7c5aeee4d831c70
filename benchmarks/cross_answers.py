r"""Search for wrong verdicts without hand-written pairs: right answers paired with other problems' golds, and mutants.

    python -m benchmarks.cross_answers [--data DIR] [--pairs 1000000] [--seed 0] [--denied FILE.json] [--save FILE.json]

Golds and right answers come from the committed rows (tests/ttc/data), and golds of OlympiadBench from DIR. *Cross*:
random ordered pairs of them with different spelling. Pairs that `math` accepts by value are counted, and those of them
that math-verify rejects go to `--denied` for inspection (it rejects much that is right). *Mutants*: golds with one
change that alters their meaning; none may be accepted. *Rewrites*: golds in another notation; none may be rejected.
Golds that can absorb a change (a constant of integration, a residue) are not mutated; golds with dots, which are
compared by their spelling, are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from math_verify import parse, verify

from ttc import VERIFIERS, Submission
from ttc.answers import extract, key, same_class
from ttc.answers.grammar import TooLarge
from ttc.core import Target
from ttc.verifiers.math import weigh
from ttc.verifiers.maths.comparing import EqualityPolicy

ROWS = Path(__file__).parents[1] / "tests/ttc/data"
MAX_CHARS = 200
Change = Callable[[str, random.Random], str]


def texts(folder: Path | None) -> tuple[list[str], list[str]]:
    """The golds, and the golds together with the right answers."""
    golds, answers = dict[str, None](), dict[str, None]()
    for file in ("answer_pairs", "math_pairs"):
        for row in map(json.loads, ROWS.joinpath(f"{file}.jsonl").read_text("utf-8").splitlines()):
            if row.get("verifier", "math") != "math":
                continue
            target = row["target"] if isinstance(row["target"], str) else row["target"].get("answer", "")
            golds[str(target)] = None
            if row.get("right", row.get("expected") == "correct"):
                answers[extract(row["text"], "math").final or ""] = None
    if folder:
        with gzip.open(folder / "olympiadbench_math.jsonl.gz", "rt", encoding="utf-8") as lines:
            golds |= {answer.strip("$ "): None for line in lines for answer in json.loads(line)["final_answer"]}
    listed = [text for text in golds if 0 < len(text) <= MAX_CHARS and "boxed" not in text]
    return listed, [text for text in golds | answers if 0 < len(text) <= MAX_CHARS]


def cross(listed: list[str], num_pairs: int, dice: random.Random) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Judge random pairs by value: counts, and the pairs that math-verify denies."""
    counts, accepted, policy = Counter[str](), list[tuple[str, str]](), EqualityPolicy()
    for _ in range(num_pairs):
        gold, answer = dice.sample(listed, 2)
        try:
            equal, how = weigh(gold, answer, policy)
        except TooLarge:
            continue
        counts["left to a worker"] += equal is None
        if equal and how != "spelled":
            accepted.append((gold, answer))
    keys = [(key(gold, "math"), key(answer, "math")) for gold, answer in accepted]
    denied = [
        pair for pair in accepted if not any(verify(*map(parse, map(_formula, sides))) for sides in (pair, pair[::-1]))
    ]
    counts |= {"accepted": len(accepted), "in unlike voting classes": sum(not same_class(*pair) for pair in keys)}
    return {"pairs": num_pairs, **counts, "denied by math-verify": len(denied)}, denied


def _formula(text: str) -> str:
    return text if "$" in text else f"${text}$"


def _at(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Change:
    """The change of one place that a pattern finds; the text itself where it finds none."""

    def change(text: str, dice: random.Random) -> str:
        places = list(re.finditer(pattern, text))
        if not places:
            return text
        place = dice.choice(places)
        new = place.expand(replacement) if isinstance(replacement, str) else replacement(place)
        return text[: place.start()] + new + text[place.end() :]

    return change


def _whole(pattern: str, replacement: str) -> Change:
    return lambda text, _dice: re.sub(rf"\A{pattern}\Z", replacement, text)


def _all(pattern: str, replacement: str) -> Change:
    return lambda text, _dice: re.sub(pattern, replacement, text)


_NUMBER = r"(-?(?:\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\}))"
_TAKES_UP = re.compile(r"[+-] ?[Cck]\b|mod|\([A-E]\)")
MUTANTS: Mapping[str, Change] = {
    "one digit": _at(r"(?<!_)\d", lambda place: str((int(place[0]) + 3) % 10)),
    "another sign": _whole(r"(?!0\Z)(?!-)" + _NUMBER, r"-\1"),
    "plus for minus": _at(r"(?<=[\dA-Za-z})]) ?\+ ?(?=[\dA-Za-z\\(])", "-"),
    "a term less": _at(r"(?<=[\dA-Za-z})]) ?[+-] ?[\dA-Za-z\\{}^]+\Z", ""),
    "an end opened": _whole(r"\[([^,]+,[^,]+[\])])", r"(\1"),
    "an equal more": _at(r"(?<![\\<>=-])<(?!=)", r"\\le "),
    "a bound turned": _at(r"(?<![\\-])<(?!=)", ">"),
    "a pair swapped": _whole(r"\(([^(),]+),(?!\1\))([^(),]+)\)", r"(\2,\1)"),
    "a subscript": _at(r"\^(?!\+)", "_"),  # Z^+ and Z_+ are one set
    "metres for centimetres": _at(r"(?<=[\d}~ ])cm(?![a-z])", "m"),
    "minutes for hours": _at(r"(?<=[\d} ])hours?(?![a-z])", "minutes"),
    "a cube root": _at(r"\\sqrt(?!\[)", r"\\sqrt[3]"),
    "a root less": _at(r"\\sqrt\{(\d+)\}", r"\1"),
    "a fraction turned": _at(r"\\frac\{([^{}]+)\}\{(?!\1\})([^{}]+)\}", r"\\frac{\2}{\1}"),
    "a zero more": _at(r"(?<![\d.,_^{])([1-9]\d*)(?![\d.,}])", r"\g<1>0"),
    "an alternative": lambda text, _dice: rf"{text} \text{{ or }} 97",
    "a second value": lambda text, _dice: f"{text}, 97",
    "a denial": lambda text, _dice: rf"\ne {text}",
    "cosine for sine": _at(r"\\sin(?![a-z])", r"\\cos"),
    "a time more": lambda text, _dice: rf"2\cdot {text}" if re.fullmatch(_NUMBER, text) and text != "0" else text,
}
REWRITES: Mapping[str, Change] = {
    "in dollars": lambda text, _dice: text if "$" in text else f"${text}$",
    "in brackets": lambda text, _dice: text if "$" in text else rf"\({text}\)",
    "dfrac": _all(r"\\frac(?![a-z])", r"\\dfrac"),
    "a short fraction": _all(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2"),
    "a slash": _whole(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", r"\1\2/\3"),
    "a full stop": lambda text, _dice: text + ".",
    "display style": lambda text, _dice: r"\displaystyle " + text,
    "spaces around": lambda text, _dice: rf"\;{text}\;",
    "in text": _whole(r"([A-Za-z ]{2,}|-?\d+)", r"\\text{\1}"),
    "textrm": _all(r"\\text(?=\{)", r"\\textrm"),
    "bold": _whole(r"(-?\d+)", r"\\mathbf{\1}"),
    "thousands": _whole(r"([1-9]\d{0,2})(\d{3})", r"\1,\2"),
    "thousands in braces": _whole(r"([1-9]\d{0,2})(\d{3})", r"\1{,}\2"),
    "a name": _whole(_NUMBER, r"x=\1"),
    "a point and a zero": _whole(r"(-?[1-9]\d{0,3})", r"\1.0"),
    "a Unicode minus": _all(r"(?<![\dA-Za-z])-(?=[\d\\])", "−"),
    "a Unicode degree": _all(r"\^\\circ", "°"),
    "no left and right": _all(r"\\(?:left|right)(?=[^a-z])", ""),
    "leqslant": _all(r"\\([lg])eq?(?![a-z])", r"\\\1eqslant"),
}


def _changed(golds: list[str], changes: Mapping[str, Change], dice: random.Random) -> Iterator[tuple[str, str, str]]:
    """The name of a change, a gold, and what it becomes; each gold that a change touches."""
    for name, change in changes.items():
        for gold in golds:
            text = change(gold, dice)
            if text != gold and "dots" not in gold and not (changes is MUTANTS and _TAKES_UP.search(gold)):
                yield name, gold, text


async def judged(
    golds: list[str], changes: Mapping[str, Change], dice: random.Random
) -> tuple[int, list[tuple[str, ...]]]:
    """How many changed golds were judged, and those whose verdict is wrong."""
    verifier, is_right, num_pairs, wrong = VERIFIERS.load("math")(), changes is REWRITES, 0, list[tuple[str, ...]]()
    for name, gold, text in _changed(golds, changes, dice):
        verdict = await verifier.verify(Target(gold), Submission(rf"\boxed{{{text}}}"))
        num_pairs += 1
        if (verdict.correct is True) != is_right:
            wrong.append((name, gold, text, verdict.status))
    await verifier.close()
    return num_pairs, wrong


def main() -> None:
    """Search, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--denied", type=Path, metavar="FILE.json")
    parser.add_argument("--save", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    golds, listed = texts(args.data)
    dice, start = random.Random(args.seed), time.process_time()
    table, denied = cross(listed, args.pairs, dice)
    results: dict[str, Any] = {"golds": len(golds), "golds and answers": len(listed), "cross": table}
    for name, changes in (("mutants", MUTANTS), ("rewrites", REWRITES)):
        num_pairs, wrong = asyncio.run(judged(golds, changes, dice))
        results[name] = {"judged": num_pairs, "wrong": len(wrong), "examples": wrong[:40]}
    results["seconds of processor"] = round(time.process_time() - start, 1)
    print(json.dumps(results, indent=1, ensure_ascii=False))
    for file, content in ((args.denied, denied), (args.save, results)):
        if file:
            file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
