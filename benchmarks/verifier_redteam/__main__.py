"""The red team: false positives and negatives per class, on fresh seeds, beside peers; and the searching attacker.

    python -m benchmarks.verifier_redteam --pairs 20000 --seeds 1 2 3 [--data DIR] [--peer NAME=COMMAND] [--show 2]
    python -m benchmarks.verifier_redteam --merge SEED1.json SEED2.json --save FILE.json        seeds that ran apart
    python -m benchmarks.verifier_redteam --tries 100000 --seeds 1 [--peer ...]                 the attacker

Every class gets the same number of pairs a seed. A wrong answer accepted is a false positive; a right one not accepted,
whatever the verdict, a false negative; a wrong answer without a verdict (limit, timeout, error) an escape.
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.verifier_redteam import attacker, numerals, sentences, structures
from benchmarks.verifier_redteam.judges import Ours, Peer, read_peer
from benchmarks.verifier_redteam.pairs import Golds, Maker, Pair, read_golds

CLASSES: Mapping[str, Maker] = numerals.CLASSES | structures.CLASSES | sentences.CLASSES
FILES = ("gsm8k_train", "gsm8k_test", "svamp", "olympiadbench_math")
ESCAPES = ("limit", "timeout", "error")


def drawn(seed: int, count: int, golds: Golds) -> dict[str, list[Pair]]:
    """About `count` pairs, equally many of every class; a class's pairs depend only on the seed and its name."""
    each = -(-count // len(CLASSES))
    return {name: _of(name, maker, seed, each, golds) for name, maker in CLASSES.items()}


def _of(name: str, maker: Maker, seed: int, each: int, golds: Golds) -> list[Pair]:
    rng = random.Random(zlib.crc32(f"{seed}/{name}".encode()))
    return [maker(rng, golds) for _ in range(each)]


def measure(seeds: Sequence[int], count: int, golds: Golds, peers: Sequence[Peer], show: int) -> dict[str, Any]:
    """The table: for each judge and class, how many pairs, and how many it got wrong."""
    made = [(name, pair) for seed in seeds for name, pairs in drawn(seed, count, golds).items() for pair in pairs]
    pairs = [pair for _, pair in made]
    judge = Ours()
    verdicts = judge.verdicts(pairs)
    judge.close()
    accepted = {"ours": [verdict.correct for verdict in verdicts]}
    accepted |= {peer.name: peer.judge(pairs) for peer in peers}
    escapes = Counter(name for (name, pair), verdict in zip(made, verdicts, strict=True) if verdict.status in ESCAPES)
    _show(made, [verdict.status for verdict in verdicts], accepted["ours"], show)
    return {
        "seeds": list(seeds),
        "pairs": len(pairs),
        "judges": {judge: _tally(made, answers) for judge, answers in accepted.items()},
        "without_a_verdict": dict(escapes),
    }


def _tally(made: Sequence[tuple[str, Pair]], accepted: Sequence[bool]) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {name: {"wrong": 0, "fp": 0, "right": 0, "fn": 0} for name in CLASSES}
    for (name, pair), accept in zip(made, accepted, strict=True):
        counts[name]["right" if pair.right else "wrong"] += 1
        counts[name]["fn" if pair.right else "fp"] += accept != pair.right
    return _rated(counts)


def merged(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One table of seeds that ran apart, with the same judges."""
    judges = {}
    for judge in tables[0]["judges"]:
        parts = [table["judges"][judge]["classes"] for table in tables]
        judges[judge] = _rated({name: _summed([part[name] for part in parts]) for name in parts[0]})
    escapes: Counter[str] = Counter()
    for table in tables:
        escapes.update(table["without_a_verdict"])
    seeds = [seed for table in tables for seed in table["seeds"]]
    pairs = sum(table["pairs"] for table in tables)
    return {"seeds": seeds, "pairs": pairs, "judges": judges, "without_a_verdict": dict(escapes)}


def _summed(rows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {key: sum(row[key] for row in rows) for key in rows[0]}


def _rated(counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    whole = _summed(list(counts.values()))
    fp_rate, fn_rate = whole["fp"] / max(1, whole["wrong"]), whole["fn"] / max(1, whole["right"])
    return {"fp_rate": fp_rate, "fn_rate": fn_rate, "classes": counts}


def _show(made: Sequence[tuple[str, Pair]], statuses: Sequence[str], accepted: Sequence[bool], show: int) -> None:
    seen: Counter[str] = Counter()
    for (name, pair), status, accept in zip(made, statuses, accepted, strict=True):
        if accept != pair.right and seen[name] < show:
            seen[name] += 1
            print(f"  {name}: {pair.gold!r} = {pair.text!r} is {status}; asked {pair.question[-60:]!r}")


def printed(table: Mapping[str, Any]) -> None:
    """One line a class, worst first, and the whole."""
    judges = table["judges"]
    print(
        f"{table['pairs']} pairs, {len(CLASSES)} classes, seeds {table['seeds']}; errors per judge: {', '.join(judges)}"
    )
    rows = []
    for name in CLASSES:
        cells = [judges[judge]["classes"][name] for judge in judges]
        rates = [(c["fp"] + c["fn"]) / max(1, c["wrong"] + c["right"]) for c in cells]
        rows.append((rates, name, "fn" if cells[0]["right"] > cells[0]["wrong"] else "fp"))
    for rates, name, kind in sorted(rows, key=lambda row: (-row[0][0], row[1])):
        print(f"{kind}  {'  '.join(f'{100 * rate:6.2f} %' for rate in rates)}  {name}")
    for judge, row in judges.items():
        print(f"{judge}: false positives {100 * row['fp_rate']:.2f} %, false negatives {100 * row['fn_rate']:.2f} %")
    print(f"without a verdict: {table['without_a_verdict']}")


def main() -> None:
    """Draw, judge, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="fresh ones: CI draws them")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE.json", help="join saved tables instead")
    parser.add_argument("--pairs", type=int, default=20_000, help="pairs a seed")
    parser.add_argument("--tries", type=int, default=0, help="run the attacker so many times instead")
    parser.add_argument("--data", type=Path, metavar="DIR", help="datasets whose golds are mutated too")
    parser.add_argument("--peer", type=read_peer, action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--show", type=int, default=0, help="examples of errors a class")
    parser.add_argument("--save", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    if not args.seeds and not args.merge:
        parser.error("--seeds or --merge is needed")
    files = [args.data / f"{stem}.jsonl.gz" for stem in FILES] if args.data else []
    golds = read_golds(file for file in files if file.is_file())
    if args.merge:
        table = merged([json.loads(file.read_text()) for file in args.merge])
        printed(table)
    elif args.tries:
        table = attacker.measure(args.seeds, args.tries, golds, args.peer, args.show)
        attacker.printed(table)
    else:
        table = measure(args.seeds, args.pairs, golds, args.peer, args.show)
        printed(table)
    if args.save:
        args.save.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
