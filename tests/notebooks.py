"""Notebooks, run as a kernel runs them: cell after cell in one namespace, inside a running event loop.

    python -m tests.notebooks docs/notebooks/*.ipynb       run them, and store what they print

What a cell prints is its output, and the value of its last expression. Cost: what the cells cost. Left out: pictures,
magics.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def executed(path: Path) -> list[list[dict[str, Any]]]:
    """Run the notebook; returns the outputs of every cell, those of text empty."""
    return asyncio.run(_execute(path))


async def _execute(path: Path) -> list[list[dict[str, Any]]]:
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(cells(path)):
        source = "".join(cell["source"])
        outputs.append([] if cell["cell_type"] != "code" else await _run(source, f"{path.name}, cell {number}", names))
    return outputs


async def _run(source: str, where: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        await _evaluated(tree, where, names)
        if last is not None:
            value = await _evaluated(ast.Expression(last.value), where, names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        outputs.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}})
    return outputs


async def _evaluated(tree: ast.Module | ast.Expression, where: str, names: dict[str, Any]) -> Any:
    mode = "exec" if isinstance(tree, ast.Module) else "eval"
    value = eval(compile(tree, where, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    return await value if inspect.iscoroutine(value) else value


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def stored(path: Path, outputs: list[list[dict[str, Any]]]) -> str:
    """The notebook's file with these outputs."""
    notebook: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for cell, own in zip(notebook["cells"], outputs, strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = own
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Run the notebooks that are named, and store what they print."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(stored(path, executed(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
