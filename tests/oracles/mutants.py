"""Seed realistic defects one by one and see which the oracles kill.

    python -m tests.oracles.mutants                       all of them; exit code 1 when fewer than 95 % are killed
    python -m tests.oracles.mutants --only tie argmax     those whose names contain a word
    python -m tests.oracles.mutants --json FILE           save the outcome

Each defect (mutants.toml) is one replaced piece of text in a copy of the packages, and the oracle files that should
notice, which pass without it (that is checked first). With --thorough, one that they let pass is run against all
oracles before it counts as a survivor. The defects are what is found in the field's code and what is easily written by
mistake. `tests.oracles.tool` asks about the mutants of a standard tool.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tests.oracles.forks import ROOT, copy_packages, import_what_every_fork_needs, in_fork, run_tests, will_change

GOAL, TIMEOUT_S = 0.95, 300


@dataclass(frozen=True)
class Mutant:
    """A defect: `old` becomes `new` in `file`; the oracle files `tests` are asked, those tests that match `only`."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    only: str

    @property
    def asked(self) -> list[str]:
        """Arguments that pick its tests."""
        return [*(f"tests/oracles/test_{name}.py" for name in self.tests.split()), "-k", self.only]


def load() -> list[Mutant]:
    """Read mutants.toml."""
    rows = tomllib.loads((ROOT / "tests/oracles/mutants.toml").read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**row) for row in rows]


def run(mutant: Mutant, copy: pathlib.Path, thorough: bool) -> str:
    """Return killed, survived or stale (its text is gone) for one defect in the copy."""
    target = copy / mutant.file
    text = target.read_text(encoding="utf-8")
    if mutant.old not in text:
        return "stale"
    target.write_text(_imported(text.replace(mutant.old, mutant.new), mutant), encoding="utf-8")
    try:
        if not _passes(mutant.asked, copy):
            return "killed"
        return "survived" if not thorough or _passes(["tests/oracles"], copy) else "killed"
    finally:
        target.write_text(text, encoding="utf-8")


def _imported(text: str, mutant: Mutant) -> str:
    needs = "replace(candidate" in mutant.new
    return text.replace("import math\n", "import math\nfrom dataclasses import replace\n", 1) if needs else text


def _passes(tests: Sequence[str], copy: pathlib.Path) -> bool:
    code = in_fork(lambda: run_tests(copy, tests), TIMEOUT_S)
    if code not in (0, 1, None):  # None: a search that no longer ends has been noticed
        raise RuntimeError(f"the tests could not run: pytest ended with {code} on {' '.join(tests)}")
    return code == 0


def main() -> int:
    """Run the chosen defects and report; 0 when enough of them are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words of names")
    parser.add_argument("--thorough", action="store_true", help="run survivors against all oracles")
    parser.add_argument("--json", type=pathlib.Path, help="where to save the outcome")
    args = parser.parse_args()
    chosen = [m for m in load() if not args.only or any(word in m.name for word in args.only)]
    outcomes: dict[str, str] = {}
    import_what_every_fork_needs()
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder).resolve()
        copy_packages(copy)
        sets = {tuple(mutant.asked): mutant.name for mutant in chosen}
        if broken := [name for asked, name in sets.items() if not _passes(asked, copy)]:
            raise SystemExit(f"their tests fail without any defect: {', '.join(broken)}")
        will_change(copy, [mutant.file for mutant in chosen])
        for mutant in chosen:
            started = time.perf_counter()
            outcomes[mutant.name] = run(mutant, copy, args.thorough)
            _say(f"{outcomes[mutant.name]:9s} {mutant.name} ({time.perf_counter() - started:.0f} s)")
            if args.json:
                rows = [{**asdict(m), "outcome": outcomes[m.name]} for m in chosen if m.name in outcomes]
                args.json.write_text(json.dumps({"killed": _share(outcomes), "mutants": rows}, indent=1) + "\n")
    _say(f"killed {100 * _share(outcomes):.0f} % of {len(outcomes)}")
    return int(_share(outcomes) < GOAL)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _share(outcomes: dict[str, str]) -> float:
    return sum(outcome == "killed" for outcome in outcomes.values()) / len(outcomes)


if __name__ == "__main__":
    sys.exit(main())
