"""The rows of a table: a system, an algorithm, N, and the number of the draw.

Rows run draw by draw, every system once per draw, so that a slow period of the machine affects all systems.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENTS = Path(__file__).parent / "clients"
SYSTEMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ttc": ("toolkit", ("majority", "best_of_n", "beam", "dvts", "particle")),
    "bare": ("bare", ("majority",)),
    "its_hub": ("its_hub", ("majority", "best_of_n", "beam", "particle")),
    "optillm": ("optillm_proxy", ("majority", "best_of_n")),
    "search_and_learn": ("search_and_learn", ("best_of_n", "dvts", "beam")),
    "lm_eval": ("lm_eval_votes", ("majority", "majority_as_shipped")),
}
"""System -> its client, and the algorithms that it has of ours."""
CAPPED = {"ttc": ("toolkit", ("cap",)), "bare": ("bare", ("cap",))}
"""Which side enforces a cap on thinking; `bare` is vLLM's own cap."""
IN_STEP = "_in_step"
"""What the name of a search in lock-step ends with: all problems score when all have drawn."""
STEPPED = {"ttc": ("toolkit", ("beam", "beam_in_step", "dvts", "dvts_in_step"))}
"""A search beside itself in lock-step."""
SMALL = ("majority", "best_of_n", "beam", "dvts")
"""The algorithms of the second model."""
CAP = 48


@dataclass(frozen=True)
class Row:
    """One run of one system."""

    model: str
    system: str
    client: str
    algorithm: str
    n: int
    draw: int
    limit: int

    @property
    def name(self) -> str:
        """The file of the row's result."""
        return f"{self.model}-{self.limit}-n{self.n}-{self.system}-{self.algorithm}-draw{self.draw}"


def rows(model: str, limit: int, draws: Mapping[int, int], systems: Sequence[str]) -> Iterator[Row]:
    """The rows of a model; `draws` is N -> number of draws."""
    for n, count in draws.items():
        for draw in range(count):
            for system in systems:
                client, algorithms = SYSTEMS[system]
                for algorithm in algorithms:
                    if model == "packaged" or algorithm in SMALL:
                        yield Row(model, system, client, algorithm, n, draw, limit)


def capped(limit: int, draws: int) -> Iterator[Row]:
    """The rows of vLLM's own cap and ours."""
    for draw in range(draws):
        for system, (client, algorithms) in CAPPED.items():
            for algorithm in algorithms:
                yield Row("packaged", system, client, algorithm, 1, draw, limit)


def stepped(limit: int, draws: Mapping[int, int]) -> Iterator[Row]:
    """The rows of our searches beside themselves in lock-step; `draws` is N -> number of draws."""
    for n, count in draws.items():
        for draw in range(count):
            for system, (client, algorithms) in STEPPED.items():
                for algorithm in algorithms:
                    yield Row("packaged", system, client, algorithm, n, draw, limit)


def user_lines(client: str) -> int:
    """Lines of code between `# user's code` and its end in a client, without empty ones and comments."""
    text = (CLIENTS / f"{client}.py").read_text(encoding="utf-8")
    parts = re.findall(r"# user's code\n(.*?)# end of user's code", text, re.S)
    lines = inspect.cleandoc("\n".join(parts)).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)
