"""The command `ttc`: finds sub-commands by entry point and turns errors into exit codes.

A sub-command is an entry point of group `ttc.commands`: a function `register(subparsers)` that adds its parser and sets
`run`, a function from the parsed arguments to an exit code. Only the requested command is imported; the help of the
others is the first line of their module docstrings.

Results go to stdout, everything else to stderr. Exit codes:

    0    done
    1    failed while running
    2    bad input, and nothing was started; or a failure of the user's own code
    3    finished, but some problems failed or got no verdict
    130  interrupted
    143  terminated; a command that can resume treats SIGTERM like Ctrl-C

`TTC_DEBUG=1` shows tracebacks.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib.abc import InspectLoader
from pathlib import Path
from typing import Any, NoReturn

from ttc import __version__
from ttc.cli.own import check_own, damage_text
from ttc.cli.process import leave_quietly, memory_warning, reader_is_gone, terminated_alike
from ttc.config.plugins import blamed, described, leaf
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES, plugins
from ttc.config.signatures import options_of
from ttc.config.values import nearest
from ttc.durable import FULL
from ttc.errors import (
    UNANSWERABLE,
    ConfigError,
    MissingExtra,
    PluginError,
    RecordError,
    TTCError,
    UnknownName,
    Unsupported,
    missing_extra,
)

GROUP = "ttc.commands"
HELP = "help"
"""`ttc help COMMAND` is `ttc COMMAND --help`."""
EPILOG = """\
exit codes:
  0    done
  1    failed while running
  2    bad input: nothing was started; or your own strategy, scorer, ... failed
  3    finished, but some problems failed or got no verdict
  130  interrupted
  143  terminated (SIGTERM)

Start with: ttc quickstart. What is missing here: ttc doctor. TTC_DEBUG=1 shows tracebacks."""
BAD_INPUT = (ConfigError, RecordError, *UNANSWERABLE, Unsupported, PluginError)

ORDER = (
    *("quickstart", "solve", "chat", "eval", "compare", "report", "replay", "calibrate", "verify", "steps"),
    *("train", "distill", "serve", "list", "doctor"),
)
"""The commands in the order of the help, which is that of their use; others follow."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows descriptions as written, and the longest sub-command on one line with its help."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):  # whose names are indented once more
            self._action_max_length += self._indent_increment


class _Actions(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Sub-commands whose own help begins with their line in the help above, unless they have a description."""

    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, **{"description": options.get("help"), **options})


class _Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, like every other error here, and without abbreviations.

    Sub-commands use the same kind of parser. One that was given nothing at all shows its help.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **options})
        self.register("action", "parsers", _Actions)
        self._words: list[str] = []

    def parse_known_args(  # type: ignore[override]  # of its forms, the one that argparse itself calls
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and remember the words: one that looks like an option may be why an argument is missing."""
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if not self._words and self._subparsers is not None and message.startswith(_MISSING):
            self.print_help(sys.stderr)
            self.exit(2)
        self._refuse_dashed(message)
        self.exit(2, f"{self.prog}: error: {message} (see: {self.prog} --help)\n")

    def _refuse_dashed(self, message: str) -> None:
        """Where an argument is missing, name the word that was wrongly read as an option."""
        words, self._words = self._words, []
        for before, word in zip(["", *words], words, strict=False):
            action = self._option_string_actions.get(before)
            is_value = action is not None and action.nargs != 0
            if word == "--" or not message.startswith(_MISSING):
                return
            if word[:1] != "-" or len(word) == 1 or is_value or word.partition("=")[0] in self._option_string_actions:
                continue
            if word[1] in "0123456789.(":
                self.error(
                    f"{word!r} is read as an option; put an argument that begins with a dash after --: -- '{word}'"
                )
            _refuse(word, self)


_MISSING = "the following arguments are required"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace(again=None, continues=False)
    numbers: list[int] = []  # of signals
    try:
        args = _parse(arguments)
        args.again = shlex.join(["ttc", *arguments]) if args.continues else None
        _check_folder()
        with terminated_alike(numbers) if args.continues else nullcontext():
            code = int(args.run(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as exc:
        return _end(exc, getattr(exc, "number", 0) or (numbers or [signal.SIGINT])[0], args.again)
    except Exception as exc:
        return _fail_with(exc, args.again or shlex.join(["ttc", *arguments]), may_be_elsewhere=_names_no_engine(args))


def _check_folder() -> None:
    """Refuse a current folder that was deleted: torch ends the process there, with a word on a library."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder was deleted: change to one that is there") from None


def _end(error: KeyboardInterrupt, number: int, again: str | None) -> int:
    """Report the end that a signal requested: what is kept, and how to resume.

    Only one of several processes reports it.
    """
    code = 128 + number
    if os.environ.get("RANK", "0") != "0":
        return code
    how = "the same command" if "TORCHELASTIC_RUN_ID" in os.environ else again
    parts = [text for text in (str(error), "" if again is None else f"continue with: {how}") if text]
    return _fail("; ".join(["terminated" if number == signal.SIGTERM else "interrupted", *parts]), code)


def _names_no_engine(args: argparse.Namespace) -> bool:
    """Whether a command that takes an engine was given none, so that the packaged model would run."""
    return "base_url" in args and args.base_url is None and args.engine is None


def _fail_with(error: Exception, again: str, *, may_be_elsewhere: bool) -> int:
    """Report an error; of the failures of concurrent tasks only the first.

    `again` is the command that resumes once a full disk has room; with `may_be_elsewhere`, an endpoint would do, too.
    """
    first = leaf(blamed(error))
    if isinstance(first, BrokenPipeError) and reader_is_gone():  # ttc list | head
        leave_quietly()
        return 0
    if isinstance(first, ImportError):
        first = missing_extra(first)
    match first:
        case MissingExtra(extra="local") if may_be_elsewhere:
            return _fail(f"error: {first}; or name an endpoint, which needs no more: --base-url URL", 2)
        case TTCError():
            return _fail(f"error: {first}", 2 if isinstance(first, BAD_INPUT) else 1)
        case OSError():
            hint = f"; make room, then continue with: {again}" if first.errno in FULL else ""
            return _fail(f"error: {_reason(first)}{hint}", 1)
        case RuntimeError() if "home directory" in str(first):  # pathlib's, as for a user of a container without a name
            return _fail("error: the home folder is not known: set HOME, or write paths without ~", 2)
        case MemoryError():  # which what follows would meet again
            return _fail("error: no memory is left; free some, raise the limit (ulimit -v), or use a smaller model", 1)
    damage = damage_text()
    if damage is not None:
        return _fail(f"error: {'; run: '.join(damage)}", 2)
    return _fail(f"internal error: {described(first)} (TTC_DEBUG=1 shows where)", 1)


def _fail(message: str, code: int) -> int:
    if os.environ.get("TTC_DEBUG") == "1":
        traceback.print_exc()
    print("ttc: " + " ".join(message.split()), file=sys.stderr)
    return code


def _reason(error: OSError) -> str:
    """What the system refused, and where."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="ttc",
        description="Spend compute at test time, measure exactly what it bought.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ttc {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    commands = plugins(GROUP)
    parser.set_defaults(continues=False)  # a command that resumes when it is run again
    if arguments[:1] == [HELP] and HELP not in commands:
        arguments = [*arguments[1:], "--help"]
    command = next((item for item in arguments if not item.startswith("-")), None)
    if command is not None and command not in commands:
        raise UnknownName("command", command, commands)
    if command is not None:
        warning = memory_warning()
        if warning is not None:
            print(f"ttc: {warning}", file=sys.stderr)
        if not commands[command].module.startswith("ttc."):
            check_own()
        commands[command].load()(subparsers)
        args, left = parser.parse_known_args(arguments)
        innermost = _innermost(subparsers.choices[command], arguments)
        if left:
            _refuse(left[0], innermost)
        _refuse_empty(arguments, innermost)
        return args
    places = {name: place for place, name in enumerate(ORDER)}
    for name, entry in sorted(commands.items(), key=lambda item: (places.get(item[0], len(ORDER)), item[0])):
        subparsers.add_parser(name, help=_summary(entry.module))
    return parser.parse_args(arguments)


def _summary(module: str) -> str:
    """The first line of a command's docstring, without its call; imports only the packages around it."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError as exc:
        return f"unavailable: {exc}"
    source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
    doc = ast.get_docstring(ast.parse(source or "")) or ""
    return doc.partition("\n")[0].rpartition("`: ")[2].removesuffix(".").replace("%", "%%")


def _innermost(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the innermost sub-command that the arguments name."""
    for item in arguments:
        nested = next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
        if nested is not None and item in nested.choices:
            parser = nested.choices[item]
    return parser


def _refuse_empty(arguments: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Refuse an option with an empty value, as from an unset shell variable; free text may be empty."""
    for item, after in zip(arguments, [*arguments[1:], None], strict=True):
        name, equals, value = item.partition("=")
        action = parser._option_string_actions.get(name)
        if action is None or action.nargs == 0 or action.metavar == "TEXT":
            continue
        if not (value if equals else after or "").strip():
            parser.error(f"{name} is empty: give it a value, or leave it out")


_DRAWS = "it is --n here, for a strategy that draws several (--strategy majority)"
_SHOTS = "problems are asked without worked examples: write those into the questions of a file"
_LISTENS = "a server listens on --host and --port"
_PROCESSES = "a server is one process: start several, each on a --port of its own, with a balancer in front"
_KEYS = "keys stand in [keys.NAME] of the --config file, or one in the environment (TTC_SERVE_KEY)"
_PARSES = "leave it out: thought and calls are read by the model's own template"
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("num_samples", "n_samples", "samples", "num_return_sequences"), ("--n", _DRAWS)),
    **dict.fromkeys(("num_generations", "num_completions", "best_of", "epochs", "repeats"), ("--n", _DRAWS)),
    **dict.fromkeys(("num_fewshot", "fewshot", "n_shot", "n_shots", "num_shots"), ("--task", _SHOTS)),
    **dict.fromkeys(("max_new_tokens", "max_gen_toks", "max_completion_tokens"), ("--max-tokens", "")),
    **dict.fromkeys(("thinking_budget", "reasoning_tokens", "thinking_tokens"), ("--max-thinking", "")),
    **dict.fromkeys(("tasks", "dataset", "benchmark"), ("--task", "")),
    **dict.fromkeys(("output_path", "output_dir", "log_dir", "results_dir"), ("--out", "")),
    **dict.fromkeys(("batch_size", "num_concurrent", "max_connections"), ("--concurrency", "")),
    **dict.fromkeys(("alg", "algorithm", "method"), ("--strategy", "")),
    **dict.fromkeys(("rm", "rm_name", "reward_model", "prm"), ("--scorer", "")),
    **dict.fromkeys(("backend", "provider"), ("--engine", "")),
    **dict.fromkeys(("api_base", "endpoint", "url", "model_base_url", "server_url"), ("--base-url", "")),
    "base_url": ("--upstream", ""),
    "temp": ("--temperature", ""),
    "model_args": ("--set", "each is --set engine.KEY=VALUE here"),
    "gen_kwargs": ("--temperature", "they are options here: --temperature, --top-p, --top-k, --max-tokens"),
    "apply_chat_template": ("--model", "leave it out: the model's chat template is always applied"),
    "log_samples": ("--out", "leave it out: --out DIR keeps every answer"),
    **dict.fromkeys(("uds", "unix_socket", "socket", "fd"), ("--port", f"{_LISTENS}, for a unix socket use a proxy")),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"), ("--port", f"{_LISTENS}, for TLS use a proxy")),
    **dict.fromkeys(("workers", "api_server_count"), ("--port", _PROCESSES)),
    **dict.fromkeys(("api_key", "api_keys", "master_key"), ("--config", _KEYS)),
    **dict.fromkeys(("served_model_name", "alias", "model_name"), ("--name", "")),
    **dict.fromkeys(("allowed_origins", "cors"), ("--port", "it is --set http.cors_origins=URL here")),
    **dict.fromkeys(("max_model_len", "ctx_size", "n_ctx"), ("--set", "it is --set engine.max_context=N here")),
    **dict.fromkeys(("reasoning_parser", "tool_call_parser", "enable_auto_tool_choice"), ("--port", _PARSES)),
    "timeout_graceful_shutdown": ("--port", "it is --set limits.drain_s=SECONDS here"),
    "max_num_seqs": ("--port", "it is --set limits.max_sequences=N here"),
}
"""What lm-evaluation-harness, Inspect, vLLM and others call it, the option here, and words where it is not that."""


def _refuse(argument: str, parser: argparse.ArgumentParser) -> NoReturn:
    """Report an argument that no option and no position takes."""
    if not argument.startswith("-"):
        path = Path(argument).expanduser()
        is_strategy = argument.partition(":")[0] in STRATEGIES.names()
        option = "--strategy" if is_strategy else "--task" if path.is_file() else "--model" if path.is_dir() else ""
        hint = f"; did you mean {option} {argument}?" if option in parser._option_string_actions else ""
        parser.error(f"argument {argument!r} is one too many{hint}")
    name = argument.partition("=")[0]
    options = list(parser._option_string_actions)
    plain = name.lstrip("-").replace("-", "_").lower()
    option, words = ELSEWHERE.get(plain, ("", ""))
    if option in options:
        parser.error(f"no option {name}; {words or f'it is {option} here'}")
    setting = _setting(plain, options) if "--set" in options else None
    hint = nearest(name, options) if setting is None else f"; it is set by --set {setting}=VALUE"
    parser.error(f"no option {name}{hint}")


def _setting(name: str, options: Sequence[str]) -> str | None:
    """The --set spelling of an option, if an engine or a scorer that the command takes has such a parameter."""
    for registry in (ENGINES, SCORERS):
        takes_it = {"--engine", f"--{registry.kind}"} <= {*options}
        for part in registry.names() if takes_it else ():
            with suppress(TTCError, ImportError):  # one that is not installed has no known parameters
                if name in options_of(registry.load(part)):
                    return f"{registry.kind}.{name}"
    return None
