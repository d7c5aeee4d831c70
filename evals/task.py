"""A task: its problems and targets, how they are asked, and how answers are checked.

    Task = name + answer kind + verifier + sampling defaults + a loader of items

A task is made by a factory in `evals/tasks/`, whose keyword parameters are what a user may choose (level, split, data).
Targets stay in items: only the runner sees them, and hands them only to the verifier. For tasks whose problems are
generated there are endless distinct problems (`distinct`) and texts to learn a made-up language from (`Texts`).

`load_task` finds a task by name; `NAME:ARG` chooses within a task that has many kinds. A path to a file of rows (JSON
lines, CSV, JSON, parquet) is a task as well (`evals.tasks.rows`), and so is a TOML file that describes one
(`evals.tasks.toml`) or several (`evals.tasks.mixture`).
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import random
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from ttc.answers.extract import MAX_FINAL
from ttc.answers.kinds import KINDS
from ttc.answers.words import text_key
from ttc.config.plugins import PluginShape
from ttc.config.recipes import dump, load_toml, split_model, user_file
from ttc.config.registry import Registry
from ttc.config.values import nearest
from ttc.core import Json, Message, Problem, Sampling, TargetLike, written
from ttc.errors import ConfigError
from ttc.identity.digests import digest_of, num_first

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
"""The instruction that Qwen2.5-Math and most maths evaluations use."""
PROGRAM = "Reply with the complete program in one ```python block."
"""The instruction of the tasks of programs."""
INSTRUCTIONS: Mapping[str, str] = {
    "math": BOXED,
    "number": BOXED,
    "choice": "Please reason step by step, and put the letter of your choice within \\boxed{}.",
    "exact": BOXED,
    "format": "",
    "expression": "Please reason step by step, and put the expression within \\boxed{}.",
    "code": "Please put the whole program into one fenced block of Python.",
}
"""The instruction of each answer kind, for problems that come without one."""


@dataclass(frozen=True, slots=True)
class Item:
    """One problem with its target.

    Items of one `cluster` are variants of one thing and weigh together; by default every item is its own.
    """

    problem: Problem
    target: TargetLike
    cluster: str = ""
    difficulty: str | None = None

    def __post_init__(self) -> None:
        """Keep the JSON form of the target, as records and files do."""
        object.__setattr__(self, "target", written(self.target))

    @property
    def group(self) -> str:
        """The name of what it is weighed together with."""
        return self.cluster or self.problem.id


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """How answers of one kind are verified: the verifier's name and its parameters."""

    verifier: str
    params: Mapping[str, Json] = field(default_factory=dict)


CHECKS: Mapping[str, VerifierSpec] = {
    "math": VerifierSpec("math"),
    "number": VerifierSpec("math", {"kind": "number"}),
    "choice": VerifierSpec("choice"),
    "exact": VerifierSpec("exact"),
    "format": VerifierSpec("format"),
    "expression": VerifierSpec("countdown"),
    "code": VerifierSpec("code"),
}
"""The verifier of each answer kind."""

MAX_LIMIT = 10_000_000
"""More problems than any task holds; without a limit, a task that generates its problems would never stop."""
Loader = Callable[[int | None, int], Iterable[Item]]
"""(limit or None for all, seed of a procedural task) -> items."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a task factory returns.

    `params` are the factory's own parameters, for the record of the run; `note` is what a user should know before a
    run; `verifier` is needed when the answer kind alone does not decide how answers are checked; `procedural` says that
    a seed picks the problems. A limit applies to each of its `num_parts`.
    """

    name: str
    kind: str
    load: Loader
    sampling: Sampling
    params: Mapping[str, Json] = field(default_factory=dict)
    note: str = ""
    verifier: VerifierSpec | None = None
    procedural: bool = False
    num_parts: int = 1

    def __post_init__(self) -> None:
        """Refuse an unknown answer kind, and a loader of another form."""
        if self.kind not in KINDS:
            known = f"{nearest(self.kind, tuple(KINDS))} (known: {', '.join(KINDS)})"
            raise ConfigError(f"task {self.name}: kind: there is no answer kind {self.kind!r}{known}")
        if self.verifier is None and self.kind not in CHECKS:
            raise ConfigError(f"task {self.name}: kind {self.kind} has no verifier of its own: name one")
        form = inspect.signature(self.load)
        try:
            form.bind(None, 0)
        except TypeError as exc:
            raise ConfigError(f"task {self.name}: load must take (limit, seed), but takes {form}") from exc

    @property
    def check(self) -> VerifierSpec:
        """How its answers are verified: by its own verifier, or that of its answer kind."""
        return self.verifier or CHECKS[self.kind]

    def items(self, limit: int | None, seed: int) -> list[Item]:
        """Load at most `limit` items; raises ConfigError when there are none or two share an id."""
        return list(self.sequence(limit, seed))

    def sequence(self, limit: int | None, seed: int) -> Sequence[Item]:
        """`items`, or the loader's own sequence where that makes each item on access."""
        if limit is not None and not 1 <= limit <= MAX_LIMIT:
            raise ConfigError(f"limit must be >= 1 and <= {MAX_LIMIT}, or absent, got {limit}")
        loaded = self.load(limit, seed)
        items = loaded if isinstance(loaded, Sequence) else list(loaded)
        if not items:
            raise ConfigError(f"task {self.name} has no problems")
        if limit is not None and len(items) > limit * self.num_parts:
            items = sample(items, limit * self.num_parts)  # a loader that ignores the limit
        ids: set[str] = set()
        for item in items:
            if not isinstance(item, Item):
                raise ConfigError(f"task {self.name}: load must give evals.task.Item, got {type(item).__name__}")
            if item.problem.id in ids:
                raise ConfigError(f"task {self.name}: two problems have the id {item.problem.id!r}")
            ids.add(item.problem.id)
        return items


ROWS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".json", ".json.gz", ".parquet")
"""How the name of a file of problems ends, in small letters."""
_SAVED = ("state.json", "dataset_dict.json")
"""What a folder holds that `save_to_disk` of Hugging Face's datasets wrote."""


def has_rows(path: Path) -> bool:
    """Whether it is a file of problems by its name, or a folder that `save_to_disk` wrote."""
    if path.is_dir():
        return any((path / name).is_file() for name in _SAVED)
    return path.name.lower().endswith(ROWS) and path.is_file()


def gold_text(target: TargetLike) -> str:
    """The answer that a target holds, as text; empty where it holds none (tests, patterns)."""
    answer = target.get("answer", "") if isinstance(target, Mapping) else target
    return str(answer) if isinstance(answer, (str, int, float)) else ""


def choice_target(letter: str, text: str, options: Sequence[str]) -> TargetLike:
    """The letter of the right option and its text, which counts too; the letter alone where the text is ambiguous.

    A text that is itself a letter, that two of the `options` share, or that is longer than any answer is left out.
    """
    key = text_key(text)
    is_another = len(key.strip("(). ")) <= 1 and not key.isdigit()
    if is_another or len(text) > MAX_FINAL or sum(text_key(option) == key for option in options) != 1:
        return letter
    return {"answer": letter, "alternatives": [text]}


def shuffled(name: str, count: int) -> list[int]:
    """The numbers below `count` in an order that `name` decides."""

    def place(number: int) -> bytes:
        return hashlib.sha256(f"{name}/{number}".encode("utf-8", "surrogatepass")).digest()

    return sorted(range(count), key=place)


def boxed_question(text: str) -> tuple[Message, ...]:
    """Return the user turn that asks `text` and wants a boxed answer."""
    return (Message("user", f"{text}\n\n{BOXED}"),)


def sample(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Return `limit` items in an order fixed by a hash of their ids: unbiased, and 100 are the first half of 200.

    The order does not depend on any seed, so runs with different seeds stay paired; all items keep the file's order.
    """
    if limit is None or limit >= len(items):
        return list(items)
    return sorted(items, key=lambda item: hashlib.sha256(item.problem.id.encode("utf-8", "surrogatepass")).digest())[
        :limit
    ]


def program_question(text: str) -> tuple[Message, ...]:
    """Return the user turn that asks `text` and wants a program."""
    return (Message("user", f"{text.strip()}\n\n{PROGRAM}"),)


def code_block(code: str) -> str:
    """Return code as a fenced block."""
    return f"```python\n{code.strip()}\n```"


def problems_digest(items: Iterable[Item]) -> str:
    """Return the digest of problems in order, as they are asked, with their targets.

    Rows of the data beyond a limit do not count.
    """
    return digest_of(_row(item) for item in items)


def num_problems_of(digest: str, items: Iterable[Item]) -> int | None:
    """Of how many of the first of `items` this is the digest of problems; None where of none."""
    return num_first(map(_row, items), digest)


def _row(item: Item) -> list[object]:
    problem = item.problem
    messages = [[message.role, message.content] for message in problem.messages]
    return [problem.id, problem.kind, messages, dump(problem.meta), dump(item.target), item.cluster, item.difficulty]


# -- problems that are made --------------------------------------------------------------------------------------------
Split: TypeAlias = Literal["train", "eval"]
MAX_REPEATS = 1000
"""This many repeated draws in a row mean that there are no others."""
Drawn = TypeVar("Drawn")


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of a made-up language, at most `max_length` tokens long: what `train.corpora` makes a corpus of.

    `words` are its vocabulary beside the marks of thinking, `pattern` the regular expression of one word. `sample(rng)`
    gives a text; `pair(rng)` gives it as prompt and answer, where the language has both.
    """

    words: Sequence[str]
    pattern: str
    max_length: int
    sample: Callable[[random.Random], str]
    pair: Callable[[random.Random], tuple[str, str]] | None = None


def check_shares(where: str, **shares: float) -> None:
    """Raise ConfigError for a share that is not in [0, 1]."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{where}: {name} must be in [0, 1], got {share}")


def distinct(
    draw: Callable[[int, int], Drawn], identity: Callable[[Drawn], Hashable], limit: int, shortage: str
) -> Iterator[Drawn]:
    """Yield `limit` different problems; problem i is the same whatever the limit.

    Args:
        draw: makes one, from the number of the attempt and the number of problems before it.
        identity: two draws with one identity are the same problem.
        limit: how many.
        shortage: what the error says when they run out.
    """
    identities: set[Hashable] = set()
    repeats = 0
    for attempt in itertools.count():
        if len(identities) >= limit:
            return
        problem = draw(attempt, len(identities))
        if identity(problem) in identities:
            repeats += 1
            if repeats > MAX_REPEATS:
                raise ConfigError(f"{shortage}; lower the limit")
            continue
        repeats = 0
        identities.add(identity(problem))
        yield problem


# -- by name -----------------------------------------------------------------------------------------------------------
TASKS = Registry("task", "evals.tasks", "ttc.tasks", PluginShape(("evals.task:Task",), num_free=1))
_TOML = ".toml"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load_task(name: str) -> Callable[..., Task]:
    """Return the factory of the task called `name`, of NAME:ARG, or of the task in a file (rows or TOML).

    Raises:
        UnknownName: no task of that name.
        ConfigError: a file that does not exist or has another ending, an argument for a task that takes none, or none
            for one that needs it.
    """
    path = Path(name).expanduser()
    if has_rows(path) or name.lower().endswith(ROWS) or name.endswith(_TOML):
        if not path.exists():
            raise ConfigError(f"task file {name!r} does not exist")
        factory = partial(TASKS.load(_kind_of(path)), name)
        factory.__name__ = path.name  # type: ignore[attr-defined]
        return factory
    plain, argument = split_model(name)
    is_folder, is_file = "/" in name and path.is_dir(), path.suffix not in ("", ".py") and path.is_file()
    is_missing = not is_file and _called_like_a_file(plain)
    if is_folder or is_file or is_missing:
        what = "task folder" if is_folder else "task file"
        raise ConfigError(
            f"{what} {name!r}{' does not exist;' if is_missing else ':'} a task is read from "
            f"{', '.join((*ROWS, _TOML))}, a folder of save_to_disk, or FILE.py:FUNCTION; "
            "save a table of a spreadsheet as CSV"
        )
    if _HUB_ID.fullmatch(name):
        raise ConfigError(f"there is no task {name!r}; a data set of the hub is hub:{name}")
    task_factory = TASKS.load(plain)
    takes = [p for p in inspect.signature(task_factory).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if argument is None:
        if takes:
            raise ConfigError(f"task {plain} needs a {takes[0].name}: {plain}:{takes[0].name.upper()}")
        return task_factory
    if not takes:
        raise ConfigError(f"task {plain} takes nothing after a colon, got {argument!r}")
    named_factory = partial(task_factory, argument)
    named_factory.__name__ = plain  # type: ignore[attr-defined]
    return named_factory


def _called_like_a_file(name: str) -> bool:
    """Whether a name that is no task's looks like a data file: rows.tsv."""
    return user_file(name) is None and Path(name).suffix not in ("", ".py") and name not in TASKS.names()


def _kind_of(path: Path) -> str:
    """The task that reads a file."""
    if path.suffix != _TOML:
        return "rows"
    return "mixture" if "parts" in load_toml(path) else "toml"


def task_file(name: str) -> Path | None:
    """Return the user's file that defines a task, of Python or TOML; JSON lines hold only problems."""
    return Path(name).expanduser() if name.endswith(_TOML) else user_file(split_model(name)[0])
