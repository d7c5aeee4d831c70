"""`ttc chat`: talk to a model.

    ttc chat --model Qwen/Qwen3-0.6B                    a folder or a hub id, in this process
    ttc chat --base-url http://127.0.0.1:8000/v1        a server

Tokens appear as they are sampled, thinking dimmed and apart from the answer.
"""

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
    TOY,
    EngineOptions,
    SamplingOptions,
    ThinkingOptions,
    as_recommended,
    by_part,
    resolve_engine,
    resolve_sampling,
    resolve_thinking,
    settings,
)
from ttc.cli.process import typed_in
from ttc.config.plugins import leaf
from ttc.config.values import counted, nearest
from ttc.core import Answer, Completion, Engine, Message, Problem, Prompt, Sampling, UsageSink
from ttc.engines.shared.wrapped import Wrapped, draw_shown, with_markers
from ttc.errors import TTCError
from ttc.session.solve import fit_to_context, solve
from ttc.session.thinking import Thinking, split
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
    parser = subparsers.add_parser("chat", description=__doc__)
    add_options(parser, ChatOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read turns from stdin until it ends."""
    options = read_options(ChatOptions, args)
    by_part(options.settings, ("engine", "thinking"))
    thinking, sampling = resolve_thinking(options, options.settings), resolve_sampling(options, Sampling())
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    choice = resolve_engine(options, options.settings)
    # One event loop for all turns: the engine lives in it, and Ctrl-C cancels only the turn that runs.
    with asyncio.Runner() as runner:
        engine = with_markers(choice.create_engine(), thinking)
        sampling = as_recommended(sampling, options, engine.capabilities)
        chat = Chat(engine, thinking, sampling, seed, options.system, fit=options.max_tokens is None)
        _say(f"{choice.label}, seed {seed}; /help shows the commands")
        if options.is_packaged:
            _say(TOY)
        try:
            _converse(runner, chat)
        finally:
            runner.run(engine.close())
    return 0


def _converse(runner: asyncio.Runner, chat: Chat) -> None:
    """Answer lines of standard input, until it ends or a command leaves."""
    while (line := _read()) is not None:
        if line.startswith("/"):
            if not chat.command(line):
                return
        elif line:
            _turn(runner, chat, line)


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
        _say(f"{counted(usage.generated, 'token')}, {usage.thinking} of them thinking, {answer.seconds:.1f} s{ending}")
        self._messages = (*messages, Message("assistant", answer.text.strip()))

    def command(self, line: str) -> bool:
        """Run a command; returns False to leave."""
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
    line = typed_in(sys.stdin.readline)
    return line.strip() if line else None


def _say(text: str) -> None:
    print(_dim(text), file=sys.stderr, flush=True)


def _write_thinking(text: str) -> None:
    print(_dim(text), end="", file=sys.stderr, flush=True)


def _write_answer(text: str) -> None:
    print(text, end="", flush=True)


def _dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else text


HELD_BACK = 1
"""Tokens not shown yet: the thinking control may drop the last token of a segment."""


class Display:
    """Writes thinking and answer text of one draw, each character once."""

    def __init__(self, engine: Engine, thinking: Callable[[str], None], answer: Callable[[str], None]) -> None:
        """`thinking` and `answer` are given the new text of each part."""
        self._engine = engine
        self._write_thinking, self._write_answer = thinking, answer
        self._ids: list[int] = []
        self._starts_inside = False
        self._thinking_shown = self._answer_shown = 0

    def sync(self, prompt: Prompt) -> None:
        """Take over everything in `prompt` after its rendered part: it is final, injected text included."""
        self._starts_inside = prompt.think_state == "open"
        self._ids = list(prompt.generated_ids)
        self._show(len(self._ids))

    def add(self, ids: tuple[int, ...]) -> None:
        """Take new sampled ids and show all but the last."""
        self._ids += ids
        self._show(len(self._ids) - HELD_BACK)

    def finish(self, answer: Answer) -> None:
        """Show what is left of the finished answer."""
        self._thinking_shown = self._flush(answer.thinking, self._thinking_shown, self._write_thinking)
        self._answer_shown = self._flush(answer.text.lstrip(), self._answer_shown, self._write_answer)
        self._write_answer("\n")

    def _show(self, length: int) -> None:
        parts = split(self._ids[: max(length, 0)], self._starts_inside, self._engine.capabilities)
        thinking = self._engine.decode(parts.thinking)
        answer = self._engine.decode(parts.answer).lstrip()
        self._thinking_shown = self._flush(_whole(thinking), self._thinking_shown, self._write_thinking)
        if answer and not self._answer_shown and self._thinking_shown:
            self._write_thinking("\n")
        self._answer_shown = self._flush(_whole(answer), self._answer_shown, self._write_answer)

    @staticmethod
    def _flush(text: str, num_shown: int, write: Callable[[str], None]) -> int:
        if len(text) > num_shown:
            write(text[num_shown:])
        return max(len(text), num_shown)


def _whole(text: str) -> str:
    """Leave out a character whose bytes are not all there yet."""
    return text.rstrip("\ufffd")


class Streamed(Wrapped):
    """`engine`, with every draw shown on `display`; for one draw at a time.

    The strategy and the thinking control run unchanged on top of it, so a streamed answer is the same answer. Injected
    text (a hand-over) is shown when it becomes part of the prompt. An engine that cannot stream shows each segment when
    it is complete.
    """

    def __init__(self, engine: Engine, display: Display) -> None:
        """Wrap `engine`; closing it stays with its owner."""
        super().__init__(engine)
        self._display = display

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Generate draw by draw, showing tokens as they come."""
        return [await draw_shown(self._engine, prompt, sampling, draw, on_usage, self._display) for draw in draws]
