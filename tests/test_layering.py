"""The import direction between packages and between their folders, and that importing is cheap."""

from __future__ import annotations

import ast
import pathlib
import resource
import subprocess
import sys

import pytest

from benchmarks import house

ROOT = pathlib.Path(__file__).parents[1]
ALLOWED = {
    "ttc": set(),
    "evals": {"ttc"},
    "train": {"ttc", "evals"},
    "distill": {"ttc", "evals", "train"},
    "serve": {"ttc"},
}
LAYERS = {
    "ttc": [
        "errors.py concurrent.py durable.py seeds.py",
        "core.py answers nano",
        "records.py toolformats choosing config verifiers/maths",
        "session identity sandbox allocation scorers/adapters engines verifiers/shared verifiers/workers",
        "search agents replay.py engines/shared engines/embedded/kernels verifiers/instructions "
        "verifiers/procedural verifiers/programs verifiers/service",
        "engines/embedded/device engines/embedded/core",
        "engines/embedded/gpu engines/openai",
        "search/policies tools engines/embedded engines/vllm engines/sglang engines/ray_workers cli",
        "scorers/reward_models commands/_doctor __main__.py",
        "scorers",
        "strategies verifiers",
        "commands",
    ],
    "evals": [
        "task.py numbers",
        "data run_folder.py",
        "loop.py",
        "tasks allocation",
        "experiment.py",
        "report",
        "commands/_quickstart evaluation.py",
        "door.py",
        "commands",
    ],
    "train": [
        "base",
        "registries.py update nano",
        "advantages losses rollouts",
        "measure examples environments shaping",
        "preferences corpora reward_models offline recipe",
        "rl promote report gpu.py",
        "stages replay",
        "commands",
    ],
    "distill": [
        "spec supervision",
        "data generation stages",
        "filters measure preflight",
        "select methods plan",
        "job report",
        "commands",
    ],
    "serve": ["requests", "operator", "running", "dialects", "http", "commands"],
}
"""Folders of a package (flat files stand for themselves), lowest first: a folder imports from rows above its own.

Lazy imports and those for type checking count too. A package's own `__init__` hands names on and stands outside.
"""
OPTIONAL = {"vllm", "sglang", "trl", "fastapi", "uvicorn", "ray"}
MAX_FILES_PER_OPTIONAL = 2


def _imports(tree: ast.AST) -> set[str]:
    """Top-level packages that are imported anywhere in the tree, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def _modules(package: str) -> list[house.Module]:
    return [module for module in house.modules(ROOT) if module.path.startswith(f"{package}/")]


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_the_packages_below_it(package: str) -> None:
    forbidden = set(ALLOWED) - ALLOWED[package] - {package}
    for module in _modules(package):
        names = {name.split(".")[0] for name in module.imported}
        if module.path == house.DOOR:  # the door of the whole distribution: it names what is in all of it
            names = _imports(ast.Module([node for node in module.tree.body if not isinstance(node, ast.If)], []))
        wrong = names & forbidden
        assert not wrong, f"{module.path} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", LAYERS)
def test_a_folder_imports_only_folders_of_the_rows_above_it(package: str) -> None:
    rows = {f"{package}/{name}": row for row, names in enumerate(LAYERS[package]) for name in names.split()}
    folders = {module.folder for module in house.modules(ROOT) if module.folder.startswith(f"{package}/")}
    assert folders == set(rows), "the table names the folders that there are"
    for folder, targets in house.between_folders(house.modules(ROOT)).items():
        if folder in rows:
            wrong = {target for target in targets if rows.get(target, -1) >= rows[folder]}
            assert not wrong, f"{folder} imports {sorted(wrong)}, which stand no lower"


def test_an_optional_package_is_imported_lazily_and_in_few_files() -> None:
    users: dict[str, list[str]] = {}
    for package in ALLOWED:
        for module in _modules(package):
            tree = module.tree
            names = {name.split(".")[0] for name in module.imported} & OPTIONAL
            if not names:
                continue
            top_level = _imports(ast.Module([n for n in tree.body if not isinstance(n, ast.If)], []))
            functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
            eager = (top_level - set().union(*map(_imports, functions))) & OPTIONAL
            assert not eager, f"{module.path} imports {sorted(eager)} at import time"
            for name in names:
                users.setdefault(name, []).append(module.path)
    assert all(len(files) <= MAX_FILES_PER_OPTIONAL for files in users.values()), users


def test_core_and_errors_need_only_the_standard_library() -> None:
    for name in ("core.py", "errors.py"):
        found = _imports(ast.parse((ROOT / "ttc" / name).read_text(encoding="utf-8")))
        assert found <= set(sys.stdlib_module_names) | {"ttc"}, found


@pytest.mark.parametrize(
    "statement", ["import ttc", "import ttc.cli.cli, ttc.config.registry, ttc.core", "from ttc import run"]
)
def test_importing_the_package_loads_nothing_heavy(statement: str) -> None:
    heavy = "('torch', 'transformers', 'numpy', 'datasets', 'matplotlib', 'http.client')"
    code = f"{statement}; import sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_takes_less_than_a_fifth_of_a_second() -> None:
    def seconds(code: str) -> float:
        """Processor time of a fresh interpreter, which a busy machine does not lengthen."""
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime

    # The interpreter's own start is not ours.
    cost = min(seconds("import ttc") for _ in range(5)) - min(seconds("pass") for _ in range(5))
    assert cost < 0.2
