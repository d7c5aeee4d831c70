"""The red team on seeds that nobody has seen: each run draws its own and names it when it fails."""

from __future__ import annotations

import secrets

from benchmarks.verifier_redteam.__main__ import CLASSES, measure
from benchmarks.verifier_redteam.attacker import attacked
from benchmarks.verifier_redteam.judges import Ours
from benchmarks.verifier_redteam.pairs import Golds


def test_few_wrong_answers_pass_and_few_right_ones_fail_on_a_fresh_seed() -> None:
    seed = secrets.randbelow(10**6)
    table = measure([seed], 8 * len(CLASSES), Golds(), [], 0)
    ours = table["judges"]["ours"]
    bad = {name: row for name, row in ours["classes"].items() if row["fp"] + row["fn"]}
    # 0.3 % and 5 % are the aims over many pairs; about a thousand leave room for a few.
    assert ours["fp_rate"] <= 0.01, (seed, bad)
    assert ours["fn_rate"] <= 0.05, (seed, bad)
    assert table["without_a_verdict"] == {}, seed


def test_the_searching_attacker_finds_nothing_in_a_thousand_tries() -> None:
    seed = secrets.randbelow(10**6)
    judge = Ours()
    run = attacked(judge, seed, 1000, Golds(), 0)
    judge.close()
    assert run["accepted"] <= 5, (seed, run["rates"])


def test_a_pair_hangs_on_its_seed_and_class_alone() -> None:
    from benchmarks.verifier_redteam.__main__ import drawn

    assert drawn(3, 2 * len(CLASSES), Golds()) == drawn(3, 2 * len(CLASSES), Golds())
    assert drawn(3, len(CLASSES), Golds()) != drawn(4, len(CLASSES), Golds())
