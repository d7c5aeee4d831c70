"""Examples to imitate: (prompt ids, completion ids), from a JSON-lines file, a corpus or the right rollouts of a run.

A line of a file:

    {"prompt": "2+3", "completion": "5"}                          or "messages": [{"role": .., "content": ..}, ..]
    {"prompt": "2+3", "completion": "5", "thinking": "two and three", "mode": "on"}

The prompt goes through the chat template of the model, with thinking asked for (`mode` on), forbidden (off) or left to
the template (auto). The markers are put where the template has not put them already, directly against the text, and the
end of the turn is learnt. Rollouts keep the ids that were sampled. A row of `messages` without a completion teaches
every turn of the assistant, each after all that stands before it, as the template shows it then: templates that drop
earlier thoughts are kept to. A thought at the head of a turn, between <think> and </think>, becomes one of the model's.
Instead of a file, rows of a published data set may be named (`evals.data.sources.NamedRows`).

A corpus is an endless, seeded supply of texts of a made-up language, with its tokenizer. It lets a recipe start from
nothing: pretraining on it takes seconds on a CPU, and what the base model can and cannot do is known by construction. A
text is prompt and continuation, both learnt; the prompt is what a task renders.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evals.data.sources import NamedRows
from train.base.rollout import Rollout, read_rollouts
from train.base.stage import Setting
from ttc.config.plugins import PluginShape
from ttc.config.registry import Registry
from ttc.core import Message, Prompt
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError
from ttc.records import iterate
from ttc.seeds import derive
from ttc.session.thinking import CLOSE, OPEN, split_text

MODES: Mapping[str, bool | None] = {"auto": None, "on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Example:
    """What is given, what is learnt, and the name of the prompt (examples of one prompt are held out together)."""

    key: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    weight: float = 1.0


def mismatched(examples: Sequence[Example]) -> list[Example]:
    """Each prompt with a completion of another one, in order; with its own only where more than half are of one prompt.

    Examples are lined up by prompt and moved on by as many as the most frequent prompt has.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for at, example in enumerate(examples):
        places.setdefault(example.prompt_ids, []).append(at)
    line = [at for same in places.values() for at in same]
    shift = max(map(len, places.values()), default=0)
    partner = {at: line[(number + shift) % len(line)] for number, at in enumerate(line)}
    return [Example(one.key, one.prompt_ids, examples[partner[at]].token_ids) for at, one in enumerate(examples)]


def read_examples(path: Path, text: Text, end: int) -> list[Example]:
    """Read a file of examples; `end` is the id that ends a turn.

    Raises:
        ConfigError: no such file, or nothing in it.
        RecordError: a broken line; names file, line and field.
    """
    fields = {"completion", "thinking", "weight"}
    examples = [e for where, row in rows_of(path, fields) for e in _examples(row, text, end, where)]
    if not examples:
        raise ConfigError(f"{path} holds no example")
    return examples


def rows_of(path: Path, fields: set[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield (place for messages, object) of a JSON-lines file whose lines may have a prompt, a mode and `fields`.

    Raises:
        ConfigError: no such file or data set.
        RecordError: a line that is no object, or has another field.
    """
    named = NamedRows.of(str(path))
    if named is None and not path.is_file():
        raise ConfigError(f"{path} does not exist; expected a JSON-lines file")
    allowed = {"prompt", "messages", "mode", "id"} | fields
    rows = iterate(path) if named is None else enumerate(map(_as_ours, named.rows()), start=1)
    for number, row in rows:
        where = f"{path}, line {number}"
        if not isinstance(row, dict):
            raise RecordError(f"{where}: not a JSON object")
        for name in row:
            if name not in allowed:
                raise RecordError(f"{where}: unknown field {name!r} (known: {', '.join(sorted(allowed))})")
        yield where, row


def read_prompt(row: Mapping[str, Any], text: Text, where: str) -> tuple[str, Prompt]:
    """The name of a row's prompt and its rendered form."""
    mode = row.get("mode", "auto")
    if mode not in MODES:
        raise RecordError(f"{where}: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if ("prompt" in row) == ("messages" in row):
        raise RecordError(f"{where}: needs either prompt or messages")
    messages = _messages(row, where)
    rendered = text.render(messages, MODES[mode])
    return str(row.get("id") or hashlib.sha256(rendered.text.encode("utf-8", "replace")).hexdigest()[:16]), rendered


def completion_ids(
    text: Text, prompt: Prompt, thinking: str | None, answer: str, end: int, where: str
) -> tuple[int, ...]:
    """Ids of a completion after `prompt`, the markers added that are not there yet, with the end of the turn."""
    state = prompt.think_state
    if thinking and state == "closed":
        raise RecordError(f"{where}: thinking is given, but mode off has closed the thinking block")
    if thinking is not None and text.markers is None:
        raise RecordError(
            f"{where}: thinking is given, but the model has no thinking markers; name them with --set "
            "thinking.open=... thinking.close=..., or write them into a copy of the model: ttc train adapt"
        )
    opening, closing = text.markers or ("", "")
    body = answer
    if state == "open":
        body = f"{thinking or ''}{closing}{answer}"
    if state == "none" and thinking is not None:
        body = f"{opening}{thinking}{closing}{answer}"
    return (*text.encode(body), end)


def right_rollouts(
    path: Path, *, most: int | None = None, shortest: bool = False, needed: bool = True
) -> list[Example]:
    """Rollouts judged correct and not cut, each text once, at most `most` per problem (the shortest of them first).

    Raises:
        ConfigError: the file is missing, or no rollout in it is correct and one is `needed`.
    """
    by_problem: dict[str, dict[tuple[int, ...], Rollout]] = {}
    for rollout in read_rollouts(path):
        if rollout.right and not rollout.truncated:
            by_problem.setdefault(rollout.problem_id, {}).setdefault(rollout.token_ids, rollout)
    examples: list[Example] = []
    for problem, rollouts in by_problem.items():
        candidates = list(rollouts.values())
        if shortest:
            candidates.sort(key=lambda rollout: len(rollout.token_ids))
        examples += [Example(problem, rollout.prompt_ids, rollout.token_ids) for rollout in candidates[:most]]
    if needed and not examples:
        raise ConfigError(f"{path} holds no rollout that is correct and finished; nothing to learn from")
    return examples


def held_apart(keys: Sequence[str], share: float) -> list[bool]:
    """Which rows are held out: a fixed `share` of the prompts by a hash of their names, whole prompts at a time.

    Of two prompts or more at least one is held out and at least one is not; of a single one nothing is held out.
    """
    places = {key: int.from_bytes(hashlib.sha256(f"held out {key}".encode()).digest()[:4], "big") for key in keys}
    order = sorted(set(places.values()))
    if len(order) < 2:
        return [False] * len(keys)
    limit = min(max(int(share * (1 << 32)), order[0] + 1), order[-1])
    return [places[key] < limit for key in keys]


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """What is asked, and how it is thought about and answered; `thinking` and `answer` with the white space around."""

    messages: tuple[Message, ...]
    thinking: str
    answer: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """A made-up language: `tokenizer()` makes the tokenizer; `sample(rng)` gives one text without its end of sequence.

    `pair(rng)` gives it as prompt and answer, where the language knows the two apart: answers can then be learnt alone.
    `turn(rng)` gives it as a turn of a conversation, which any model learns in its own chat template.
    """

    name: str
    tokenizer: Callable[[], Any]
    sample: Callable[[random.Random], str]
    max_length: int
    pair: Callable[[random.Random], tuple[str, str]] | None = None
    turn: Callable[[random.Random], ShownTurn] | None = None


CORPORA = Registry("corpus", "train.corpora", "ttc.corpora", PluginShape(("train.examples.examples:Corpus",)))


def corpus_examples(corpus: Corpus, text: Text, end: int, num: int, seed: int) -> list[Example]:
    """`num` texts of a corpus: answers to their prompts where it knows the two apart, else all from the second id on.

    Whole prompts are held out; a text without one is held out by its number alone.
    """
    rng = random.Random(derive(seed, "corpus"))
    if corpus.turn is not None:
        return [_turn_example(corpus.turn(rng), text, end, f"corpus {corpus.name}") for _ in range(num)]
    if corpus.pair is not None:
        pairs = [corpus.pair(rng) for _ in range(num)]
        return [Example(prompt, text.encode(prompt), (*text.encode(answer), end)) for prompt, answer in pairs]
    rows = [text.encode(corpus.sample(rng)) for _ in range(num)]
    return [Example(str(i), ids[:1], (*ids[1:], end)) for i, ids in enumerate(rows)]


def _turn_example(turn: ShownTurn, text: Text, end: int, where: str) -> Example:
    prompt = text.render(turn.messages, None)
    ids = completion_ids(text, prompt, turn.thinking, turn.answer, end, where)
    return Example("\n".join(message.content for message in turn.messages), prompt.token_ids or (), ids)


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=_Keyed)


def parted(stage: str, rows: Sequence[T], share: float, setting: Setting) -> tuple[list[T], list[T]]:
    """Rows to train on and rows held out, whole prompts at a time; raises ConfigError when there is one prompt only."""
    out = held_apart([row.key for row in rows], share)
    train = [row for row, is_out in zip(rows, out, strict=True) if not is_out]
    held_out = [row for row, is_out in zip(rows, out, strict=True) if is_out]
    if not train or not held_out:
        raise ConfigError(f"{stage}: {len(rows)} rows of one prompt: none can be held out; give rows of two or more")
    setting.log(f"{len(train)} rows, {len(held_out)} held out")
    return train, held_out


_ROLES = {"human": "user", "gpt": "assistant"}
"""Names of roles in data sets that have `from` and `value`."""


def _as_ours(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a published data set in our form: turns have a role, an answer is its last turn, its thought apart."""
    fields = dict(row)
    if "messages" in fields:
        fields["messages"] = [_turn(turn) for turn in fields["messages"]]
    for name, thought in (
        ("completion", "thinking"), ("chosen", "chosen_thinking"), ("rejected", "rejected_thinking")
    ):  # fmt: skip
        if isinstance(fields.get(name), list):
            fields[name] = _turn(fields[name][-1])["content"]
        if isinstance(fields.get(name), str) and fields.get(thought) is None:
            fields[name], inside = _thought_of(fields[name])
            fields |= {} if inside is None else {thought: inside}
    return fields


def _turn(turn: Mapping[str, Any]) -> dict[str, str]:
    role = str(turn.get("role") or turn.get("from"))
    return {"role": _ROLES.get(role, role), "content": str(turn.get("content") or turn.get("value") or "")}


def _thought_of(text: str) -> tuple[str, str | None]:
    """An answer without the thought at its head, and that thought."""
    if not text.lstrip().startswith(OPEN) or CLOSE not in text:
        return text, None
    parts = split_text(text.lstrip(), False)
    return parts.answer, parts.thinking


def _examples(row: Mapping[str, Any], text: Text, end: int, where: str) -> list[Example]:
    """What a row teaches: its completion, or every turn of the assistant."""
    turns = row.get("messages")
    if "completion" in row or not isinstance(turns, list):
        return [_example(row, text, end, where)]
    ends = [at for at, turn in enumerate(turns) if at and isinstance(turn, dict) and turn.get("role") == "assistant"]
    if not ends:
        raise RecordError(f"{where}: neither a completion nor a turn of the assistant to learn")
    rows = []
    for at in ends:
        answer, thinking = _thought_of(str(turns[at].get("content", "")))
        said = {} if thinking is None else {"thinking": thinking}
        rows.append({**row, "messages": turns[:at], "completion": answer, **said})
    first, _ = read_prompt(rows[0], text, where)
    return [replace(_example(each, text, end, where), key=first) for each in rows]


def _example(row: Mapping[str, Any], text: Text, end: int, where: str) -> Example:
    key, prompt = read_prompt(row, text, where)
    answer, thinking = row.get("completion"), row.get("thinking")
    if not isinstance(answer, str) or not (thinking is None or isinstance(thinking, str)):
        raise RecordError(f"{where}: completion must be a text, and thinking a text or absent")
    weight = read_weight(row, where)
    ids = completion_ids(text, prompt, thinking, answer, end, where)
    return Example(key, prompt.token_ids or (), ids, weight)


def read_weight(row: Mapping[str, Any], where: str) -> float:
    """What a row counts; 1 where it does not say."""
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not weight > 0:
        raise RecordError(f"{where}: weight must be a number above 0, got {weight!r}")
    return float(weight)


def _messages(row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    turns = row.get("messages", [{"role": "user", "content": row.get("prompt")}])
    try:
        return tuple(Message(turn["role"], turn["content"]) for turn in turns)
    except (TypeError, KeyError, ValueError) as exc:
        raise RecordError(f"{where}: a message needs role and content as text ({exc!r})") from exc
