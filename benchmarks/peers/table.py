"""The tables of saved rows: medians over draws, intervals that cover the draws, and ratios within a draw.

`keep` writes rows without their texts to one file, for the repository; tables can be made from either.
"""

from __future__ import annotations

import json
import signal
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.rows import IN_STEP, user_lines

Saved = Mapping[str, Any]

COLUMNS = (
    *("system", "draws", "accuracy % (95 %)", "tokens generated (server)", "the system's own count"),
    *("prompt tokens (server)", "prefix hits", "requests", "scored", "retries", "seconds", "s / 1,000 tokens"),
    *("client's CPU s", "failed problems", "user's lines"),
)


def keep(folder: Path, file: Path, facts: Mapping[str, Any]) -> None:
    """Write the rows of a folder to one file, with what they were measured on; `right` as a word of 0 and 1."""
    rows = []
    for row in rows_of(folder):
        slim = {name: value for name, value in row.items() if name != "texts"}
        if "right" in row:
            slim["right"] = "".join(str(int(right)) for right in row["right"])
        rows.append(json.dumps(slim))
    head = json.dumps(dict(facts))[:-1]
    file.write_text(f'{head}, "rows": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


def rows_of(place: Path) -> list[Saved]:
    """The rows of a folder, or of what `keep` wrote."""
    if place.is_dir():
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(place.glob("*.json"))]
    rows = json.loads(place.read_text(encoding="utf-8"))["rows"]
    return [{**row, **({"right": [int(x) for x in row["right"]]} if "right" in row else {})} for row in rows]


def tables(place: Path) -> Iterator[str]:
    """Of every group the ratios; its systems, too, where no other group of the model has more draws."""
    saved = rows_of(place)
    groups: dict[tuple[str, int, int], dict[tuple[str, str], list[Saved]]] = defaultdict(lambda: defaultdict(list))
    for row in saved:
        if "drained_s" not in row:
            groups[row["model"], row["limit"], row["n"]][row["system"], row["algorithm"]].append(row)
    draws: dict[str, int] = defaultdict(int)
    for (model, _, _), systems in groups.items():
        draws[model] = max(draws[model], *map(len, systems.values()))
    for (model, limit, n), systems in groups.items():
        yield from ("", f"{model}, {limit} problems, N = {n}", "")
        if max(map(len, systems.values())) == draws[model]:
            yield from (*_table(systems), "")
        yield from _ratios(systems)
    drained = [row for row in saved if "drained_s" in row]
    if drained:
        yield from ("", *_drains(drained))


def _table(systems: Mapping[tuple[str, str], Sequence[Saved]]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for (system, algorithm), rows in sorted(systems.items(), key=lambda pair: (pair[0][1], pair[0][0])):
        yield _line(f"{system} {algorithm}", rows)


def _ratios(systems: Mapping[tuple[str, str], Sequence[Saved]]) -> Iterator[str]:
    """Ours over theirs: seconds per token that the server generated, draw by draw."""
    yield "| algorithm | beside | draws | of its seconds per token, median (lowest to highest) |"
    yield "|---|---|---|---|"
    for (system, algorithm), rows in sorted(systems.items(), key=lambda pair: (pair[0][1], pair[0][0])):
        plain = algorithm.removesuffix(IN_STEP)
        if plain != algorithm:
            yield from _ratio(systems, plain, f"{system} in lock-step", rows)
        elif system != "ttc":
            yield from _ratio(systems, plain, system, rows)
    yield from _ratio(systems, "dvts", "its_hub's beam, since it has no DVTS", systems.get(("its_hub", "beam"), ()))
    yield from _ratio(systems, "best_of_n", "bare requests, which score nothing", systems.get(("bare", "majority"), ()))


def _ratio(
    systems: Mapping[tuple[str, str], Sequence[Saved]], algorithm: str, beside: str, rows: Sequence[Saved]
) -> Iterator[str]:
    """The line of one comparison, where there are draws of both."""
    own = {row["draw"]: _pace(row) for row in systems.get(("ttc", algorithm), ()) if "right" in row}
    timed = [row for row in rows if ("right" in row or _is_stopped(row)) and row["draw"] in own]
    ratios = [own[row["draw"]] / _pace(row) for row in timed]
    if ratios:
        beside += ", up to where it was stopped" if any(map(_is_stopped, timed)) else ""
        span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        yield f"| {algorithm} | {beside} | {len(ratios)} | {span} |"


def _pace(row: Saved) -> float:
    """Seconds per 1,000 tokens that the server generated."""
    seconds = row["seconds"] if "seconds" in row else row["total_s"]
    return float(1000 * seconds / max(row["server"]["generation_tokens_total"], 1))


def _is_stopped(row: Saved) -> bool:
    """Whether a row reached its time limit before it was done."""
    return "right" not in row and row.get("status") == -signal.SIGKILL


def _line(name: str, saved: Sequence[Saved]) -> str:
    rows = [row for row in saved if "right" in row]
    if not rows and _is_stopped(saved[0]):
        return _stopped_line(name, saved[0])
    if not rows:
        return f"| {name} | 0 | fails: {saved[0]['error']} |" + " |" * (len(COLUMNS) - 3)

    def middle(*path: str, digits: int = 0) -> str:
        values = [_value(row, path) for row in rows]
        known = [value for value in values if value is not None]
        return f"{statistics.median(known):,.{digits}f}" if known else "–"

    pace = statistics.median(map(_pace, rows))
    hits = 100 * statistics.median(_hits(row["server"]) for row in rows)
    failed = sum(len(row["tally"]["errors"]) for row in rows)
    reasons = sum((Counter(row["tally"].get("reasons") or {}) for row in rows), Counter[str]())
    why = "".join(f"; {count}: {reason[:80].replace('|', '/')}" for reason, count in reasons.items())
    return (
        f"| {name} | {len(rows)} | {_accuracy(rows)} | {middle('server', 'generation_tokens_total')} | "
        f"{middle('tally', 'generated')} | {middle('server', 'prompt_tokens_total')} | {hits:.0f} % | "
        f"{middle('server', 'requests')} | {middle('tally', 'scored')} | {middle('tally', 'retries')}{why} | "
        f"{middle('seconds', digits=1)} | {pace:.3f} | {middle('cpu_s', digits=1)} | {failed} | "
        f"{user_lines(rows[0]['client'])} |"
    )


def _stopped_line(name: str, row: Saved) -> str:
    """What the server saw of a row until its time was over."""
    generated, prompt = (row["server"][f"{kind}_tokens_total"] for kind in ("generation", "prompt"))
    cells = (
        *(name, "0", f"not done after {row['total_s']:,.0f} s", f"{generated:,}", "–", f"{prompt:,}"),
        *(f"{100 * _hits(row['server']):.0f} %", f"{_value(row, ('server', 'requests')):,.0f}", "–", "–"),
        *(f"{row['total_s']:,.1f}", f"{_pace(row):.3f}", "–", "–", str(user_lines(row["client"]))),
    )
    return f"| {' | '.join(cells)} |"


def _value(row: Saved, path: Sequence[str]) -> float | None:
    if path == ("server", "requests"):
        return float(sum(count for name, count in row["server"].items() if name.startswith("http_")))
    value: Any = row
    for name in path:
        value = value[name]
    return None if value is None else float(value)


def _hits(counted: Mapping[str, int]) -> float:
    """Share of the prompt tokens asked for that came from the prefix cache."""
    return counted["prefix_cache_hits_total"] / max(counted["prefix_cache_queries_total"], 1)


def _accuracy(rows: Sequence[Saved]) -> str:
    """The mean over draws; the interval is over problems, each with its share of draws that were right."""
    shares = [statistics.fmean(column) for column in zip(*(row["right"] for row in rows), strict=True)]
    mean = statistics.fmean(shares)
    half = 1.96 * statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
    return f"{100 * mean:.1f} ({100 * max(mean - half, 0):.1f} to {100 * min(mean + half, 1):.1f})"


def _drains(rows: Sequence[Saved]) -> Iterator[str]:
    yield "| system | sequences running when it was killed | seconds until idle | tokens after | finished after |"
    yield "|---|---|---|---|---|"
    for row in rows:
        done = row["server"]
        finished = done.get("ended_stop", 0) + done.get("ended_length", 0)
        yield (
            f"| {row['system']} {row['algorithm']} | {row['running']} | {row['drained_s']:.1f} | "
            f"{done['generation_tokens_total']:,} | {finished:,} |"
        )
