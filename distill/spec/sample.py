"""What flows through a job: a generated answer with its origin, and a row that a student learns from.

    Assignment -> unit of the ledger -> Sample -> filters, selection -> TrainingRow -> line of data/train.jsonl

A sample is a `ttc.core.Record` with its place in the job: which teacher gave it, as which draw, for which purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evals.task import Item
from ttc.core import Answer, Message, Verdict


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one teacher.

    `key` names it in the ledger; `label` is its purpose in the method ("" for plain answers, `probe` for the student's
    own answers that measure difficulty); `mode` is the thinking switch it was asked with: auto, on or off. `verdict` is
    None where nothing was verified.
    """

    key: str
    item: Item
    domain: str
    teacher: str
    index: int
    seed: int
    answer: Answer
    verdict: Verdict | None = None
    label: str = ""
    mode: str = "auto"

    @property
    def prompt(self) -> str:
        """The name of the prompt, unique across domains."""
        return f"{self.domain}/{self.item.problem.id}"

    @property
    def text(self) -> str:
        """Everything the teacher wrote."""
        return self.answer.thinking + self.answer.text

    @property
    def num_tokens(self) -> int:
        """Length of the chosen answer, thinking included, not what the strategy spent on finding it."""
        same_text = [c for c in self.answer.candidates if c.text == self.answer.text]
        same = [c.num_tokens for c in same_text if c.thinking == self.answer.thinking]
        return min(same) if same else self.answer.usage.generated


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One training example, as `train.examples.rows` reads it, and the samples it was made of.

    `key` is the name of the prompt: rows of one prompt, or of one `cluster`, are held out together. `thinking` None is
    no think block at all.
    """

    key: str
    messages: tuple[Message, ...]
    completion: str
    thinking: str | None = None
    mode: str = "auto"
    weight: float = 1.0
    parents: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""

    def to_json(self) -> dict[str, Any]:
        """The line of a file of examples."""
        turns = [{"role": message.role, "content": message.content} for message in self.messages]
        line: dict[str, Any] = {"id": self.key, "messages": turns, "completion": self.completion, "mode": self.mode}
        if self.thinking is not None:
            line["thinking"] = self.thinking
        if self.weight != 1.0:
            line["weight"] = self.weight
        if self.cluster:
            line["cluster"] = self.cluster
        return line


def row_of(sample: Sample) -> TrainingRow:
    """The row that teaches a sample as it is: same prompt, same mode, thinking where there was any."""
    thinks = sample.mode != "off" and bool(sample.answer.thinking)
    return TrainingRow(
        key=sample.prompt,
        messages=sample.item.problem.messages,
        completion=sample.answer.text,
        thinking=sample.answer.thinking if thinks else None,
        mode=sample.mode,
        parents=(sample.key,),
        cluster=sample.item.cluster,
    )
