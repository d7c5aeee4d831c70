"""Common parts of the clients, with the standard library only: the job, the timing, and the result.

A job is a JSON object: `url` (without /v1), `model`, `folder` (tokenizer), `problems` ([{id, question}], no targets),
`algorithm`, `n`, `temperature`, `max_tokens`, `concurrency`, `scorer` ("prm" or "constant"), and any other fields of a
system. A client's `solve(job, tally)` returns a text for each problem. The time is from the first request to the last
answer: imports, models and proxies are set up before, in `prepare`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Tally:
    """What a system says that it spent; None where it says nothing."""

    generated: int | None = None
    prompt: int | None = None
    scored: int | None = None
    retries: int | None = None
    errors: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, **counts: int | None) -> None:
        """Add to the counts by name."""
        for name, count in counts.items():
            if count is not None:
                setattr(self, name, (getattr(self, name) or 0) + count)

    def fail(self, error: BaseException) -> str:
        """Note a failed problem; returns its text, which is empty."""
        self.errors.append(f"{type(error).__name__}: {error}"[:300])
        return ""


def main(prepare: Callable[[dict[str, Any], Tally], Callable[[], list[str]]]) -> None:
    """Read the job named first, run it, write the result to the file named second."""
    job, tally = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Tally()
    solve = prepare(job, tally)
    started, used = time.perf_counter(), time.process_time()
    texts = solve()
    result = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - used, "texts": texts}
    Path(sys.argv[2]).write_text(json.dumps({**result, "tally": asdict(tally)}), encoding="utf-8")
