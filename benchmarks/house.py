"""Measures of the source code: how much a reader of an entry point has to open, and the names that are used.

    python -m benchmarks.house [--root DIR] [--executed] [--save FILE]

`--root` is a checkout; `--executed` also runs `ttc eval --strategy tree --limit 2` of that checkout
under a tracer and counts the files and lines that ran. There are no timings. `tests/test_house.py` enforces limits on
the measures of this checkout. Left out: complexity, which linters measure.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = ("ttc", "evals", "train", "distill", "serve")
ENTRIES = {
    "tree": "ttc/strategies/tree.py",
    "grpo": "train/stages/grpo.py",
    "distillation job": "distill/job/job.py",
    "endpoint": "serve/http/app.py",
}
"""Entry points for a reader."""
PARTICIPLES = {
    *("found", "told", "made", "given", "known", "asked", "wanted", "kept", "drawn", "shown", "said", "taken"),
    *("written", "seen", "held", "done", "gone", "came", "used", "picked", "chosen", "laid", "bound", "stated"),
    *("spent", "grown", "cut", "sent", "stored", "joined", "sampled", "measured", "judged"),
}
"""Bare participles: names for what happened to a value and not for what it is."""
DOOR = "ttc/__init__.py"
Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Module:
    """One product file: its path and its parsed content."""

    path: str
    lines: int
    tree: ast.Module

    @functools.cached_property
    def imported(self) -> frozenset[str]:
        """Every name that it may import."""
        return frozenset(name for node in ast.walk(self.tree) for name in _imported(node))

    @property
    def name(self) -> str:
        """The module's dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def folder(self) -> str:
        """The folder of its idea; a file that lies flat in a package's root stands for itself."""
        folder = self.path.rpartition("/")[0]
        return self.path if folder in PACKAGES and not self.path.endswith("__init__.py") else folder


@functools.cache
def modules(root: Path) -> tuple[Module, ...]:
    """Every Python file of the five packages, read once."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return tuple(
        Module(path.relative_to(root).as_posix(), text.count("\n"), ast.parse(text))
        for path, text in zip(paths, texts, strict=True)
    )


def imports(house: Iterable[Module]) -> Graph:
    """File -> files that it imports, lazy and type-checking imports included.

    The door, `ttc/__init__`, hands names on and imports none of them: who reads its version opens nothing more.
    """
    house = list(house)
    paths = {module.name: module.path for module in house}
    graph: Graph = {}
    for module in house:
        graph[module.path] = {paths[name] for name in module.imported if name in paths} - {module.path}
    graph[DOOR] = set()
    return graph


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def closure(graph: Graph, entry: str) -> set[str]:
    """The files that `entry` imports, directly or not, itself included."""
    reached, waiting = {entry}, [entry]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def between_folders(house: Iterable[Module]) -> Graph:
    """Folder -> folders that its files import. A package's own `__init__` hands names on and counts for neither."""
    house = list(house)
    folders = {module.path: module.folder for module in house}
    graph: Graph = collections.defaultdict(set)
    for path, targets in imports(house).items():
        graph[folders[path]] |= {folders[target] for target in targets} - {folders[path], *PACKAGES}
    return {folder: targets for folder, targets in graph.items() if folder not in PACKAGES}


def rings(graph: Graph) -> list[list[str]]:
    """Groups of folders each of which reaches the others."""
    full = {**{target: set() for targets in graph.values() for target in targets}, **graph}
    reach = {folder: closure(full, folder) for folder in full}
    groups = {tuple(sorted(o for o in reach[folder] if folder in reach[o])) for folder in full}
    return sorted(list(group) for group in groups if len(group) > 1)


def shared_class_names(house: Iterable[Module]) -> dict[str, list[str]]:
    """Public class names that more than one file defines, with those files."""
    places: dict[str, list[str]] = collections.defaultdict(list)
    for module in house:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def local_names(house: Iterable[Module]) -> collections.Counter[str]:
    """How often each name is bound inside a function."""
    counts: collections.Counter[str] = collections.Counter()
    for module in house:
        for function in ast.walk(module.tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
                counts.update({node.id for node in names if isinstance(node.ctx, ast.Store)})
    return counts


def participles(counts: Mapping[str, int]) -> float:
    """Share of local names, by how often each is bound, that are bare participles."""
    return sum(counts[word] for word in PARTICIPLES) / sum(counts.values())


def flat_modules(house: Iterable[Module]) -> list[str]:
    """Files that lie in a package's root."""
    return [m.path for m in house if m.path.count("/") == 1 and not m.path.endswith("__init__.py")]


def measure(root: Path) -> dict[str, object]:
    """Every measure that needs no run."""
    house = modules(root)
    graph = imports(house)
    functions = [
        node.end_lineno - node.lineno + 1
        for module in house
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    return {
        "files": len(house),
        "lines": sum(module.lines for module in house),
        "lines of a file": asdict(Spread.of([module.lines for module in house])),
        "lines of a function": asdict(Spread.of(functions)),
        **{f"files that {name} opens": len(closure(graph, path)) for name, path in ENTRIES.items()},
        "rings between folders": rings(between_folders(house)),
        "flat modules": len(flat_modules(house)),
        "public classes that share a name": sum(map(len, shared_class_names(house).values())),
        "bare participles": round(participles(local_names(house)), 4),
    }


@dataclass(frozen=True)
class Spread:
    """Median, 90th percentile and maximum."""

    median: float
    p90: int
    most: int

    @classmethod
    def of(cls, values: list[int]) -> Spread:
        """Of at least one value."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[int(0.9 * (len(ordered) - 1))], ordered[-1])


TRACER = """
import collections, functools, json, os, runpy, sys, threading
# Others' code, which is slow to trace and not counted.
import matplotlib.figure, matplotlib.backends.backend_agg, matplotlib.backends.backend_pdf
import numba, torch, transformers.tokenization_utils_tokenizers
root, packages, out = os.getcwd() + os.sep, tuple(p + os.sep for p in sys.argv[1].split(",")), sys.argv[2]
lines = collections.defaultdict(set)
@functools.cache
def unseen(code):
    path, rows = code.co_filename, {line for _, _, line in code.co_lines() if line}
    own = path.startswith(root) and path[len(root):].startswith(packages) and code.co_name != "<module>"
    return rows if own else set()
def trace(frame, event, arg):
    rows = unseen(frame.f_code)
    if not rows:
        return None
    lines[frame.f_code.co_filename].add(frame.f_lineno)
    rows.discard(frame.f_lineno)
    return trace
threading.settrace(trace)
sys.settrace(trace)
sys.argv = ["ttc", *sys.argv[3:]]
try:
    runpy.run_module("ttc", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.settrace(None)
    json.dump({path[len(root):]: len(rows) for path, rows in lines.items()}, open(out, "w"))
"""


def executed(root: Path) -> dict[str, int]:
    """File -> lines inside functions that `ttc eval --strategy tree --limit 2` runs, in its process and threads."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.json"
        command = ["eval", "--strategy", "tree", "--limit", "2", "--out", str(Path(folder) / "run")]
        subprocess.run(
            [sys.executable, "-c", TRACER, ",".join(PACKAGES), str(out), *command],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        counts: dict[str, int] = json.loads(out.read_text(encoding="utf-8"))
    return counts


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(), help="a checkout")
    parser.add_argument("--executed", action="store_true", help="also run the evaluation under a tracer")
    parser.add_argument("--save", type=Path, help="where the measures go")
    args = parser.parse_args()
    root = args.root.resolve()
    revision = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True, check=True).stdout.strip()
    numbers: dict[str, object] = {"commit": commit, **measure(root)}
    if args.executed:
        counts = executed(root)
        numbers["executed by ttc eval --strategy tree"] = {"files": len(counts), "lines": sum(counts.values())}
    for name, value in numbers.items():
        print(f"{name:40} {json.dumps(value)}")
    if args.save:
        args.save.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
