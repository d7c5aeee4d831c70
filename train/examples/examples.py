"""Examples to imitate: (prompt ids, completion ids), from rows, a corpus or the right rollouts of a run.

The prompt of a row (`train.examples.rows`) goes through the chat template of the model, with thinking asked for (`mode`
on), forbidden (off) or left to the template (auto); an empty completion is refused. Markers that the template has not
written are added, directly next to the text, and the end of the turn is learnt. Rollouts keep the sampled ids. A row of
`messages` without a completion teaches every turn of the assistant, each after everything before it as the template
renders it, even if the template drops earlier thoughts. A thought at the start of a turn, between <think> and </think>
or apart (`reasoning_content`), is put between the model's own markers. A turn's `weight` scales its loss; 0 leaves it
out. Calls are learnt as the model's family writes them, and only if its template renders them in exactly these words.
Left out: calls of families that write no JSON.

Whole prompts are held out, whatever their `id` or mode, and rows of one `cluster` (variants of one thing) together.
Rows that are also held-out problems, or longer than the model's context, are refused.

A corpus is an endless, seeded supply of texts of a made-up language, with its tokenizer. It lets a recipe start without
a model: pretraining on it takes seconds on a CPU, and the base model's abilities are known by construction. A text is
prompt and continuation, both learnt; the prompt is what a task renders.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evals.data.decontamination import overlaps, own_texts
from evals.task import Item
from train.base.rollout import Rollout, read_rollouts
from train.base.stage import Setting
from train.examples.rows import (
    MODES,
    check_fields,
    is_remote,
    read_answer,
    read_prompt,
    read_turns,
    read_weight,
    rows_of,
    thought_of,
)
from ttc.config.plugins import PluginShape
from ttc.config.registry import Registry
from ttc.config.values import counted
from ttc.core import Message, Problem, Prompt, ToolMessage
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError
from ttc.seeds import derive
from ttc.session.thinking import CLOSE, OPEN
from ttc.toolformats.families import TOOL_FORMATS


@dataclass(frozen=True, slots=True)
class Example:
    """The given part, the learnt part, and the name of the prompt (examples of one prompt are held out together).

    `where` is the place in a file, for messages.
    """

    key: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    weight: float = 1.0
    where: str = field(default="", compare=False)


def mismatched(examples: Sequence[Example]) -> list[Example]:
    """Each prompt with a completion of another one, in order; with its own only if more than half are of one prompt.

    Examples are sorted by prompt and shifted by the size of the largest group. A completion is cut at the length of the
    longest example, which the model can read.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for at, example in enumerate(examples):
        places.setdefault(example.prompt_ids, []).append(at)
    line = [at for same in places.values() for at in same]
    shift = max(map(len, places.values()), default=0)
    longest = max((len(one.prompt_ids) + len(one.token_ids) for one in examples), default=0)
    partner = {at: line[(number + shift) % len(line)] for number, at in enumerate(line)}
    return [
        Example(one.key, one.prompt_ids, examples[partner[at]].token_ids[: longest - len(one.prompt_ids)])
        for at, one in enumerate(examples)
    ]


FIELDS = {"completion", "thinking", "weight"}
"""What a row of examples may have beside its prompt."""


def read_examples(path: Path, text: Text, end: int) -> list[Example]:
    """Read a file of examples; `end` is the id that ends a turn.

    Raises:
        ConfigError: no such file, or nothing in it.
        RecordError: a broken line; names file, line and field.
    """
    examples = [e for where, row in rows_of(path, FIELDS) for e in _examples(row, text, end, where)]
    if not examples:
        raise ConfigError(f"{path} holds no example")
    return examples


def read_example(row: Mapping[str, Any], text: Text, end: int, where: str) -> Example:
    """The example of a row with a completion, read like a row of a file in `read_examples`; raises RecordError."""
    check_fields(row, FIELDS, where)
    return _example(row, text, end, where)


def _examples(row: Mapping[str, Any], text: Text, end: int, where: str) -> list[Example]:
    """The examples of a row: its completion, or every turn of the assistant."""
    turns = row.get("messages")
    if "completion" in row or not isinstance(turns, list):
        return [_example(row, text, end, where)]
    places = [at for at, turn in enumerate(turns) if at and isinstance(turn, dict) and turn.get("role") == "assistant"]
    ends = [at for at in places if turns[at].get("weight") != 0]
    if not ends:
        read_turns(row, where)  # says what is wrong with a turn, such as another name of a role
        raise RecordError(f"{where}: neither a completion nor a turn of the assistant to learn")
    rows = []
    for at in ends:
        answer, thinking = thought_of(_said(row, at, text, where))
        thought = {} if thinking is None else {"thinking": thinking}
        weight = {} if turns[at].get("weight") is None else {"weight": _turn_weight(row, turns[at], where)}
        rows.append({**row, "messages": turns[:at], "completion": answer, **thought, **weight})
    first, _ = read_prompt(rows[0], text, where)
    return [replace(_example(each, text, end, where), key=first) for each in rows]


def _turn_weight(row: Mapping[str, Any], turn: Mapping[str, Any], where: str) -> float:
    """What a turn counts among those of its row, which may count by itself."""
    return read_weight(row, where) * read_weight(turn, f"{where}: a turn")


def _said(row: Mapping[str, Any], at: int, text: Text, where: str) -> str:
    """What the assistant writes in turn `at`, with calls in the notation of the model's family."""
    upto = {**row, "messages": row["messages"][: at + 1]}
    messages, mode, tools = read_turns(upto, where)
    turn = messages[at]
    if not isinstance(turn, ToolMessage) or not turn.calls:
        return turn.content
    place, name = f"{where}: messages[{at}]: tool_calls", text.tool_format
    if name not in TOOL_FORMATS:
        raise RecordError(f"{place}: the chat template writes calls in a form that is not supported; leave them out")
    body = TOOL_FORMATS[name].write(turn.calls)
    answer, thinking = thought_of(turn.content)
    whole = "\n".join([*([answer.strip()] if answer.strip() else []), body])
    if whole not in text.render(messages, mode, tools).text:
        raise RecordError(f"{place}: the chat template of the model does not show them as {whole!r}; leave them out")
    opening = "" if thinking is None else f"{OPEN}{thinking}{CLOSE}"
    return opening + whole


def _example(row: Mapping[str, Any], text: Text, end: int, where: str) -> Example:
    key, prompt = read_prompt(row, text, where)
    answer, thinking = read_answer(row, where)
    weight = read_weight(row, where)
    ids = completion_ids(text, prompt, thinking, answer, end, where)
    return Example(key, prompt.token_ids or (), ids, weight, where)


def check_rows(
    stage: str, path: Path | None, fields: set[str], held_out: Sequence[Item] = (), *, late: bool = False
) -> None:
    """Refuse a file whose prompts are broken or also held-out problems, before a model is loaded.

    Rows of a published data set without a local copy are read only if `late`, and then only those.

    Raises:
        ConfigError: rows that are held-out problems.
        RecordError: a broken line; names file, line and field.
    """
    if path is None or is_remote(path) != late:
        return
    rows = [(where, message.content) for where, row in rows_of(path, fields) for message in _asked(row, where)]
    shared = _shared([text for _, text in rows], held_out)
    if shared:
        where, text = rows[shared[0]]
        count = len({rows[place][0] for place in shared})
        those = "1 row is a held-out problem" if count == 1 else f"{counted(count, 'row')} are held-out problems"
        raise ConfigError(
            f"{stage}: {those} too, such as {where}: {text[:80]!r}; leave them out, or take another held_out"
        )


def check_prompts(stage: str, where: str, examples: Iterable[Example], text: Text, held_out: Sequence[Item]) -> None:
    """Refuse examples of rollouts that answer held-out problems, as rendered for the model of `text` in any mode.

    Other templates and wordings are detected by a shared run of words.

    Raises:
        ConfigError: it names how many prompts, and one of them.
    """
    if not held_out:
        return
    renderings = {text.render(item.problem.messages, mode).text for item in held_out for mode in MODES.values()}
    prompts = [text.decode(ids) for ids in dict.fromkeys(example.prompt_ids for example in examples)]
    runs = {overlap.train for overlap in overlaps(prompts, own_texts(held_out))}
    shared = [prompt for place, prompt in enumerate(prompts) if prompt in renderings or place in runs]
    if shared:
        total = counted(len(prompts), "problem")
        raise ConfigError(
            f"{stage}: {len(shared)} of the {total} that {where} answers are held-out problems too, "
            f"such as {shared[0][:80]!r}; take another held_out, or rollouts of another task"
        )


def _asked(row: Mapping[str, Any], where: str) -> Iterator[Message]:
    """The user's text in a row."""
    return (message for message in read_turns(row, where)[0] if message.role == "user")


def _shared(texts: Sequence[str], held_out: Sequence[Item]) -> list[int]:
    """Places of the texts that are held-out problems, ignoring instructions that all of them share."""
    if not texts or not held_out:
        return []
    rows = [Item(Problem(str(place), (Message("user", text),)), "") for place, text in enumerate(texts)]
    own = own_texts([*rows, *held_out])
    equal = {o.train for o in overlaps(own[: len(rows)], own[len(rows) :]) if o.how == "equal"}
    return sorted(equal | {o.train for o in overlaps(texts, own_texts(held_out))})


def most_tokens(folder: Path) -> int | None:
    """The longest example in tokens that the model in `folder` reads; None if its configuration does not say."""
    from transformers import AutoConfig

    return getattr(AutoConfig.from_pretrained(folder).get_text_config(), "max_position_embeddings", None)


def within_context(stage: str, examples: Iterable[Example], folder: Path) -> None:
    """Raise RecordError for an example that the model in `folder` cannot read: too long, or an id beyond its rows."""
    from transformers import AutoConfig

    most, rows = most_tokens(folder), AutoConfig.from_pretrained(folder).get_text_config().vocab_size
    every = list(examples)
    for example in every:
        ids = (*example.prompt_ids, *example.token_ids)
        where = example.where or f"a completion of {example.key}"
        if most is not None and len(ids) > most:
            more = sum(len(one.prompt_ids) + len(one.token_ids) > most for one in every) - 1
            others = f" ({counted(more, 'row')} more too long)" if more else ""
            raise RecordError(
                f"{where}: {len(ids)} tokens, but the model of {stage} reads at most {most}{others}; shorten it, or "
                "leave it out"
            )
        if max(ids) >= rows:
            raise RecordError(
                f"{where}: token {max(ids)} ({Text(folder).decode([max(ids)])!r}) is in the tokenizer of {folder}, "
                f"whose model has embeddings for {rows} tokens only: give it more (resize_token_embeddings of "
                "transformers), or take the token out of tokenizer.json"
            )


def check_room(stage: str, items: Sequence[Item], folder: Path, thinking: bool | None, cap: int) -> None:
    """Refuse problems that leave no room for `cap` tokens in the model's context, before a draw of one ends the run.

    Raises:
        ConfigError: it names how many problems, and the longest.
    """
    text, most = Text(folder), most_tokens(folder)
    if most is None:
        return
    lengths = {item.problem.id: len(text.render(item.problem.messages, thinking).token_ids or ()) for item in items}
    tight = [name for name, length in lengths.items() if length + cap > most]
    if tight:
        longest = max(tight, key=lengths.__getitem__)
        raise ConfigError(
            f"{stage}: {len(tight)} of {counted(len(lengths), 'problem')} leave no room for max_tokens = {cap} in the "
            f"{counted(most, 'token')} that the model reads; the longest is {longest}, of "
            f"{counted(lengths[longest], 'token')}: leave them out of the task, or lower max_tokens"
        )


def completion_ids(
    text: Text, prompt: Prompt, thinking: str | None, answer: str, end: int, where: str
) -> tuple[int, ...]:
    """Ids of a completion after `prompt`, with missing markers and the end of the turn added."""
    state = prompt.think_state
    if thinking and state == "closed":
        raise RecordError(f"{where}: thinking is given, but mode off has closed the thinking block")
    if thinking is not None and text.markers is None:
        raise RecordError(
            f"{where}: thinking is given, but the model has no thinking markers; name them with --set "
            "thinking.open=... --set thinking.close=..., or write them into a copy of the model: "
            "ttc train adapt MODEL --out DIR"
        )
    opening, closing = text.markers or ("", "")
    if state == "open":
        begun = prompt.text.rpartition(opening)[2]  # such as the line break behind the marker, which thoughts come with
        body = f"{(thinking or '').removeprefix(begun)}{closing}{answer}"
        return (*text.encode_said(body), end)
    if state == "none":
        body = answer if thinking is None else f"{opening}{thinking}{closing}{answer}"
        return (*text.encode_turn(body), end)
    return (*text.encode_said(answer), end)


def right_rollouts(
    path: Path, *, most: int | None = None, shortest: bool = False, needed: bool = True
) -> list[Example]:
    """Rollouts judged correct and not cut, each text once, at most `most` per problem (the shortest of them first).

    Raises:
        ConfigError: the file is missing, or none of its rollouts is correct and one is `needed`.
    """
    by_problem: dict[str, dict[tuple[int, ...], Rollout]] = {}
    for rollout in read_rollouts(path):
        if rollout.right and not rollout.truncated:
            by_problem.setdefault(rollout.problem_id, {}).setdefault(rollout.token_ids, rollout)
    examples: list[Example] = []
    for rollouts in by_problem.values():
        candidates = list(rollouts.values())
        if shortest:
            candidates.sort(key=lambda rollout: len(rollout.token_ids))
        examples += [Example(rollout.key, rollout.prompt_ids, rollout.token_ids) for rollout in candidates[:most]]
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
    """A question with its thinking and answer, both with the surrounding white space."""

    messages: tuple[Message, ...]
    thinking: str
    answer: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """A made-up language: `tokenizer()` makes the tokenizer; `sample(rng)` gives one text without its end of sequence.

    `pair(rng)` gives it as prompt and answer, if the language has both: then answers alone can be learnt. `turn(rng)`
    gives it as a turn of a conversation, which any model learns in its own chat template.
    """

    name: str
    tokenizer: Callable[[], Any]
    sample: Callable[[random.Random], str]
    max_length: int
    pair: Callable[[random.Random], tuple[str, str]] | None = None
    turn: Callable[[random.Random], ShownTurn] | None = None


CORPORA = Registry("corpus", "train.corpora", "ttc.corpora", PluginShape(("train.examples.examples:Corpus",)))


def corpus_examples(corpus: Corpus, text: Text, end: int, num: int, seed: int) -> list[Example]:
    """`num` texts of a corpus: answers to their prompts if it has both, else everything from the second id on.

    Whole prompts are held out; a text without one is held out by its number.
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
    """Examples to train on and held-out ones, whole prompts at a time; with a share of 0 none are held out.

    An example is one learnt turn, a pair or a solution; a row of a file may hold several.

    Raises:
        ConfigError: there is only one prompt.
    """
    if not share:
        setting.log(f"{counted(len(rows), 'example')}, none held out")
        return list(rows), []
    out = held_apart([row.key for row in rows], share)
    train = [row for row, is_out in zip(rows, out, strict=True) if not is_out]
    held_out = [row for row, is_out in zip(rows, out, strict=True) if is_out]
    if not train or not held_out:
        number = counted(len(rows), "example")
        raise ConfigError(
            f"{stage}: {number} of one prompt: none can be held out; give rows of at least two prompts, or, in sft, "
            "preference and trl, set held_out_share = 0"
        )
    setting.log(f"{counted(len(train), 'example')} to train on, {len(held_out)} held out")
    return train, held_out
