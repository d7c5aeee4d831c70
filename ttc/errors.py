"""The error tree of the toolkit.

TTCError
 ├─ ConfigError (ValueError)        a name, parameter, file or value the user gave; raised before work starts
 │   ├─ UnknownName                 no such strategy, engine, task, scorer, ...: carries the nearest name
 │   ├─ MissingExtra (ImportError)  an optional package is absent: carries the install command
 │   ├─ OtherSystem (ImportError)   this system lacks a module of Python's that Linux and macOS have
 │   ├─ HiddenPackage (ImportError) another package or file hides one of ours of the same name
 │   └─ ServerRefused               a server of the configuration refuses our key, or lacks what it should have
 ├─ EngineError (RuntimeError)      an engine failed or died: carries the seconds that its server asks to wait
 │   ├─ EngineTimeout (TimeoutError)
 │   ├─ EngineBusy                  it accepts no more requests for now
 │   ├─ PromptTooLong (ValueError)  prompt and budget do not fit the model's context
 │   ├─ PromptRefused               a server's content filter rejects this prompt; a retry would not help
 │   └─ Unsupported                 the engine cannot honour the request (token ids, exact caps, ...)
 ├─ ScorerError (RuntimeError)      a scorer failed; a missing score is not an error but `Score.value is None`
 ├─ VerifierError (RuntimeError)    the verifier itself failed (its verdicts are never exceptions)
 ├─ TrainingError (RuntimeError)    training cannot go on: lost parity, a health rule's stop, a broken checkpoint
 ├─ RecordError (ValueError)        a record or task file is broken: names file, line and field
 ├─ PluginError (RuntimeError)      code of the user's own raised, or returned what it must not: names file and line
 └─ BudgetExceeded                  a budget is spent; `Session.attempt` turns it into the best answer so far

Foreign exceptions are translated once, in the file that talks to the foreign package, with `from exc`.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import pathlib
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

DISTRIBUTION = "ttckit"
EXTRA_OF: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "jinja2"), "local"),
        "datasets": "data",
        "matplotlib": "plots",
        "pandas": "frames",
    }
)
"""The extra that brings a package which the light core does without."""
WITH_TORCH = ("all", "dev", "local", "test", "train", "vllm-cpu")
"""Extras that install torch."""
CPU_INDEX = " --extra-index-url https://download.pytorch.org/whl/cpu"
"""Where pip finds torch's CPU build for Linux: PyPI has the one of several GB for GPUs."""
UV_CPU_BUILD = " --torch-backend cpu"
"""The same for uv, which would take all that it finds at another index from there alone."""
_OF_UNIX = ("fcntl", "pwd", "resource")
"""Modules of Python that Windows has not."""


class TTCError(Exception):
    """Base of every error this toolkit raises on purpose."""


class ConfigError(TTCError, ValueError):
    """A name, parameter, file or value given by the user cannot be used; the message names it and the fix."""


class UnknownName(ConfigError):
    """No such name; the message lists the nearest and all known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(names) or 'none'})")
        self.kind, self.name, self.nearest = kind, name, near[0] if near else None

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the finished message, so that the error survives a process boundary."""
        return (_rebuild_unknown_name, (self.kind, self.name, self.nearest, str(self)))


def _rebuild_unknown_name(kind: str, name: str, nearest: str | None, text: str) -> UnknownName:
    error = UnknownName(kind, name, ())
    error.nearest, error.args = nearest, (text,)
    return error


class MissingExtra(ConfigError, ImportError):
    """An optional package is not installed; the message is the exact install command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: {install_command(extra)}")
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the two names."""
        return (MissingExtra, (self.package, self.extra))


class OtherSystem(ConfigError, ImportError):
    """This toolkit does not run on this system; says where it does."""


def missing_extra(error: ImportError) -> ImportError:
    """Return the error that names the extra with the missing package, or the systems to use, or `error` itself."""
    package = (error.name or "").partition(".")[0]
    if package in _OF_UNIX and isinstance(error, ModuleNotFoundError):
        return OtherSystem(f"ttc needs Linux or macOS: this Python has no {package}; on Windows, run it in WSL 2")
    if isinstance(error, MissingExtra) or not isinstance(error, ModuleNotFoundError) or package not in EXTRA_OF:
        return error
    return MissingExtra(package.replace("_", "-"), EXTRA_OF[package])


def install_command(extra: str, *, for_gpu: bool | None = None) -> str:
    """Return the command that installs an extra of this distribution from where it came: checkout, wheel or index.

    Several extras are separated by commas. On Linux without a GPU it takes torch's CPU build. Without `for_gpu`, a GPU
    is one with NVIDIA's driver.
    """
    source = _origin()
    address = urlsplit(source.get("url", ""))
    if for_gpu is None:
        for_gpu = has_gpu()
    program = pip("install")
    build = UV_CPU_BUILD if program.startswith("uv ") else CPU_INDEX
    has_torch = not set(extra.split(",")).isdisjoint(WITH_TORCH)
    build = build if has_torch and sys.platform == "linux" and not for_gpu else ""
    if address.scheme == "file":
        flag = "-e " if source.get("dir_info", {}).get("editable") else ""
        return f"{program} {flag}{shlex.quote(f'{_path(address)}[{extra}]')}{build}"
    return f"{program} '{DISTRIBUTION}[{extra}]{' @ ' + source['url'] if address.scheme else ''}'{build}"


def has_gpu() -> bool:
    """Whether this machine has NVIDIA's driver."""
    return shutil.which("nvidia-smi") is not None or pathlib.Path("/proc/driver/nvidia").is_dir()


def install_again() -> str:
    """Return the command that restores every file of this distribution from its source, and touches no other."""
    source = _origin()
    address = urlsplit(source.get("url", ""))
    place = shlex.quote(_path(address)) if address.scheme == "file" else DISTRIBUTION
    if address.scheme not in ("", "file"):
        place = shlex.quote(f"{DISTRIBUTION} @ {source['url']}")
    return f"{pip('install')} --force-reinstall --no-deps {place}"


def _path(address: SplitResult) -> str:
    """The path of a file's address."""
    from urllib.request import url2pathname  # brings HTTP, TLS and mail, which no start should wait for

    return url2pathname(unquote(address.path))


def pip(verb: str) -> str:
    """Return `pip VERB` for this Python: another one's pip may come first on PATH, and uv's environments have none."""
    first, python = shutil.which("pip"), pathlib.Path(sys.executable)
    if first is not None and pathlib.Path(first).parent == python.parent:
        return f"pip {verb}"
    name = shlex.quote(str(python))
    # Setuptools' import hook takes a search for pip as a sign that pip runs, after which vLLM cannot be imported.
    has_pip = PathFinder.find_spec("pip") is not None
    return f"{name} -m pip {verb}" if has_pip else f"uv pip {verb} --python {name}"


def _origin() -> Mapping[str, Any]:
    """Where this distribution was installed from, as pip records it (PEP 610); empty if it came from an index."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        checkout = pathlib.Path(__file__).parents[1]
        is_here = (checkout / "pyproject.toml").is_file()
        return {"url": checkout.as_uri(), "dir_info": {"editable": True}} if is_here else {}
    source: Mapping[str, Any] = json.loads(text) if text else {}
    return source


class ServerRefused(ConfigError):
    """A configured server refuses our key, or lacks the route or model."""


class HiddenPackage(ConfigError, ImportError):
    """One of our packages cannot be imported, since something else has its name; carries the command that helps."""


class EngineError(TTCError, RuntimeError):
    """An engine failed; work that was not finished can be resumed.

    `retry_after_s` is how many seconds the server asks to wait, if it says so.
    """

    retry_after_s: float | None = None


class EngineTimeout(EngineError, TimeoutError):
    """An engine did not answer in time."""


class EngineBusy(EngineError):
    """An engine takes nothing more for now."""


class PromptTooLong(EngineError, ValueError):
    """Prompt tokens plus requested tokens exceed the model's context."""


class PromptRefused(EngineError):
    """A server's filter refuses this prompt, and always will; other prompts are answered."""


UNANSWERABLE = (PromptTooLong, PromptRefused)
"""What a prompt brings about itself: others are answered, and to ask again changes nothing."""


def is_unanswerable(error: str) -> bool:
    """Whether an error is one of these, as records keep it: its kind, a colon and its message."""
    return error.partition(":")[0] in {kind.__name__ for kind in UNANSWERABLE}


class Unsupported(EngineError):
    """The engine cannot honour this request; refused before it starts."""


class ScorerError(TTCError, RuntimeError):
    """A scorer failed; distinct from a score without a verdict."""


class VerifierError(TTCError, RuntimeError):
    """The verifier itself is broken (for example: no worker can be started)."""


class TrainingError(TTCError, RuntimeError):
    """Training cannot go on; what is saved can be resumed or inspected."""


class RecordError(TTCError, ValueError):
    """A record or task file is broken; the message names file, line and field."""


class PluginError(TTCError, RuntimeError):
    """A plug-in of the user's own (a strategy, a scorer, a loss, ...) raised, or returned what it must not.

    See `ttc.config.plugins`: an exception of this toolkit's own code is never one.
    """


class BudgetExceeded(TTCError):
    """The session's budget is spent."""
