"""Any data set of the hub by its id: its rows are read like those of a file (`evals.tasks.rows`).

    ttc eval --task hub:allenai/ai2_arc --set task.config=ARC-Challenge
    ttc eval --task hub:cais/mmlu --set task.config=abstract_algebra

Data sets that need more than a question and an answer have a task of their name (`gsm8k`, `humaneval`, ...). Left out:
revisions other than the newest, data sets that run code to load, streaming: a split is fetched whole.
"""

from __future__ import annotations

from evals.data.sources import Source, rows_from
from evals.task import Task
from evals.tasks._columns import Columns
from evals.tasks.rows import rows_task


def hub(
    dataset: str,
    *,
    data: str | None = None,
    config: str | None = None,
    split: str = "test",
    kind: str | None = None,
    options: Columns = Columns(),  # noqa: B008  a frozen value
) -> Task:
    """Any data set of the hub, by its id.

    Args:
        dataset: its id, such as cais/mmlu.
        data: file of rows, or folder with a copy of the hub repository; absent: the hub.
        config: which of its configurations.
        split: which split.
        kind: answer kind where the rows do not say; absent: what the answers look like.
        options: the columns, where they have other names than ours.
    """
    stem = dataset.rpartition("/")[2].lower()
    rows = [(row.data, row.where, row.number) for row in rows_from(Source(stem, dataset, config, split), data)]
    place = {"dataset": dataset, "config": config, "split": split}
    return rows_task(dataset, rows, options, kind, place, stem)
