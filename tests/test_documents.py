"""What the pages say works: every command is typed, every block of Python is run, files are read by what reads them.

What cannot run here is parsed and bound without running; the page says so, and why (`tests/documents.py`). Runs are
short by options at the end of a command (`SHORTER`), which is all that differs from what a reader types.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import notebooks
from tests.documents import ROOT, Block, Typed, blocks, commands, pages
from tests.dry import PLANS, dry
from tests.evals.test_quickstart import hosted
from ttc.cli import cli
from ttc.cli.cli import GROUP, main
from ttc.config.registry import plugins

pytestmark = pytest.mark.usefixtures("without_matplotlib")

PACKAGES = "ttc", "evals", "train", "distill", "serve"
PAGES = {str(page.relative_to(ROOT)): blocks(page) for page in pages()}
RUNNING = [name for name, parts in PAGES.items() if any(part.language != "text" for part in parts)]
SLOW = [name for name, parts in PAGES.items() if any(part.mark == "slow" for part in parts)]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
HOSTED = re.compile(r"https://api\.example\.com/v1|http://gpu:8000/v1")
SERVED = re.compile(r"(?:127\.0\.0\.1|localhost):8000")
SHORTER: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("eval",): ("--limit", "1"),
    ("quickstart",): ("--limit", "1"),
    ("steps", "eval"): ("--limit", "5"),
    ("train", "run", "cipher-grpo"): (
        *("--set", "pretrain.steps=20", "--set", "grpo.steps=2", "--set", "grpo.held_out_limit=8"),
    ),
}
"""Fewer problems and steps: the words of a command, and what is added to them."""


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """HOST:PORT of a real `ttc serve`, for what asks it."""
    words = [sys.executable, "-m", "ttc", "serve", "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "listening on" in line)
            yield re.findall(r"127\.0\.0\.1:\d+", line)[0]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a server that behaves as a hosted API."""
    with hosted() as server:
        yield server.url


class Shell:
    """Types the commands of one page into one folder, one after the other."""

    def __init__(self, patch: pytest.MonkeyPatch, addresses: Callable[[str], str]) -> None:
        self.patch, self.addresses, self.names = patch, addresses, dict[str, Any]()

    def block(self, block: Block, *, slow: bool) -> None:
        """Do what the language of the block asks for."""
        if block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        if block.language == "bash":
            runs = block.mark is None or (slow and block.mark == "slow")
            for typed in commands(block):
                self.type(typed, run=runs)
        elif block.language == "python":
            self.python(block)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            texts = block.text.splitlines() if block.title is not None else [block.text]
            assert all(json.loads(text) for text in texts)

    def python(self, block: Block) -> None:
        """Run it in the one namespace of the page."""
        text = block.text if block.mark is not None else self.addresses(block.text)
        code = compile(text, block.place, "exec")
        if block.mark is None:
            exec(code, self.names)

    def type(self, typed: Typed, *, run: bool) -> None:
        """Type one command."""
        for name, value in typed.variables:
            self.patch.setenv(name, value)
        if not typed.words:
            return
        if not run or Path(typed.words[0]).name not in ("ttc", "curl") or typed.words[1:2] == ("serve",):
            dry(typed)
            return
        words = [self.addresses(word) for word in typed.words]
        if words[0] == "curl":
            reply = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            assert "choices" in json.loads(reply), f"{typed.place}: {reply}"
            return
        text = "" if typed.stdin is None else Path(typed.stdin).read_text(encoding="utf-8")
        self.patch.setattr(sys, "stdin", io.StringIO(text))
        assert main([*words[1:], *shorter(words[1:])]) == 0, f"{typed.place}: {' '.join(words)}"


def shorter(words: Sequence[str]) -> tuple[str, ...]:
    """The options that make a run short."""
    return next((more for first, more in SHORTER.items() if tuple(words[: len(first)]) == first), ())


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A shell in an empty folder with the examples of a checkout; servers are started when a page names them."""
    monkeypatch.chdir(tmp_path)
    for name in ("distill", "train"):
        (tmp_path / name).symlink_to(ROOT / name)

    def addresses(text: str) -> str:
        if HOSTED.search(text):
            text = HOSTED.sub(request.getfixturevalue("endpoint"), text)
        if SERVED.search(text):
            text = SERVED.sub(request.getfixturevalue("served"), text)
        return text

    shell = Shell(monkeypatch, addresses)
    yield shell
    for value in shell.names.values():
        if isinstance(value, openai.OpenAI):  # a page need not close it, but its socket may not outlive the test
            value.close()


@pytest.mark.long
@pytest.mark.parametrize("page", RUNNING)
def test_what_a_page_shows_works(page: str, shell: Shell) -> None:
    for block in PAGES[page]:
        shell.block(block, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_what_takes_long_on_a_page_works_too(page: str, shell: Shell) -> None:
    for block in PAGES[page]:
        shell.block(block, slow=True)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_outputs_of_the_same_form(path: Path) -> None:
    """What it prints may differ by a digit on another processor, its shape may not."""
    stored = [cell.get("outputs", []) for cell in notebooks.cells(path)]
    fresh = notebooks.executed(path)
    assert [[out["output_type"] for out in cell] for cell in stored] == [
        [out["output_type"] for out in cell] for cell in fresh
    ]


def test_the_examples_in_the_help_of_every_command_are_read_by_their_own_parsers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "distill" / "examples" / "rejection.toml", "SPEC.toml")
    shutil.copy(PLANS / "votes.json", "plan.json")
    Path("mine.csv").write_text("question,answer\n6*7,42\n")
    subparsers = argparse.ArgumentParser().add_subparsers()
    for entry in plugins(GROUP).values():
        entry.load()(subparsers)
    helps = {name: f"{parser.description}\n{parser.epilog}" for name, parser in subparsers.choices.items()}
    examples = [
        (name, shlex.split(line))
        for name, text in helps.items()
        for line in re.findall(r"^ *(ttc .+?)(?:  .*)?$", text, re.MULTILINE)
    ]
    assert len(examples) > 30
    for name, words in examples:
        dry(Typed(f"ttc {name} --help", (), tuple(words[: [*words, "<"].index("<")]), None))


def test_commands_that_messages_advise_have_all_that_they_need() -> None:
    advice = re.compile(r"ttc (?:train|distill) (?:run|adapt|merge|gate)(?: [^;,()`]+|$)")
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    texts = [text for path in files for text in _texts(path) if "\n" not in text]
    told = [words for text in texts for words in advice.findall(text)]
    assert len(told) >= 5
    for words in told:
        cli._parse(shlex.split(words)[1:])
    markers = [text for text in texts if "thinking.open=..." in text]
    assert len(markers) >= 2 and all("--set thinking.close=..." in text for text in markers)


def _texts(path: Path) -> Iterator[str]:
    """The texts of a file's code, an X for every value in them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_mark_says_why() -> None:
    marked = [block for parts in PAGES.values() for block in parts if block.mark is not None]
    assert marked
    assert all(len(block.reason.split()) >= 2 for block in marked)


def test_most_blocks_of_commands_run() -> None:
    """So that a mark does not become a habit; pages of benchmarks are marked as a whole."""
    typed = [block for parts in PAGES.values() for block in parts if block.language in ("bash", "python")]
    own = [block for block in typed if not block.page.startswith(("benchmarks", "docs/measured"))]
    assert sum(block.mark is None for block in own) > 2 * sum(block.mark is not None for block in own)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nls\n```", "says its language"),
        ("```ruby\nputs\n```", "says its language"),
        ("<!-- parsed: needs a GPU -->\ntext\n```bash\nls\n```", "right before the block"),
    ],
)
def test_a_block_that_would_escape_is_refused(text: str, message: str, tmp_path: Path) -> None:
    from tests.documents import _blocks

    with pytest.raises(ValueError, match=message):
        list(_blocks("page.md", text.split("\n")))


def test_commands_are_read_as_a_shell_reads_them() -> None:
    text = "export KEY=a\nTTC_DATA=d ttc eval \\\n --limit 2 # why\ncd x && curl u -d '{\n \"a\": 1}'\nttc verify < f\n"
    block = Block("page.md", 1, "bash", None, text, None, "")
    assert [(typed.variables, typed.words, typed.stdin) for typed in commands(block)] == [
        ((("KEY", "a"),), (), None),
        ((("TTC_DATA", "d"),), ("ttc", "eval", "--limit", "2"), None),
        ((), ("cd", "x"), None),
        ((), ("curl", "u", "-d", '{\n "a": 1}'), None),
        ((), ("ttc", "verify"), "f"),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("ttc", "evl"),
        ("ttc", "eval", "--strategy", "majorty"),
        ("ttc", "eval", "--strategy", "majority:m=3"),
        ("ttc", "train", "run", "cipher-grpo", "--out", "x"),
        ("ttc", "train", "run", "r1", "--seed", "1", "--out", "x", "--set", "grpo.stepz=1"),
        ("make", "everything"),
        ("pip", "install", "-e", ".[vlm]"),
        ("pip", "install", "-c", "constraints.txt", "-e", ".[all,vllm]"),
        ("python", "-m", "benchmarks.frontiers"),
        ("python", "-m", "benchmarks.frontier", "--recrd"),
        ("rm", "-rf", "x"),
    ],
)
def test_a_command_that_does_not_exist_is_noticed_without_running_it(words: tuple[str, ...]) -> None:
    with pytest.raises((Exception, SystemExit)):
        dry(Typed("page.md:1", (), words, None))


def test_the_pages_that_the_site_shows_are_those_of_its_menu() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    here = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("**/*.md")}
    assert here <= listed


def test_links_between_files_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
    texts = {page: re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL) for page in pages()}
    links = [(page, to) for page, text in texts.items() for to in link.findall(text)]
    generated = ROOT / "docs" / "reference" / "commands.md"  # by docs/site.py
    there = [(page, to, (page.parent / to).resolve()) for page, to in links]
    assert [f"{page}: {to}" for page, to, at in there if not at.exists() and at != generated] == []
