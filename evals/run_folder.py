"""A run's folder: what it holds, and whether it holds this run.

`run.json` holds the resolved configuration and its digest; `records.jsonl` gets one record per problem. Starting again
with the same configuration continues where the file ends; another configuration is refused, naming what differs. A
larger limit extends a run: its problems are the first of the larger set, and only the others are asked. run.json
records what decided the results by content (`contents`, see `evals.experiment`), so other weights under the same path
make another run. A run.json that was lost, emptied or cut is written anew by the command that made the run: its records
bear the configuration's digest.

Records live only on the disk, so memory does not grow with them: `StoredRecords` keeps where each line begins, eight
bytes a problem. Every pass reads and decodes the file again (about a millisecond for a record of twenty kilobytes), so
code that needs several things should take them in one pass. Runs below `HELD_BYTES` are simply lists.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, overload

import ttc.records as store
from evals.task import Item, num_problems_of, problems_digest, sample
from ttc.config.recipes import differences
from ttc.config.values import natural
from ttc.core import NO_VERDICT, Record, Usage
from ttc.durable import replace_text
from ttc.errors import ConfigError, RecordError
from ttc.identity.digests import LOCATED, differing, located

CONFIG = "run.json"
RECORDS = "records.jsonl"
CONTENTS = "contents"
"""The key of a configuration that holds digests by name; None where they are not known yet."""
SERVED = "served"
"""The key that holds what a server says of its model; None until it is connected to."""
COUNTED = "counting"
"""The key that holds how FLOPs are counted (`ttc.session.meter.COUNTING`); older runs have none."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder as read from disk: its configuration and one record per problem, by problem id."""

    folder: Path
    config: Mapping[str, Any]
    records: tuple[Record, ...]


def digest(config: Mapping[str, Any]) -> str:
    """Return the hash that tells two configurations apart."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def read_run(folder: Path) -> Run:
    """Read a run folder; raises ConfigError when it is none and RecordError when a record is broken."""
    config = stored_config(folder)
    if config is None:
        inner = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
        if inner:
            what = "holds several runs; name one of them" if inner[1:] else "is not a run itself; name the one in it"
            raise ConfigError(f"{folder} {what}: {', '.join(map(str, inner))}")
        missing = (
            f"it has no {CONFIG}" if folder.is_dir() else "it is a file" if folder.exists() else "there is no folder"
        )
        raise ConfigError(f"{folder} is not a run: {missing}")
    path = folder / RECORDS
    latest = _latest(store.read(path), path) if path.is_file() else {}
    return Run(folder, config, tuple(latest[name] for name in sorted(latest, key=natural)))


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """What a folder holds of the requested items, by their index.

    `places` says where each record is, -1 where it must be made. `unjudged` says where the records are whose answers
    are only judged again. `spent_before` is what failed problems that are asked again had cost.
    """

    places: MutableSequence[int]
    unjudged: Mapping[int, int]
    spent_before: Mapping[int, Usage]
    num_sessions: int


def kept_records(path: Path, items: Sequence[Item], folder: Path, *, retry_errors: bool) -> KeptRecords:
    """Read the records of a folder; raises ConfigError if they are of other data, RecordError for a broken one."""
    places = array("q", [-1]) * len(items)
    unjudged: dict[int, int] = {}
    spent_before: dict[int, Usage] = {}
    failed: dict[str, bool] = {}
    numbers: dict[str, int] = {}
    num_sessions = 0
    for place, record in store.scan(path):
        numbers = numbers or {item.problem.id: index for index, item in enumerate(items)}
        name = record.problem.id
        _check_once(failed, record, path)
        _check_same_data(record, items[numbers[name]] if name in numbers else None, folder)
        index, is_again = numbers[name], retry_errors and _is_open(record)
        places[index] = -1 if is_again else place
        spent_before.pop(index, None)
        unjudged.pop(index, None)
        if is_again and record.answer is not None:
            unjudged[index] = place
        elif is_again:
            costs = (record.provenance.get(key, {}) for key in ("spent", "spent_before"))
            spent_before[index] = sum((Usage(**cost) for cost in costs), Usage())
        num_sessions = max(num_sessions, int(record.provenance.get("session", 0)))
    return KeptRecords(places, unjudged, spent_before, num_sessions)


_FOLLOWS = {
    "fit": " (it is false where --max-tokens is given)",
    "engine_params.seeded": " (it is false where no --seed is given)",
    "engine_params.logprobs": " (it is false where nothing named reads them; name a further strategy alone)",
}
"""Names in run.json that follow from what else a user gave, with why: refused only where nothing else differs."""


def _rank(change: tuple[str, str, str]) -> int:
    """Order changes: what a user gave, then what follows from it."""
    name, _, _ = change
    return list(_FOLLOWS).index(name) + 1 if name in _FOLLOWS else 0


def check_folder(
    folder: Path, config: Mapping[str, Any], items: Sequence[Item] = (), *, names_problem: bool = True
) -> None:
    """Refuse a folder that holds another run, naming what differs; a new folder is fine.

    Entries of `contents` and `served` in `config` that are None are not known yet, and not compared. `items` are all
    that are asked for now: the run is the same if they begin with the folder's; else the error names one that changed.
    """
    config_there = readable_config(folder)
    if config_there is None:
        _check_orphans(folder, config, items)
        return
    if CONTENTS in config and CONTENTS not in config_there:
        raise ConfigError(
            f"{folder} was made before runs recorded what they measured (weights, user files, data), so it can be read "
            "but not continued; choose another --out"
        )
    config = _as_named_there(config_there, _before_growth(config_there, config, items))
    apart = dict.fromkeys((CONTENTS, COUNTED, *(() if config.get(SERVED) is not None else (SERVED,))))
    settings = json.loads(json.dumps({**config, **apart}))
    changes = list(differences({**config_there, **apart}, settings))
    if changes:
        name, there, here = min(changes, key=_rank)
        why = "; a run grows by a larger limit only" if name == "limit" else _FOLLOWS.get(name, "")
        raise ConfigError(
            f"{folder} holds another run: {name} is {there} there and {here} here{why}; "
            "choose another --out, or remove it"
        )
    if config.get(CONTENTS) is not None:
        _check_contents(folder, config_there[CONTENTS], config[CONTENTS], items if names_problem else ())
    if items and _counts_otherwise(folder, config) and not is_whole(folder, items):
        check_counting(folder, config)


def _as_named_there(there: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the folder's names of model, scorer and file of problems that lie elsewhere now.

    What they are by content decides; where that is not known yet, it is left open.
    """
    before = there.get(CONTENTS)
    for part in LOCATED:
        place, place_there, contents = config.get(part), there.get(part), config.get(CONTENTS)
        if not isinstance(place, str) or not isinstance(place_there, str):
            continue
        if contents is None:
            config = {**config, part: place_there}
            continue
        names = located(contents, part, place, place_there)
        if (
            names
            and isinstance(before, Mapping)
            and all(before.get(new) == contents[old] for old, new in names.items())
        ):
            renamed = {names.get(name, name): digest for name, digest in contents.items()}
            config = {**config, part: place_there, CONTENTS: renamed}
    params, params_there = config.get("task_params") or {}, there.get("task_params") or {}
    if "path" in params and "path" in params_there:  # the problems themselves are held by content
        config = {**config, "task_params": {**params, "path": params_there["path"]}}
    return config


def _check_orphans(folder: Path, config: Mapping[str, Any], items: Sequence[Item]) -> None:
    """Refuse records whose run.json is lost, unless the last record says that `config` made it.

    Each record bears the digest of the configuration that made it, so run.json can be written again, even for a
    finished run that grows now. Parts of `config` that are not known yet leave the question open.
    """
    if None in (config.get(CONTENTS, {}), config.get(SERVED, {})) or not _has_begun(folder):
        return
    made_by, names, path = None, set[str](), folder / RECORDS
    for _, record in store.scan(path) if path.is_file() else ():
        made_by = record.provenance.get("run")
        names.add(record.problem.id)
    smaller = _with_limit(config, items, len(names)) if _grows(config, len(names)) else ()
    if all(made_by != digest(one) for one in (config, *smaller)):
        raise ConfigError(
            f"{folder} holds {RECORDS} but no {CONFIG} that can be read, and they were made with other settings, or "
            f"with a limit above {len(names)} that was not reached: give the options of the command that made them, "
            "its --limit too, and a larger one afterwards, or choose another --out"
        )


def check_counting(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse to add to a folder whose FLOPs were counted in another way; the two cannot be added up."""
    if _counts_otherwise(folder, config):
        raise ConfigError(
            f"{folder} was begun by a version that counts FLOPs in another way, so it can be read but not continued; "
            "choose another --out, or remove it"
        )


def _counts_otherwise(folder: Path, config: Mapping[str, Any]) -> bool:
    there = stored_config(folder) or config
    return COUNTED in config and there.get(COUNTED) != config[COUNTED] and _has_begun(folder)


def _has_begun(folder: Path) -> bool:
    """Whether a run has recorded anything that it paid for."""
    return any(path.stat().st_size for path in folder.glob("*.jsonl"))


def is_whole(folder: Path, items: Sequence[Item], *, retry_errors: bool = False) -> bool:
    """Whether every problem has a record, so that none is asked; a failed one counts unless it is retried."""
    path = folder / RECORDS
    records = (record for _, record in store.scan(path)) if path.is_file() else ()
    failed = {record.problem.id: record.error is not None for record in records}
    names = {name for name, is_failed in failed.items() if not (is_failed and retry_errors)}
    return all(item.problem.id in names for item in items)


def _check_contents(folder: Path, there: Any, here: Mapping[str, str], items: Sequence[Item]) -> None:
    if not isinstance(there, Mapping):
        raise ConfigError(f"{folder / CONFIG}: {CONTENTS}: expected an object; choose another folder")
    names = differing(there, here)
    if not names:
        return
    if items and (folder / RECORDS).is_file():
        # Names the first problem that changed, if recorded.
        kept_records(folder / RECORDS, items, folder, retry_errors=False)
    raise ConfigError(
        f"{folder} holds another run: it was made with other {', '.join(names)}; "
        "choose another --out, or restore what it was made with"
    )


def _before_growth(there: Mapping[str, Any], config: Mapping[str, Any], items: Sequence[Item]) -> Mapping[str, Any]:
    """The configuration with the folder's limit and problems, if it asks for these and more.

    It asks for more by a larger limit, or, if the limit was not reached, by rows added behind the earlier ones.
    """
    before, now = there.get("limit"), config.get("limit")
    name, contents = _problems_of(config), there.get(CONTENTS)
    digest_there = contents.get(name) if isinstance(contents, Mapping) else None
    if before == now and digest_there is not None and config.get(CONTENTS) is not None and not _spends_total(config):
        is_begin = config[CONTENTS].get(name) != digest_there and num_problems_of(digest_there, items) is not None
        return {**config, CONTENTS: {**config[CONTENTS], name: digest_there}} if is_begin else config
    if not isinstance(before, int) or not _grows(config, before):
        return config
    smaller = _with_limit(config, items, before)
    same = (one for one in smaller if one[CONTENTS] is None or one[CONTENTS].get(name) == digest_there)
    return next(same, {**config, "limit": before})


def _grows(config: Mapping[str, Any], before: int) -> bool:
    """Whether a run of `before` problems may grow to that of `config`.

    Not with a strategy that spends a total over all problems: it would have spent it differently on more.
    """
    now = config.get("limit")
    return (now is None or now > before) and not _spends_total(config)


def _spends_total(config: Mapping[str, Any]) -> bool:
    return (config.get("params") or {}).get("total") is not None


def _with_limit(config: Mapping[str, Any], items: Sequence[Item], limit: int) -> Iterator[dict[str, Any]]:
    """The configuration of a smaller run: its problems are the first of `items`, or a sample where those are all."""
    contents = config.get(CONTENTS)
    for part in (islice(items, limit), sample(items, limit)):
        contents_now = None if contents is None else {**contents, _problems_of(config): problems_digest(part)}
        yield {**config, "limit": limit, CONTENTS: contents_now}


def _problems_of(config: Mapping[str, Any]) -> str:
    """The entry of `contents` that names the problems asked."""
    return f"problems of task {config.get('task')}"


@contextmanager
def held(folder: Path, config: Mapping[str, Any], items: Sequence[Item] = ()) -> Iterator[store.RecordFile]:
    """Lock a folder (created if needed) against other processes, write its run.json, and return its open records.

    Raises ConfigError where another process holds it, and like `check_folder`.
    """
    check_folder(folder, config, items, names_problem=False)
    folder.mkdir(parents=True, exist_ok=True)
    with store.RecordFile(folder / RECORDS) as file:
        _claim(folder, config, items)
        yield file


def _claim(folder: Path, config: Mapping[str, Any], items: Sequence[Item]) -> None:
    """Write run.json where the folder is new or the run grows; by now another process may have put its run there."""
    check_folder(folder, config, items, names_problem=False)
    there = readable_config(folder)
    if there is not None and _has_begun(folder):  # what is there stays counted as it was
        mark = {COUNTED: there[COUNTED]} if COUNTED in there else {}
        config = {**{name: value for name, value in config.items() if name != COUNTED}, **mark}
    if there is None or digest(there) != digest(config):
        replace_text(folder / CONFIG, json.dumps({"digest": digest(config), "config": config}, indent=2) + "\n")


def stored_config(folder: Path) -> Mapping[str, Any] | None:
    """The configuration in run.json; None where there is none. Raises ConfigError where it cannot be read."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    fix = "the command that made the run, given again with its --out, writes it again; or choose another folder"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f"{path} cannot be read ({type(exc).__name__}: {exc}); {fix}") from exc
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: config: expected an object; {fix}")
    return config


def readable_config(folder: Path) -> Mapping[str, Any] | None:
    """As `stored_config`, and None where run.json was emptied or cut."""
    try:
        return stored_config(folder)
    except ConfigError:
        return None


def _latest(records: Sequence[Record], path: Path) -> dict[str, Record]:
    """Return one record per problem: a retried error is replaced by what came after it."""
    latest: dict[str, Record] = {}
    failed: dict[str, bool] = {}
    for record in records:
        _check_once(failed, record, path)
        latest[record.problem.id] = record
    return latest


def _is_open(record: Record) -> bool:
    """Whether a problem may be run again: it failed, or its verifier did not decide on an answer of it."""
    verdicts = (record.verdict, *record.verdicts)
    return record.error is not None or any(each is not None and each.status in NO_VERDICT for each in verdicts)


def _check_once(failed: dict[str, bool], record: Record, path: Path) -> None:
    """Note whether a problem may be run again; only then may another record of it follow."""
    name = record.problem.id
    if failed.get(name) is False:
        raise RecordError(f"{path}: problem {name!r} is recorded twice; delete one of its two lines")
    failed[name] = _is_open(record)


def _check_same_data(record: Record, item: Item | None, folder: Path) -> None:
    if item is None or item.target != record.target or item.problem.messages != record.problem.messages:
        raise ConfigError(
            f"{folder} was made from other data: problem {record.problem.id!r} "
            f"{'is gone' if item is None else 'changed'}; choose another --out"
        )


HELD_BYTES = 8 << 20
"""A file is about six times as large in memory."""


class StoredRecords(Sequence[Record]):
    """Records of a file by the places of their lines; read-only, and valid as long as the file is only appended to."""

    def __init__(self, path: Path, places: Sequence[int]) -> None:
        """`places` are in the order in which the records are wanted."""
        self._path, self._places = path, places

    def __len__(self) -> int:
        """How many there are."""
        return len(self._places)

    def __iter__(self) -> Iterator[Record]:
        """Read one after the other."""
        with self._path.open("rb") as file:
            for place in self._places:
                yield store.read_at(file, place)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> StoredRecords: ...

    def __getitem__(self, index: int | slice) -> Record | StoredRecords:
        """Read one record, or return a slice that is still unread."""
        if isinstance(index, slice):
            return StoredRecords(self._path, self._places[index])
        with self._path.open("rb") as file:
            return store.read_at(file, self._places[index])


def stored(path: Path, places: Sequence[int]) -> Sequence[Record]:
    """The records at `places` of the file at `path`: a list where the file is small, else read on access."""
    records = StoredRecords(path, places)
    return records if path.stat().st_size > HELD_BYTES else list(records)
