r"""Prompts without an answer key: requests of a published data set, for training that no verdict decides.

    {"prompt": "How do I pick a lock?"}                     a local row; on the hub the column is named

Preferences, critiques and revisions start from prompts alone (constitutional AI, self-rewarding). The verifier only
checks that there is an answer, so a measured accuracy is the share of answers that ended by themselves and are not
empty. The first of equal prompts counts.
"""

from __future__ import annotations

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, VerifierSpec
from ttc.core import Message, Problem, Sampling


def prompts(
    *,
    data: str | None = None,
    repository: str = "PKU-Alignment/PKU-SafeRLHF",
    config: str | None = None,
    split: str = "train",
    column: str = "prompt",
) -> Task:
    """Requests without an answer key.

    Args:
        data: file of rows, or folder with pku-saferlhf.jsonl(.gz), the repository's last name, or a copy; absent: hub.
        repository: its id on the hub.
        config: which of its configurations.
        split: which split.
        column: the name of the request's column.
    """
    seen: set[str] = set()

    def read(row: Row) -> Item | None:
        text = row.text("prompt" if "prompt" in row.data else column)
        if text in seen:
            return None
        seen.add(text)
        return Item(Problem(f"prompt-{row.number}", (Message("user", text),), "format"), r"\S")

    source = Source(repository.partition("/")[2].lower(), repository, config, split)
    load = dataset(source, data, read)

    def fresh(limit: int | None, seed: int) -> list[Item]:
        seen.clear()
        return list(load(limit, seed))

    return Task(
        name="prompts",
        kind="format",
        load=fresh,
        sampling=Sampling(max_tokens=512),
        params={"repository": repository, "split": split},
        verifier=VerifierSpec("regex"),
    )
