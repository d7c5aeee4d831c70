"""Runs that differ by their seeds alone, as one.

Of a problem its share of right answers counts, so the interval covers the problems and what was drawn; costs are those
of one run. A run counts as the same only if its models, files and data are, wherever they lie.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

from evals.numbers.summary import IDENTITY, summarise
from ttc.core import Record
from ttc.identity.digests import LOCATED, located

SummarisedRun: TypeAlias = tuple[Mapping[str, Any], Sequence[Record]]
"""A summary entry and the records that it is of."""


def by_seeds(runs: Sequence[SummarisedRun]) -> list[list[SummarisedRun]]:
    """The runs, those together that differ by their seeds alone; one that is there twice stands for itself again.

    Their entries say what they were made with (`contents`) beside what a summary says.
    """
    groups: dict[str, dict[object, SummarisedRun]] = {}
    for number, (entry, records) in enumerate(runs):
        name = json.dumps(_apart_from_seed(entry), default=str)
        seed = entry.get("seed")
        if seed in groups.get(name, {}):
            name = f"{number} {name}"
        groups.setdefault(name, {})[seed] = entry, records
    return [list(group.values()) for group in groups.values()]


def _apart_from_seed(entry: Mapping[str, Any]) -> list[Any]:
    """What must be equal for two runs to differ by their seeds alone; what is held by content may lie elsewhere."""
    identity = {key: entry.get(key) for key in IDENTITY if key != "seed"}
    contents = dict(entry.get("contents") or {})
    for part in LOCATED:
        names = located(contents, part, str(entry.get(part)), "")
        if names:
            identity[part] = None
            contents = {names.get(name, name): digest for name, digest in contents.items()}
    return [*identity.values(), sorted(contents.items())]


class _JoinedRecords(Sequence[Record]):
    """The records of several runs in a row, none of them held here."""

    def __init__(self, parts: Sequence[Sequence[Record]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Record]:
        return itertools.chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        places = [(part, at) for part in self._parts for at in range(len(part))]
        place = places[index]
        return place[0][place[1]] if isinstance(place, tuple) else [part[at] for part, at in place]


def over_seeds(runs: Sequence[SummarisedRun]) -> SummarisedRun:
    """Runs that differ by their seeds as one.

    Of a problem its share of right answers counts, so the interval covers the problems and what was drawn; costs are
    those of one run.
    """
    (first, records), *others = runs
    if not others:
        return first, records
    rows = _JoinedRecords([part for _, part in runs])
    entries = [entry for entry, _ in runs]
    seconds = sum(float(entry.get("seconds") or 0) for entry in entries)
    whole = {
        **{name: first[name] for name in (*IDENTITY, "contents", "records") if name in first},
        **summarise(rows, {name: value for name, value in first.items() if value is not None}),
        "seed": None,
        "seeds": {str(entry.get("seed")): entry["accuracy"] for entry in entries},
        "problems": len({record.problem.id for record in rows}),
        "asked": len(rows),
        "seconds": seconds,
        "seconds_per_problem": seconds / max(len(rows), 1),
    }
    if all("dollars" in entry for entry in entries):
        dollars = sum(float(entry["dollars"]) for entry in entries)
        whole |= {"dollars": dollars, "dollars_per_problem": dollars / max(len(rows), 1)}
    return whole, rows
