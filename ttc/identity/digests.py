"""What a run was made of, by content: digests of files, model folders, a user's code, and data.

    model_digests(folder)     {"weights": ..., "tokenizer": ...}         one digest per role of a model's files
    source_digests(file)      {"second.py": ..., "helper.py": ...}       a user's file and the modules beside it
    digest_of(data)           JSON data, such as the rows of a task
    named(...), differing()   name each digest for people, and say by name what differs between two sets of them
    part_contents(part)       all that a part reads, without loading it: {"weights of model nano": "9f2c...",
                              "strategy file second.py": "77ab...", "plan of strategy auto": "0d1e..."}

A digest is a SHA-256, 64 hex digits. A digest is of content alone: copying a file or touching it changes nothing. Cost:
each file is read once, about a second per gigabyte.

Digests of large files are remembered between processes in one JSON file, `ttc/digests.json` in the user's cache folder
(XDG_CACHE_HOME, else ~/.cache). A remembered digest is trusted only while the file's path, device, inode, size, and
times of its last change of content and of attributes (to the nanosecond) are unchanged. A user cannot set back the
second of these times, so a file that was changed and given its old time is read again. A file changed within two
seconds before it was read is not remembered: another change within the resolution of the file system's clock would not
show. If the cache cannot be read or written (a read-only or absent home, a full disk, two writers at once), it is not
used.

What cannot be read has no digest, and none is invented: a model behind a server, or a hub id that is not on this
machine, is known by name only, and the caller must say so. Left out: subfolders of a model folder; of a user's code,
installed packages and files that it opens; file systems that keep the old times of a changed file.

The contents of a part are: the file that it was named by (`mine.py:function`) with the modules beside it; the model
folders and inner parts that it states, or its `model` if it states none; and every parameter that is the path of a
file, or `file.py:function`. A hub id that is not here yet is fetched. Left out: installed plug-ins, which are
identified by version; folders among the parameters; what only a server knows, which a loaded engine reports itself
(`ttc.core.Served`). A statement is attached to the factory:

    def _reads(*, model, **options):                  @reads(_reads)
        return [ModelFolder(resolve(model))]          def my_engine(model=None, *, threads=1): ...

The function gets every argument of the factory by name and returns the model folders and inner parts that these lead
to. A part that states nothing is assumed to read its `model` if that is a folder or file here, which is right for most.
It must state a default model, a hub id, a folder of which only the tokenizer counts, and parts inside the part. Files
among the other parameters need no statement.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.recipes import split_model, user_file
from ttc.config.registry import Registry
from ttc.config.signatures import arguments_of
from ttc.durable import replace_text
from ttc.errors import ConfigError

_TEMPLATE_KEY = "chat_template"
_TOKENIZER_CONFIG = "tokenizer_config.json"

ROLES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "weights": ("*.safetensors", "*.bin", "*.gguf", "*.safetensors.index.json", "*.bin.index.json"),
    "config": ("config.json", "adapter_config.json", "*.py"),
    "tokenizer": (
        "tokenizer.json", _TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt",
        "merges.txt", "*.model", "*.tiktoken", "tekken.json",
    ),
    "chat template": ("chat_template.jinja", "chat_template.json", _TOKENIZER_CONFIG),
    "generation settings": ("generation_config.json",),
})  # fmt: skip
"""The files of each role in a model folder. Of tokenizer_config.json the template is one role and the rest another."""
_TRAINER_FILES = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})
"""What a trainer leaves beside the weights; no model reads them."""
_TOOLKIT = Path(__file__).resolve().parents[2]


def file_digest(path: Path) -> str:
    """Return the digest of a file's bytes.

    Raises:
        ConfigError: the file cannot be read; names it.
    """
    try:
        return remembered(path, _computed)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def digest_of(data: Any) -> str:
    """Return the digest of JSON data; the order of keys does not matter, that of lists does.

    An iterator counts as the list of its items, which are never all in memory.
    """
    digest = hashlib.sha256()
    if isinstance(data, Iterator):
        digest.update(b"[")
        for number, item in enumerate(data):
            digest.update((b"," if number else b"") + _canonical(item))
        digest.update(b"]")
    else:
        digest.update(_canonical(data))
    return digest.hexdigest()


def num_first(items: Iterable[Any], digest: str) -> int | None:
    """Of how many of the first of `items`, one by one, `digest` is (`digest_of` an iterator); None where of none."""
    running = hashlib.sha256(b"[")
    for number, item in enumerate(items):
        running.update((b"," if number else b"") + _canonical(item))
        whole = running.copy()
        whole.update(b"]")
        if whole.hexdigest() == digest:
            return number + 1
    return None


def model_digests(folder: Path) -> dict[str, str]:
    """Return one digest per role of a model folder's files, in the order of `ROLES`; a role without a file is left out.

    Raises:
        ConfigError: `folder` is none, a file in it cannot be read, or tokenizer_config.json is not JSON.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a model folder")
    digests = {}
    for role, patterns in ROLES.items():
        rows = [row for file in _files(folder, patterns) for row in _rows(file, role)]
        if rows:
            digests[role] = digest_of(rows)
    return digests


def source_digests(file: Path) -> dict[str, str]:
    """Return the digests of a Python file and of what it imports from its own folder, by path relative to that folder.

    The file itself comes first. Imports are read from the syntax, recursively through all modules in the folder; every
    Python file of a package in the folder counts. Left out: installed packages (the toolkit among them), imports by a
    computed name, and data that the code opens.

    Raises:
        ConfigError: a file cannot be read, or is not Python.
    """
    folder, waiting = file.parent, [file]
    digests: dict[str, str] = {}
    while waiting:
        path = waiting.pop(0)
        name = path.relative_to(folder).as_posix()
        if name not in digests:
            digests[name] = file_digest(path)
            waiting += [near for top in sorted(_imported(path)) for near in _beside(folder, top)]
    return digests


def named(digests: Mapping[str, str], *, before: str = "", after: str = "") -> dict[str, str]:
    """Return the digests by names for people: `after=" of model teacher"` gives "weights of model teacher"."""
    return {f"{before}{name}{after}": digest for name, digest in digests.items()}


LOCATED = ("model", "scorer")
"""Settings that name a folder: its content counts, not its path."""


def located(contents: Mapping[str, Any], part: str, place: str, other: str) -> dict[str, str]:
    """The names in `contents` that belong to a model or scorer at `place`, with their names at `other`."""
    ending = f" of {part} {place}"
    return {name: f"{name.removesuffix(ending)} of {part} {other}" for name in contents if name.endswith(ending)}


def differing(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return the names of what differs between a run's digests and the current ones: in its order, then new names.

    Names on one side only are marked: "chat template of model m (gone)", "strategy file helper.py (new)".
    """
    changed = [name if name in here else f"{name} (gone)" for name, digest in there.items() if here.get(name) != digest]
    return changed + [f"{name} (new)" for name in here if name not in there]


def _computed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    matching = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path for path in matching if path.name not in _TRAINER_FILES)


def _rows(file: Path, role: str) -> list[list[str]]:
    """A file's part in a role: its name and digest; of a tokenizer's configuration only what belongs to the role."""
    if file.name != _TOKENIZER_CONFIG:
        return [[file.name, file_digest(file)]]
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{file} cannot be read: {exc}") from exc
    if not isinstance(settings, dict):
        raise ConfigError(f"{file}: expected a JSON object")
    template = settings.pop(_TEMPLATE_KEY, None)
    if role == "tokenizer":
        return [[file.name, digest_of(settings)]]
    return [] if template is None else [[f"{file.name}: {_TEMPLATE_KEY}", digest_of(template)]]


def _imported(file: Path) -> set[str]:
    """Top-level names that a file imports anywhere."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as exc:
        raise ConfigError(f"{file} cannot be read as Python: {exc}") from exc
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}


def _beside(folder: Path, name: str) -> list[Path]:
    """The files of the module or package `name` in `folder`; none if it is elsewhere or the toolkit's own."""
    module, package = folder / f"{name}.py", folder / name
    if (package / "__init__.py").is_file():
        return [] if package.resolve().parent == _TOOLKIT else sorted(package.rglob("*.py"))
    return [module] if module.is_file() else []


LARGE = 1 << 23
"""Bytes from which on a file's digest is remembered; below it, reading is as quick as looking up."""
_SETTLED_NS = 2_000_000_000
_MAX_ENTRIES = 4096
_STAMP_FIELDS = 6


def remembered(path: Path, compute: Callable[[Path], str]) -> str:
    """Return the digest of the file at `path`, by `compute` unless it is remembered for exactly this content.

    Raises:
        OSError: the file cannot be read.
    """
    before = path.stat()
    if before.st_size < LARGE:
        return compute(path)
    key, stamp, started = os.path.realpath(path), _stamp(before), time.time_ns()
    file = _file()
    entry = _entries(file).get(key)
    if entry is not None and entry[:-1] == stamp:
        return str(entry[-1])
    digest = compute(path)
    is_settled = max(before.st_mtime_ns, before.st_ctime_ns) < started - _SETTLED_NS
    if file is not None and is_settled and _stamp(path.stat()) == stamp:
        _remember(file, key, [*stamp, digest])
    return digest


def _stamp(status: os.stat_result) -> list[int | str]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _file() -> Path | None:
    """The file of remembered digests; None without a cache folder (by the standard, a relative one does not count)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(folder) / "ttc" / "digests.json" if os.path.isabs(folder) else None


def _entries(file: Path | None) -> dict[str, list[int | str]]:
    """The remembered entries by path; none if the file is absent or damaged."""
    if file is None:
        return {}
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(rows, dict):
        return {}
    return {key: row for key, row in rows.items() if isinstance(row, list) and _is_entry(row)}


def _is_entry(row: list[object]) -> bool:
    *stamp, digest = row if row else [None]
    return len(row) == _STAMP_FIELDS and all(isinstance(field, int) for field in stamp) and isinstance(digest, str)


def _remember(file: Path, key: str, entry: list[int | str]) -> None:
    """Add an entry as the newest. Of two processes that write at once one entry may be lost, and is computed again."""
    entries = _entries(file)
    entries.pop(key, None)
    newest = dict(list(entries.items())[1 - _MAX_ENTRIES :])
    with contextlib.suppress(OSError):  # the cache saves time and decides nothing
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps({**newest, key: entry}))


BESIDE_WEIGHTS = tuple(role for role in ROLES if role != "weights")
"""What is read here of a model whose weights are behind a server."""
_ATTRIBUTE = "ttc_reads"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder, or only some of its roles; `owner` is its name for people, if the part's name is not enough."""

    path: Path
    roles: tuple[str, ...] = tuple(ROLES)
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class InnerPart:
    """A part inside the part: `spec` is NAME or NAME:MODEL."""

    registry: Registry
    spec: str
    params: Mapping[str, Any] = field(default_factory=dict)


Reads: TypeAlias = Callable[..., Iterable[ModelFolder | InnerPart]]
Factory = TypeVar("Factory", bound=Callable[..., Any])


def reads(statement: Reads) -> Callable[[Factory], Factory]:
    """Attach to a factory the statement of what it reads; `statement` takes all its arguments by name."""

    def attach(factory: Factory) -> Factory:
        setattr(factory, _ATTRIBUTE, statement)
        return factory

    return attach


def reads_of(factory: Callable[..., Any]) -> Reads | None:
    """Return the statement of a factory, or None without one."""
    statement: Reads | None = getattr(factory, _ATTRIBUTE, None)
    return statement


def part_contents(part: PartChoice) -> dict[str, str]:
    """Return the digests of all that an engine, a scorer or a verifier reads, by name.

    Raises:
        ConfigError: a folder or file that cannot be read, or a model that is not here and cannot be fetched.
    """
    contents = code_digests(part.kind, part.name)
    for source in _sources(part):
        if isinstance(source, ModelFolder):
            contents |= _folder_digests(source, _owner(part, source))
        else:
            contents |= part_contents(_inner(source))
    return contents | _parameter_digests(f"{part.kind} {part.name}", _named_files(part))


def strategy_contents(choice: StrategyChoice) -> dict[str, str]:
    """Return the digests of a strategy's own file, if any, of files among its parameters, and of inner strategies'."""
    own = code_digests("strategy", choice.name) | _parameter_digests(f"strategy {choice.name}", choice.params)
    return own | {name: digest for inner in choice.inner.values() for name, digest in strategy_contents(inner).items()}


def code_digests(kind: str, name: str) -> dict[str, str]:
    """Return the digests of the file that a part was named by and of the modules beside it; of a registered name {}."""
    file = user_file(name)
    return {} if file is None else named(source_digests(file), before=f"{kind} file ")


def _sources(part: PartChoice) -> Iterable[ModelFolder | InnerPart]:
    statement = reads_of(part.factory)
    if statement is not None:
        return statement(**_arguments(part))
    folder = None if part.model is None else Path(part.model).expanduser()
    return [ModelFolder(folder)] if folder is not None and folder.is_dir() else []


def _named_files(part: PartChoice) -> Mapping[str, Any]:
    """The parameters that may name files; also the model, if the part does not state what it reads."""
    own = {} if part.model is None or reads_of(part.factory) is not None else {"model": part.model}
    return {**own, **part.params}


def _arguments(part: PartChoice) -> dict[str, Any]:
    """Every argument of the factory, the defaults included; the engine that is supplied later is None."""
    arguments = arguments_of(part.factory, part.params)
    return {**arguments, **({"model": part.model} if "model" in arguments else {})}


def _owner(part: PartChoice, source: ModelFolder) -> str:
    if source.owner is not None:
        return source.owner
    return f"model {part.model or source.path.name}" if part.kind == "engine" else f"{part.kind} {part.label}"


def _folder_digests(source: ModelFolder, owner: str) -> dict[str, str]:
    digests = model_digests(source.path)
    return named({role: digests[role] for role in source.roles if role in digests}, after=f" of {owner}")


def _inner(source: InnerPart) -> PartChoice:
    name, model = split_model(source.spec)
    return PartChoice(source.registry.kind, name, model, source.registry.load(name), source.params)


def _parameter_digests(owner: str, params: Mapping[str, Any]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for key, value in params.items():
        for text in texts_in(value):
            digests |= _text_digests(f"{key} of {owner}", text)
    return digests


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts and paths in a setting: itself, or those of a list or table."""
    if isinstance(value, (str, Path)):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from texts_in(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from texts_in(item)


def _text_digests(owner: str, text: str) -> dict[str, str]:
    """The digest of the file that a parameter names, by itself or as `file.py:function`; none for any other text."""
    code = user_file(split_model(text)[0])
    if code is not None and os.path.isfile(code):
        return named(source_digests(code), before=f"{owner}: ")
    path = os.path.expanduser(text)
    is_file = ("/" in path or "." in path) and os.path.isfile(path)  # a bare name is not taken as a path
    return {f"{owner}: {os.path.basename(path)}": file_digest(Path(path))} if is_file else {}
