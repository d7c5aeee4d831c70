"""Whether the verifier `instructions` agrees with the checkers packaged in lm-eval, response by response.

    python -m benchmarks.ifeval_agreement --responses FILE --data DIR --reference-python PYTHON --out FILE.json

`--responses` contains JSON lines of {"id", "text"}, a model's responses to the prompts of IFEval; `--data` is the
folder with ifeval.jsonl(.gz). The reference runs in its own environment (see `ifeval_reference`). Every instruction is
compared, strict and loose; a difference is saved with both verdicts and, where one of the known reasons applies, with
that reason. The milliseconds are those of one verdict of ours, on one thread: wall time, and CPU time, which other work
on the machine does not increase.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from evals.data.sources import json_lines
from evals.tasks.ifeval import ifeval
from ttc.core import Submission, Verdict
from ttc.verifiers.instructions.verifier import Mode, instructions

Seconds: TypeAlias = dict[Mode, list[tuple[float, float]]]
"""By mode, for each verdict: seconds of the clock and of the processor."""
MODES: tuple[Mode, ...] = ("strict", "loose")
REASONS = {
    "language:response_language": "the two language detectors differ",
    "change_case:english_capital": "the two language detectors differ on a text in capitals",
    "change_case:english_lowercase": "the two language detectors differ",
    "length_constraints:number_sentences": "sentences are split by rules here, by a trained model there",
    "change_case:capital_word_frequency": "words are split by fewer rules here",
    "keywords:letter_frequency": "the reference replaces a sign that is no letter by a random letter",
}


def main() -> None:
    """Compare, print the counts and save the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", required=True, type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--reference-python", required=True)
    parser.add_argument("--model", default="", help="which model gave the responses, for the record")
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    rows = _rows(args.responses, args.data)
    reference = _reference(args.reference_python, rows)
    ours, seconds = asyncio.run(_ours(rows))
    result = {"model": args.model, "responses": len(rows), **_compared(rows, ours, reference), "ms": _times(seconds)}
    args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name != "differences"}, indent=1))


def _rows(responses: Path, data: str) -> list[dict[str, Any]]:
    texts = {row["id"]: row["text"] for row, _, _ in json_lines(responses)}
    items = [item for item in ifeval(data=data).items(None, 0) if item.problem.id in texts]
    return [
        {
            "id": item.problem.id,
            "key": item.problem.id,
            "prompt": item.problem.messages[-1].content,
            "text": texts[item.problem.id],
            **item.target,
        }
        for item in items
    ]


def _reference(python: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    asked = "".join(json.dumps(row) + "\n" for row in rows)
    command = [python, "-m", "benchmarks.ifeval_reference"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the reference failed: {done.stderr[-1000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


async def _ours(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[Mode, list[Verdict]], Seconds]:
    verdicts: dict[Mode, list[Verdict]] = {mode: [] for mode in MODES}
    seconds: Seconds = {mode: [] for mode in MODES}
    for mode in MODES:
        verifier = instructions(mode=mode, allow_truncated=True)
        targets = [{name: row[name] for name in ("instruction_id_list", "kwargs")} for row in rows]
        # As in an evaluation, targets are checked first; that loads the language model.
        for target in targets:
            verifier.check_gold(target)
        for row, target in zip(rows, targets, strict=True):
            started, used = time.perf_counter(), time.process_time()
            verdicts[mode].append(await verifier.verify(target, Submission(row["text"])))
            seconds[mode].append((time.perf_counter() - started, time.process_time() - used))
    return verdicts, seconds


def _compared(
    rows: Sequence[Mapping[str, Any]], ours: Mapping[Mode, Sequence[Verdict]], reference: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    differences: list[dict[str, Any]] = []
    for mode in MODES:
        made = [_row_differences(mode, *triple) for triple in zip(rows, ours[mode], reference, strict=True)]
        number = sum(len(row["instruction_id_list"]) for row in rows)
        flat = [difference for row in made for difference in row]
        agreed = [
            verdict.correct == all(judged["seeds"][0][mode])
            for verdict, judged in zip(ours[mode], reference, strict=True)
        ]
        counts[mode] = {
            "prompts_equal": sum(agreed),
            "prompts_correct_here": sum(verdict.correct for verdict in ours[mode]),
            "prompts_correct_reference": sum(all(judged["seeds"][0][mode]) for judged in reference),
            "instructions": number,
            "instructions_equal": number - len(flat),
            "differences_by_instruction": dict(Counter(difference["instruction"] for difference in flat)),
        }
        differences += flat
    return {**counts, "differences": differences}


def _row_differences(
    mode: Mode, row: Mapping[str, Any], verdict: Verdict, judged: Mapping[str, Any]
) -> list[dict[str, Any]]:
    names = row["instruction_id_list"]
    mine = [bool(value) for value in verdict.parts.values()] or [False] * len(names)
    theirs = [seed[mode] for seed in judged["seeds"]]
    found = []
    for i, name in enumerate(names):
        votes = [votes[i] for votes in theirs]
        if mine[i] != votes[0]:
            unstable = len(set(votes)) > 1
            reason = "the reference differs between its own seeds" if unstable else REASONS.get(name, "not explained")
            found.append({
                "id": row["id"], "mode": mode, "instruction": name, "here": mine[i], "reference": votes,
                "kwargs": row["kwargs"][i], "reason": reason, "text": row["text"][:300],
            })  # fmt: skip
    return found


def _times(seconds: Seconds) -> dict[str, dict[str, dict[str, float]]]:
    return {
        mode: {kind: _quantiles([pair[i] for pair in pairs]) for i, kind in enumerate(("clock", "processor"))}
        for mode, pairs in seconds.items()
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(1e3 * statistics.median(values), 3),
        "p99": round(1e3 * statistics.quantiles(values, n=100)[98], 3),
        "max": round(1e3 * max(values), 3),
    }


if __name__ == "__main__":
    main()
