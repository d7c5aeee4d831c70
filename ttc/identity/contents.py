"""What a part or a strategy is made of, as digests by name, without loading it.

    {"weights of model nano": "9f2c...", "strategy file second.py": "77ab...", "plan of strategy auto": "0d1e..."}

Counted are: the file that a part was named by (`mine.py:function`) with the modules beside it; the model folders and
inner parts that it states (`ttc.identity.digests`), or its `model` where it states nothing; and every parameter that is
the path of a file, or again `file.py:function`. Cost: that of the digests; a hub id is fetched where it is not here
yet.

Left out: installed plug-ins, which their version names; folders among the parameters; what only a server knows, which
a loaded engine says itself (`ttc.core.Served`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.recipes import split_model, user_file
from ttc.config.signatures import arguments_of
from ttc.identity.digests import InnerPart, ModelFolder, file_digest, model_digests, named, reads_of, source_digests


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
    """Return the digests of a strategy's own file, if it has one, and of the files among its parameters."""
    return code_digests("strategy", choice.name) | _parameter_digests(f"strategy {choice.name}", choice.params)


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
    """The parameters that may name files; the model too, where the part does not state what it makes of it."""
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
    is_file = ("/" in path or "." in path) and os.path.isfile(path)  # no bare name that a file happens to have
    return {f"{owner}: {os.path.basename(path)}": file_digest(Path(path))} if is_file else {}
