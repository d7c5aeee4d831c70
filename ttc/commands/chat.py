"""`ttc chat`: talk to a model; tokens appear as they are sampled, thinking dimmed and apart from the answer."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ttc.cli.options import add_options, option, read_options
from ttc.cli.parts import (
    EngineOptions,
    SamplingOptions,
    ThinkingOptions,
    check_parts,
    resolve_engine,
    resolve_sampling,
    resolve_thinking,
    settings,
)
from ttc.commands._stream import Display, Streamed
from ttc.config.plugins import leaf
from ttc.config.values import nearest
from ttc.core import Engine, Message, Problem, Sampling
from ttc.errors import TTCError
from ttc.session.solve import fit_to_context, solve
from ttc.session.thinking import Thinking
from ttc.strategies.direct import direct

HELP = """\
/think      think before answering
/no_think   answer at once
/reset      forget the conversation
/quit       leave (also Ctrl-D); Ctrl-C stops an answer"""


@dataclass(frozen=True, kw_only=True)
class ChatOptions(SamplingOptions, ThinkingOptions, EngineOptions):
    """The options of `ttc chat`."""

    system: str | None = option(None, "system message", metavar="TEXT")
    settings: Mapping[str, object] = settings("engine.KEY, thinking.KEY")


def register(subparsers: Any) -> None:
    """Add `ttc chat`."""
    parser = subparsers.add_parser("chat", help="talk to a model", description=__doc__)
    add_options(parser, ChatOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read turns from stdin until it ends."""
    options = read_options(ChatOptions, args)
    check_parts(options.settings, ("engine", "thinking"))
    thinking, sampling = resolve_thinking(options, options.settings), resolve_sampling(options, Sampling())
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    choice = resolve_engine(options, options.settings)
    # One event loop for all turns: the engine lives in it, and Ctrl-C cancels only the turn that runs.
    with asyncio.Runner() as runner:
        engine = choice.create_engine()
        chat = Chat(engine, thinking, sampling, seed, options.system, fit=options.max_tokens is None)
        _say(f"{choice.label}, seed {seed}; /help shows the commands")
        try:
            while (line := _read()) is not None:
                if line.startswith("/"):
                    if not chat.command(line):
                        break
                elif line:
                    _turn(runner, chat, line)
        finally:
            runner.run(engine.close())
    return 0


class Chat:
    """The conversation so far and how the next turn is sampled."""

    def __init__(
        self, engine: Engine, thinking: Thinking, sampling: Sampling, seed: int, system: str | None, *, fit: bool
    ) -> None:
        """Start with nothing but the system message; `fit` lowers max_tokens to the room left in the context."""
        self._engine, self._sampling, self._seed, self._fit = engine, sampling, seed, fit
        self._thinking = thinking
        self._opening = () if system is None else (Message("system", system),)
        self._messages: tuple[Message, ...] = self._opening

    async def turn(self, text: str) -> None:
        """Answer one message; it is remembered only when the answer is complete."""
        messages = (*self._messages, Message("user", text))
        problem = Problem(f"turn{len(messages)}", messages, "exact")
        sampling = self._sampling
        if self._fit:
            sampling = fit_to_context(sampling, self._engine, problem, self._thinking)
        display = Display(self._engine, _write_thinking, _write_answer)
        answer = await solve(
            problem,
            engine=Streamed(self._engine, display),
            strategy=direct,
            seed=self._seed,
            sampling=sampling,
            thinking=self._thinking,
        )
        display.finish(answer)
        usage = answer.usage
        ending = "" if answer.finish_reason == "stop" else "; cut by --max-tokens"
        _say(f"{usage.generated} tokens, {usage.thinking} of them thinking, {answer.seconds:.1f} s{ending}")
        self._messages = (*messages, Message("assistant", answer.text.strip()))

    def command(self, line: str) -> bool:
        """Obey a command; False to leave."""
        name = line.split()[0]
        if name == "/quit":
            return False
        if name not in _COMMANDS:
            _say(f"no command {name}{nearest(name, list(_COMMANDS))}\n{HELP}")
        else:
            _COMMANDS[name](self)
        return True

    def think(self) -> None:
        """Think before answering, from the next turn on."""
        self._thinking = replace(self._thinking, mode="on")

    def no_think(self) -> None:
        """Answer at once, from the next turn on; bounds on thinking are dropped with it."""
        self._thinking = Thinking(mode="off")

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages = self._opening


_COMMANDS: dict[str, Callable[[Chat], None]] = {
    "/think": Chat.think,
    "/no_think": Chat.no_think,
    "/reset": Chat.reset,
    "/help": lambda chat: _say(HELP),
    "/quit": lambda chat: None,
}


def _turn(runner: asyncio.Runner, chat: Chat, line: str) -> None:
    try:
        runner.run(chat.turn(line))
    except* KeyboardInterrupt:
        _say("\nstopped; this turn is forgotten")
    except* TTCError as failures:
        _say(f"error: {leaf(failures)}")


def _read() -> str | None:
    """Return the next line, or None at the end of the input."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else None


def _say(text: str) -> None:
    print(_dim(text), file=sys.stderr, flush=True)


def _write_thinking(text: str) -> None:
    print(_dim(text), end="", file=sys.stderr, flush=True)


def _write_answer(text: str) -> None:
    print(text, end="", flush=True)


def _dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else text
