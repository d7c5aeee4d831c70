"""Earlier data mixed into reinforcement learning, against the alignment tax.

InstructGPT's PPO-ptx (Ouyang et al. 2022, arXiv:2203.02155) adds the pretraining objective to every update; here the
earlier data are any examples: a file, a corpus, or the right rollouts of another stage. Which rows an optimiser step
takes is a pure function of (seed, step). Cost: a forward and backward pass over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from train.base.stage import Setting, check_file, rollouts_path
from train.examples.corpus import CORPORA, corpus_examples
from train.examples.examples import Example, read_examples, right_rollouts
from train.examples.imitation import imitation_batch
from train.registries import make
from train.update.batch import TokenBatch, rows_at
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, UnknownName

_CORPUS_ROWS = 2048


def _from_file(value: str, setting: Setting, source: Path, end: int) -> list[Example]:
    return read_examples(Path(value).expanduser(), Text(source), end)


def _from_corpus(value: str, setting: Setting, source: Path, end: int) -> list[Example]:
    return corpus_examples(make(CORPORA, value), Text(source), end, _CORPUS_ROWS, setting.seed)


def _from_rollouts(value: str, setting: Setting, source: Path, end: int) -> list[Example]:
    return right_rollouts(rollouts_path(value, setting))


@dataclass(frozen=True, slots=True)
class _Kind:
    """How rows of a kind are read, and what can be checked of WHERE before anything is loaded."""

    read: Callable[[str, Setting, Path, int], list[Example]]
    check: Callable[[str], object] = str


_KINDS: Mapping[str, _Kind] = {
    "data": _Kind(_from_file, lambda value: check_file("ptx", Path(value).expanduser())),
    "corpus": _Kind(_from_corpus, lambda value: make(CORPORA, value)),
    "rollouts": _Kind(_from_rollouts),
}


@dataclass(frozen=True, slots=True)
class Ptx:
    """Where the examples come from (`KIND:WHERE`), how many an update takes, and the weight of their mean loss."""

    source: str
    rows: int
    weight: float

    def check(self) -> None:
        """Raise ConfigError for a source that cannot be, before anything is loaded."""
        kind, colon, value = self.source.partition(":")
        if not colon or not value:
            raise ConfigError(f"ptx: write KIND:WHERE with a kind of {', '.join(_KINDS)}, got {self.source!r}")
        if kind not in _KINDS:
            raise UnknownName("kind of ptx", kind, _KINDS)
        if self.rows < 1 or not self.weight > 0:
            raise ConfigError(f"ptx: needs ptx_rows >= 1 and ptx_weight > 0, got {self.rows} and {self.weight}")
        _KINDS[kind].check(value)

    def batches(self, setting: Setting, source: Path, end: int, pad_id: int) -> Callable[[int], TokenBatch]:
        """The batch of optimiser step `number`; `end` is the id that ends a turn of the model in `source`."""
        kind, _, value = self.source.partition(":")
        examples = _KINDS[kind].read(value, setting, source, end)

        def batch(number: int) -> TokenBatch:
            rows = [examples[row] for row in rows_at(number, self.rows, len(examples), setting.seed)]
            plain = imitation_batch(rows, pad_id, "token", 1)
            return replace(plain, ce=plain.ce * self.weight)

        return batch
