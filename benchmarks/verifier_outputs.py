"""Agreement on real model outputs: published GSM8K outputs, and outputs of the packaged model, beside peers.

    python -m ttc eval --task arithmetic --strategy majority:n=8 --temperature 1 --limit 300 --baseline none --out RUN
    python -m benchmarks.verifier_outputs --data DIR --run RUN/records.jsonl [--peer NAME=COMMAND] [--save FILE.json]

The labels of GSM8K's outputs (`gsm8k_model_outputs`) are its publishers'. The truth of the packaged model's outputs is
known by construction: its question is a sum of whole numbers, which is computed here, and its answer is right if the
only number in its last box, or after its last "answer is", is that value.
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.verifier_redteam.judges import Ours, Peer, read_peer
from benchmarks.verifier_redteam.pairs import Pair
from benchmarks.verifier_throughput import rows
from ttc.records import scan

_QUESTION = re.compile(r"(?:Compute|Calculate)\s+([\d\s()+*-]+)\.")
_CLAIM = re.compile(r"(?:\\boxed\{|answer is\s*:?\s*\$?)\s*(-?\d+)(?!\d)")
_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip


def worked_out(node: ast.expr) -> int:
    """The value of a sum of whole numbers."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](worked_out(node.left), worked_out(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -worked_out(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError(ast.dump(node))


def published(folder: Path) -> Iterator[Pair]:
    """Published outputs with their publishers' labels."""
    for row in rows(folder, "gsm8k_model_outputs"):
        for output in row["outputs"]:
            yield Pair("", row["answer"], output["text"], bool(output["is_correct"]))


def packaged(file: Path) -> Iterator[Pair]:
    """The candidates of a run on sums, with the truth worked out from the question."""
    for _, record in scan(file):
        question = record.problem.messages[-1].content
        match = _QUESTION.search(question)
        if match is None or record.answer is None:
            continue
        value = worked_out(ast.parse(match[1].strip(), mode="eval").body)
        for candidate in record.answer.candidates:
            claims = _CLAIM.findall(candidate.text)
            yield Pair(question, str(value), candidate.text, bool(claims) and int(claims[-1]) == value)


def agreement(pairs: Sequence[Pair], peers: Sequence[Peer], show: int) -> dict[str, Any]:
    """Counts of agreement, false positives and negatives for each judge."""
    ours = Ours()
    began = time.process_time()
    verdicts = {"ours": ours.judge(pairs)}
    cpu_ms = 1000 * (time.process_time() - began) / max(1, len(pairs))
    ours.close()
    verdicts |= {peer.name: peer.judge(pairs) for peer in peers}
    for pair, accept in zip(pairs, verdicts["ours"], strict=True):
        if accept != pair.right and (show := show - 1) >= 0:
            print(f"  {pair.gold!r}, right {pair.right}: {pair.text[-200:]!r}")
    return {"outputs": len(pairs), "right": sum(pair.right for pair in pairs), "cpu_ms_each": round(cpu_ms, 3)} | {
        name: {
            "agree": sum(accept == pair.right for accept, pair in zip(accepted, pairs, strict=True)),
            "fp": sum(accept and not pair.right for accept, pair in zip(accepted, pairs, strict=True)),
            "fn": sum(pair.right and not accept for accept, pair in zip(accepted, pairs, strict=True)),
        }
        for name, accepted in verdicts.items()
    }


def main() -> None:
    """Judge, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--run", type=Path, metavar="RECORDS.jsonl", action="append", default=[])
    parser.add_argument("--peer", type=read_peer, action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--show", type=int, default=0, help="disagreements that are printed")
    parser.add_argument("--save", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    sets = {"gsm8k_model_outputs": list(published(args.data))} if args.data else {}
    if args.run:
        sets["packaged model"] = [pair for file in args.run for pair in packaged(file)]
    table = {name: agreement(pairs, args.peer, args.show) for name, pairs in sets.items()}
    print(json.dumps(table, indent=1))
    if args.save:
        args.save.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
