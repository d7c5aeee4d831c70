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
    question: str | None = None,
    answer: str | None = None,
    answers: str | None = None,
    choices: str | None = None,
    wrong: str | None = None,
    first: int | None = None,
    id: str | None = None,
    difficulty: str | None = None,
    cluster: str | None = None,
) -> Task:
    """Any data set of the hub, by its id.

    Args:
        dataset: its id, such as cais/mmlu.
        data: file of rows, or folder with a copy of the hub repository; absent: the hub.
        config: which of its configurations.
        split: which split.
        kind: answer kind where the rows do not say; absent: what the answers look like.
        question: column of what is asked, a text or turns; of several (passage,question) one stands below the other.
        answer: column of the right answer; as a path where it lies in another (reward_model.ground_truth).
        answers: column of a list of right answers, any of which counts.
        choices: column of the options, or one column for each (sol1,sol2).
        wrong: columns of the wrong options; with the answer they are shuffled, the same in every run.
        first: what answers that are numbers count the options from, 0 or 1; absent: as the rows show.
        id: column of names that no two rows share.
        difficulty: column of the difficulty.
        cluster: column of what the rows weigh together with.
    """
    stem = dataset.rpartition("/")[2].lower()
    rows = [(row.data, row.where, row.number) for row in rows_from(Source(stem, dataset, config, split), data)]
    columns = Columns(question, answer, answers, choices, wrong, first, id, difficulty, cluster)
    place = {"dataset": dataset, "config": config, "split": split}
    return rows_task(dataset, rows, columns, kind, place, stem)
