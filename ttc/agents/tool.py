"""A tool: something outside the model that takes a text and returns a text.

    class Tool:
        name: str                 what the model calls it
        about: str                one line for the model
        def start(problem) -> Use        one per episode, so that a tool may have a state (a game, a shell)
        has_own_limit: bool = False      optional: it limits its own time, in which waiting for its turn does not count
    Use = async (argument: str) -> str; a plain function works, but no time limit can end it

A tool is one file of `ttc/tools/`, with a function of its name that makes it, or an entry point of `ttc.tools`. Its
errors are reported to the model and never end the run. A tool sees the problem, never its target.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ttc.config.plugins import PluginShape
from ttc.config.recipes import parse_spec
from ttc.config.registry import Registry
from ttc.core import Problem
from ttc.errors import ConfigError

TOOLS = Registry("tool", "ttc.tools", "ttc.tools", PluginShape(("ttc.agents.tool:Tool",)))

Use: TypeAlias = Callable[[str], Awaitable[str]]
"""One episode's access to a tool: argument in, result out; raises ToolFailure with what the model should read."""


class ToolFailure(Exception):
    """The call was wrong or failed; the message is for the model."""


class Tool(Protocol):
    """What the model can call."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def about(self) -> str:
        """One line for the model: parameters and result."""
        ...

    def start(self, problem: Problem) -> Use:
        """Return the tool for one episode on `problem`."""
        ...


def seconds_of(tool: Tool, tool_s: float) -> float | None:
    """The limit of one call from outside; None for a tool that limits its own time."""
    return None if getattr(tool, "has_own_limit", False) else tool_s


@dataclass(frozen=True, slots=True)
class Kit:
    """The tools of a run as they were requested, `calculator` or `search:folder=notes`; calling it makes them.

    Equal kits compare equal, so `Session.shared` makes each only once per run.
    """

    specs: tuple[str, ...]

    def __call__(self) -> Mapping[str, Tool]:
        """Make the tools, by name; raises ConfigError for none, an unknown one, or two of one name."""
        tools: list[Tool] = [TOOLS.create(name, params, supply={}) for name, params in map(parse_spec, self.specs)]
        if not tools:
            raise ConfigError(f"tools: name at least one of {', '.join(TOOLS.names())}")
        by_name = {tool.name: tool for tool in tools}
        if len(by_name) < len(tools):
            raise ConfigError(f"tools: two tools have one name among {', '.join(tool.name for tool in tools)}")
        return by_name
