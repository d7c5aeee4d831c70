"""What mkdocs cannot find by itself: pages that live beside their code, notebooks, and the help of every command.

A link in any page is written as it works in the repository; here it becomes the link of the site. Cost: a second. Left
out: running notebooks, which is the tests' (`tests/test_documents.py`); what is stored in them is shown.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ELSEWHERE = {
    "benchmarks/README.md": "measured/benchmarks.md",
    "ttc/sandbox/README.md": "ideas/sandbox.md",
    "ttc/strategies/README.md": "ideas/composition.md",
    "ttc/nano/README.md": "reference/packaged.md",
    "tests/oracles/README.md": "measured/oracles.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "benchmarks/chain/PLAN.md": "measured/chain-plan.md",
    "benchmarks/results/chain/chain.png": "img/chain.png",
    "benchmarks/results/headline.png": "img/headline.png",
    "benchmarks/results/headline.svg": "img/headline.svg",
    "benchmarks/results/frontier.png": "img/frontier.png",
}
"""Files of the repository, and where they stand on the site."""
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
_MARK = re.compile(r"^<!-- (?:parsed|slow|typed|table|end)\b.*?-->\n", re.MULTILINE)
"""Comments to the tests and to the scripts that make tables; they say nothing to a reader."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`."""
    for source, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_notebook(path)))
    files.append(File.generated(config, "reference/commands.md", content="\n".join(_commands())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of the repository into those of the site."""
    source = page.file.abs_src_path
    here = Path(source).parent if source is not None else DOCS / Path(page.file.src_uri).parent

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(here / match[2]))
        place = _place(target)
        if place is None:
            return match[0]
        if place.endswith(".ipynb") and page.file.src_uri != f"{place.removesuffix('.ipynb')}.md":
            place = f"{place.removesuffix('.ipynb')}.md"
        return f"{match[1]}{os.path.relpath(place, Path(page.file.src_uri).parent)}{match[3]}"

    names = "\n\n".join(f"::: ttc.{name}" for name in _public())
    return _LINK.sub(moved, _MARK.sub("", markdown.replace("<!-- names of ttc -->", names)))


def _public() -> list[str]:
    """What `ttc` exports: functions, then classes; registries have a paragraph of their own."""
    tree = ast.parse((ROOT / "ttc" / "__init__.py").read_text(encoding="utf-8"))
    (names,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and _is_all(node))
    listed = [str(name) for name in ast.literal_eval(names) if not name.isupper()]
    return sorted(listed, key=lambda name: (not name.islower(), name))


def _is_all(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def _place(target: Path) -> str | None:
    """Where a file of the repository stands on the site, if it does."""
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    return ELSEWHERE.get(str(target.relative_to(ROOT))) if target.is_relative_to(ROOT) else None


def _notebook(path: Path) -> str:
    """A notebook as a page: its text, its code, and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    title, _, rest = "\n\n".join(part for part in parts if part).partition("\n")
    return f"{title}\n\n[This page as a notebook]({path.name})\n{rest}\n"


def _output(output: Mapping[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return "".join(data["image/svg+xml"])
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```text\n{''.join(data.get('text/plain', ''))}\n```"


def _commands() -> Iterator[str]:
    """The help of every command, from its own parser."""
    from ttc.cli.cli import GROUP
    from ttc.config.registry import plugins

    os.environ["COLUMNS"] = "100"
    yield "# Commands\n\nWhat `ttc COMMAND --help` prints, for every command."
    for name, entry in sorted(plugins(GROUP).items()):
        subparsers = argparse.ArgumentParser(prog="ttc").add_subparsers()
        entry.load()(subparsers)
        yield from _helps(f"ttc {name}", subparsers.choices[name], level=2)


def _helps(title: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    yield f"\n{'#' * level} {title}\n\n```text\n{parser.format_help().rstrip()}\n```"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, nested in action.choices.items():
                yield from _helps(f"{title} {name}", nested, level + 1)
