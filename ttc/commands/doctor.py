"""`ttc doctor`: what is installed, what works here, what to type next.

Quick checks run for real (the packaged model answers, the packaged reward model scores), and no check can raise: one
that fails says why and what to do. Engines of other packages (vLLM, SGLang) are imported in a process of their own;
`--try` has them, and Ray, load the packaged model, too. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ttc.commands._doctor.installation import Check, data, devices, extras, machine, packages, reinstall
from ttc.commands._doctor.parts import engines, failed_import, sandbox, scorers
from ttc.config.choices import DEFAULT_ENGINE
from ttc.config.recipes import dump

NEXT_COMMAND = "ttc eval --strategy tree"
MARKS = {"ok": "+", "ready": "o", "missing": "-", "broken": "!"}
LEGEND = "+ tried   o there, needs something of yours   - not installed   ! broken"
GROUPS: tuple[tuple[str, Callable[[bool], list[Check]]], ...] = (
    ("machine", lambda try_all: machine()),
    ("packages", lambda try_all: packages()),
    ("devices", lambda try_all: devices()),
    ("engines", engines),
    ("scorers", lambda try_all: scorers()),
    ("sandbox", lambda try_all: sandbox()),
    ("extras", lambda try_all: extras()),
    ("data", lambda try_all: data()),
)


def register(subparsers: Any) -> None:
    """Add `ttc doctor`."""
    parser = subparsers.add_parser("doctor", description=__doc__)
    parser.add_argument("--try", dest="try_all", action="store_true", help="start vLLM, SGLang and Ray, too (minutes)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every check; 0 when the default engine works, else 1."""
    checks = [check for group, function in GROUPS for check in _guarded(group, function, args.try_all)]
    default = next((check for check in checks if (check.group, check.name) == ("engines", DEFAULT_ENGINE)), None)
    works = default is not None and default.state == "ok"
    following = NEXT_COMMAND if works else (default and default.command) or reinstall()
    if args.json:
        print(json.dumps({"checks": dump(checks), "next": following, "ok": works}))
    else:
        print("\n".join(_lines(checks)))
        print(f"\n{LEGEND}\nnext: {following}")
    return 0 if works else 1


def _guarded(group: str, function: Callable[[bool], list[Check]], try_all: bool) -> list[Check]:
    """Run one group of checks; whatever goes wrong inside becomes a line of the report."""
    try:
        return function(try_all)
    except ImportError as exc:
        return [Check(group, group, *failed_import(exc))]
    except Exception as exc:
        return [Check(group, group, "broken", f"{type(exc).__name__}: {exc}")]


def _lines(checks: list[Check]) -> list[str]:
    lines: list[str] = []
    for group, _ in GROUPS:
        lines.append(group)
        for check in (item for item in checks if item.group == group):
            lines.append(f"  {MARKS[check.state]} {check.name:<16} {check.detail}")
            if check.command is not None:
                lines.append(f"      {check.command}")
    return lines
