"""Runs every client against a scripted model in process, behind a server of messages, and behind one of token ids.

    python -m tests.serve.conformance.clients [--table docs/measured/serving.md] [NAME ...]

Each client has an environment of its own (below CONFORMANCE_DIR/clients, by default build/conformance/clients, since
`run.sh` has others of the same names), which is made once; the newest version that installs is what is tested. What a
client does is the first line of its program. Rows are printed as they come, and `--table` puts them into the table of
a page, where rows of clients that did not run stay. The status says whether all is well. Needs the extra `serve` here,
a network for the first run, and node for the AI SDK.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[3]
STORE = pathlib.Path(os.environ.get("CONFORMANCE_DIR", ROOT / "build" / "conformance")) / "clients"
MODEL = "actor"
LIMIT_S = 400
IGNORED = "http.ignore=ignore_eos,logit_bias,keep_alive"


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """A program of this folder, and what it needs: the first package is the client whose version is told."""

    file: str
    packages: tuple[str, ...] = ()

    @property
    def on_node(self) -> bool:
        """Whether it runs on node, with packages from npm."""
        return self.file.endswith(".mjs")


CLIENTS: Mapping[str, ClientProgram] = {
    "openai": ClientProgram("openai_sdk.py", ("openai",)),
    "anthropic": ClientProgram("anthropic_tools.py", ("anthropic",)),
    "agents": ClientProgram("agents_sdk.py", ("openai-agents",)),
    "langgraph": ClientProgram("langgraph_agent.py", ("langchain", "langgraph", "langchain-openai")),
    "pydantic-ai": ClientProgram("pydantic_ai_typed.py", ("pydantic-ai-slim[openai]",)),
    "instructor": ClientProgram("instructor_typed.py", ("instructor", "openai")),
    "smolagents": ClientProgram("smolagents_tools.py", ("smolagents[openai]",)),
    "dspy": ClientProgram("dspy_predict.py", ("dspy",)),
    "llamaindex": ClientProgram("llamaindex_agent.py", ("llama-index-core", "llama-index-llms-openai-like")),
    "litellm": ClientProgram("litellm_proxy.py", ("litellm[proxy]", "openai")),
    "vercel": ClientProgram(
        "vercel_ai.mjs", ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod")
    ),
    "inspect": ClientProgram("inspect_task.py", ("inspect_ai", "openai")),
    "lm-eval": ClientProgram("lm_eval_stops.py", ("lm_eval[api]",)),
    "aider": ClientProgram("aider_preset.py", ("aider-chat",)),
    "shapes": ClientProgram("request_shapes.py"),
}

HEAD = ("client", "versions", "what its program does", "in process", "behind messages", "behind ids")
_FIRST = re.compile(r'(?:"""|// )(.*?): (.*)\.')
"""The first line of a program: the client, and what is done with it."""


def main(arguments: Sequence[str]) -> int:
    """Run the clients named, or all; 1 when one of them failed somewhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CLIENTS)}; none: all")
    parser.add_argument("--table", type=pathlib.Path, help="a page that has the table")
    args = parser.parse_args(arguments)
    if set(args.names) - set(CLIENTS):
        parser.error(f"no such client; there are {', '.join(CLIENTS)}")
    rows = []
    with places() as urls:
        for name in args.names or CLIENTS:
            client, folder = CLIENTS[name], made(name, CLIENTS[name])
            outcomes = [run(client, folder, place, url) for place, url in urls.items()]
            title, purpose = about(client)
            rows.append([title, ", ".join(versions(client, folder)), purpose, *outcomes])
            print(line(rows[-1]), flush=True)
            if args.table is not None:
                args.table.write_text(with_row(args.table.read_text(encoding="utf-8"), rows[-1]), encoding="utf-8")
    return int(any(outcome != "passes" for row in rows for outcome in row[3:]))


def about(client: ClientProgram) -> tuple[str, str]:
    """The client's name, and what its program does."""
    first = _FIRST.match((HERE / client.file).read_text(encoding="utf-8"))
    if first is None:
        raise ValueError(f"{client.file} does not begin with NAME: WHAT IT DOES.")
    return first[1], first[2]


def line(row: Sequence[str]) -> str:
    """A row in Markdown."""
    return "| " + " | ".join(row) + " |"


def with_row(page: str, row: Sequence[str]) -> str:
    """`page`, whose table under `HEAD` has `row` in place of the same client's; in the order of CLIENTS."""
    lines = page.split("\n")
    first = lines.index(line(HEAD)) + 2
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    rows = {text.split(" | ")[0]: text for text in [*lines[first:last], line(row)]}
    titles = [f"| {about(client)[0]}" for client in CLIENTS.values()]
    return "\n".join([*lines[:first], *(rows[title] for title in titles if title in rows), *lines[last:]])


def made(name: str, client: ClientProgram) -> pathlib.Path:
    """The client's environment, installed where it was not."""
    folder = STORE / name
    if (folder / ".stamp").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if client.on_node:
        subprocess.run(["npm", "init", "--yes"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(["npm", "install", *quiet, *client.packages], cwd=folder, check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if client.packages:
            subprocess.run([*pip, *client.packages], check=True)
    (folder / ".stamp").touch()
    return folder


def versions(client: ClientProgram, folder: pathlib.Path) -> Iterator[str]:
    """The versions of its packages."""
    for package in client.packages:
        name = package.partition("[")[0]
        if client.on_node:
            about = json.loads((folder / "node_modules" / name / "package.json").read_text())
            yield f"{name} {about['version']}"
        else:
            code = f"import importlib.metadata as m; print(m.version({name!r}))"
            done = subprocess.run([str(folder / "bin" / "python"), "-c", code], capture_output=True, text=True)
            yield f"{name} {done.stdout.strip()}"


def run(client: ClientProgram, folder: pathlib.Path, place: str, url: str) -> str:
    """`passes`, or what went wrong in a word; the whole of it goes to standard error."""
    program = [str(folder / "bin" / "python"), "-P", str(HERE / client.file)]
    if client.on_node:
        shutil.copy(HERE / client.file, folder / client.file)
        program = ["node", client.file]
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OPENAI_API_KEY")}
    told = {"TTC_SERVE_URL": url, "TTC_SERVE_MODEL": MODEL, "TTC_SERVE_PLACE": place, **QUIET}
    try:
        done = subprocess.run(program, cwd=folder, env=own | told, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return "times out"
    if done.returncode == 0:
        return "passes"
    sys.stderr.write(f"== {client.file} ({place})\n{(done.stdout + done.stderr)[-5000:]}\n")
    return "fails"


QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "none"}


@contextlib.contextmanager
def places() -> Iterator[dict[str, str]]:
    """The address of each of the three servers, by where its model is."""
    python = sys.executable
    with contextlib.ExitStack() as stack:
        ids = stack.enter_context(started([python, "-m", "tests.serve.ids_upstream"], r"(http\S+)"))

        def serve(*options: str) -> str:
            command = [python, "-m", "ttc", "serve", "--port", "0", "--set", IGNORED, *options]
            return stack.enter_context(started(command, r'listening on ([^"]+)'))

        inside = serve("--engine", f"{ROOT / 'tests/serve/actor.py'}:actor", "--name", MODEL)
        messages = serve(MODEL, "--name", MODEL, "--upstream", f"{inside}/v1")
        tokenizer = ("--set", f"engine.tokenizer={ROOT / 'ttc/nano/teacher'}")
        yield {
            "in process": inside,
            "messages": messages,
            "ids": serve(MODEL, "--name", MODEL, "--upstream", ids, *tokenizer),
        }


@contextlib.contextmanager
def started(command: Sequence[str], pattern: str) -> Iterator[str]:
    """Run `command` until the block ends; gives what `pattern` finds in what it says."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(list(command), stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        try:
            yield address(child, log, pattern)
            if child.poll() is not None:
                raise RuntimeError(f"{command} died")
        finally:
            child.terminate()
            child.wait(30)


def address(child: subprocess.Popen[bytes], log: IO[str], pattern: str) -> str:
    """What `pattern` finds first in the log."""
    for _ in range(600):
        log.seek(0)
        text = log.read()
        match = re.search(pattern, text)
        if match:
            return match[1]
        if child.poll() is not None:
            raise RuntimeError(text[-3000:])
        time.sleep(0.1)
    raise TimeoutError(text[-3000:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
