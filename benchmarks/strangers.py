"""Three new users, each with the wheel only: from an empty folder to a first result of their own.

    python -m benchmarks.strangers --wheel build/wheel/ttckit-0.1.0-py3-none-any.whl --smollm2 build/smollm2 \
        --vllm-python .venv-vllm/bin/python --save docs/screens

    api-key   an endpoint that behaves as a hosted API: a key, messages only, rate limits; its answers are made up, and
              right seven times in ten
    laptop    a model folder (SmolLM2-135M-Instruct) in this process
    vllm      a vLLM server of the same model, which runs already; how long its start takes is printed apart

Each gets a new folder as its home, the problems of the tutorial, and four commands at most, the installation among
them; the last one is what the screen before it names as next. A stranger whose command fails, or who needs more than
ten minutes, ends this script with status 1. The commands are typed into a shell, `python3` is this interpreter's.
Without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu keeps the laptop from CUDA's packages. Screens
are saved as they came, without the temporary folder and with the address that the documentation uses.

Cost: ten minutes of two cores, most of it pip and SmolLM2. Left out: other platforms, and the download of weights.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.pages import placed
from tests.documents import ROOT, blocks
from tests.ttc.openai_server import Behaviour, OpenAIServer
from tests.ttc.openai_setup import CHAT, free_port
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.compute import cpu_prefers_bf16

MAX_S, MAX_COMMANDS = 600, 4
KEY = "sk-test-123"
HOSTED = replace(CHAT, model="gpt-x", key=KEY, limit_field="max_completion_tokens", rate=20)
"""As a hosted API: a key, messages only, its own name for max_tokens, twenty requests a second."""
PAGE = ROOT / "docs" / "measured" / "first-contact.md"
PROBLEMS = "mine.csv"
_NEXT = re.compile(r"^next: (ttc .+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stranger:
    """One kind of new user: the extra of the wheel that they install, and the commands that they type."""

    name: str
    has: str
    extra: str
    quickstart: str
    shown: str | None = None
    """The address of their server as the documentation writes it."""


STRANGERS = (
    Stranger(
        "api-key",
        "an endpoint and a key",
        "",
        f"OPENAI_API_KEY={KEY} {{ttc}} quickstart --base-url {{url}} --model gpt-x --data {PROBLEMS} "
        "--price-in 0.15 --price-out 0.60 --max-tokens 256 --out runs/api",
        "https://api.example.com/v1",
    ),
    Stranger(
        "laptop",
        "a model folder, no GPU",
        "local",
        f"{{ttc}} quickstart --model SmolLM2-135M-Instruct --data {PROBLEMS} --max-tokens 128 --out runs/laptop",
    ),
    Stranger(
        "vllm",
        "a vLLM server",
        "",
        f"{{ttc}} quickstart --base-url {{url}} --data {PROBLEMS} --max-tokens 128 --out runs/server",
        "http://gpu:8000/v1",
    ),
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the text typed, the screen's output, and the seconds it took."""

    typed: str
    screen: str
    seconds: float


def problems() -> str:
    """The file that the tutorial makes."""
    return next(block.text for block in blocks(ROOT / "docs" / "start" / "api-key.md") if block.title == PROBLEMS)


def visit(stranger: Stranger, install: Sequence[str], folder: Path, ttc: str, url: str) -> Iterator[Command]:
    """Type the commands of a stranger in `folder`, each when the one before it is done.

    Raises:
        RuntimeError: a command failed, or the screen names no next one.
    """
    (folder / PROBLEMS).write_text(problems(), encoding="utf-8")
    for typed in (*install, stranger.quickstart.format(ttc=ttc, url=url)):
        command = _type(typed, folder)
        yield command
    after = _NEXT.search(command.screen)
    if after is None:
        raise RuntimeError(f"{stranger.name}: no next command on the screen of: {command.typed}\n{command.screen}")
    key = f"OPENAI_API_KEY={KEY} " if KEY in stranger.quickstart else ""
    yield _type(key + after[1].replace("ttc", ttc, 1), folder)


def _type(typed: str, folder: Path) -> Command:
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", typed],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {typed}\n{done.stdout}")
    return Command(typed, done.stdout, time.monotonic() - started)


def _environment(folder: Path) -> dict[str, str]:
    """What a new user has: a home, a path, and the settings of pip on this machine."""
    kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_", "LC_", "LANG", "OMP_"))}
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])
    python = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {**kept, **python, "HOME": str(folder), "PATH": path}


@contextlib.contextmanager
def hosted(behaviour: Behaviour = HOSTED) -> Iterator[str]:
    """The address of a server that behaves as a hosted API."""
    right = dict(line.rsplit(",", 1) for line in problems().splitlines()[1:])

    def answer(prompt: object, path: Sequence[int], key: int) -> str:
        question = next((text for text in right if text in str(getattr(prompt, "text", ""))), "")
        gold = right.get(question, "0")
        return f"So it is \\boxed{{{gold if key % 10 < 7 else int(gold) + key % 3 + 1}}}."

    with OpenAIServer(lambda: ScriptedEngine(answer), behaviour) as server:
        yield server.url


@contextlib.contextmanager
def vllm(python: Path, model: Path) -> Iterator[str]:
    """The address of a vLLM server of a model folder, started here."""
    port = free_port()
    words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    dtype = "bfloat16" if cpu_prefers_bf16() else "float32"
    words += ["--served-model-name", "smollm2", "--dtype", dtype, "--max-model-len", "2048", "--max-num-seqs", "64"]
    words += ["--enforce-eager", "--block-size", "32", "--no-enable-chunked-prefill"]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    started = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(words, env={**os.environ, **settings}, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _await(f"http://127.0.0.1:{port}/health", process)
            print(f"the vLLM server was up after {time.monotonic() - started:.0f} s")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(1)
    raise RuntimeError(f"the server ended with {process.returncode}")


@contextlib.contextmanager
def model_folder() -> Iterator[str]:
    """Yield no address, for a stranger without a server."""
    yield ""


def text_of(commands: Sequence[Command], hidden: Mapping[str, str]) -> str:
    """The screens of one stranger, with what was typed and the seconds that it took."""
    parts = [f"$ {each.typed}\n{each.screen.rstrip()}\n[{each.seconds:.0f} s]\n" for each in commands]
    text = "\n".join(part.replace("\n\n[", "\n[") for part in parts)
    for secret, name in hidden.items():
        text = text.replace(secret, name)
    return text


def table_of(visits: Mapping[str, Sequence[Command]]) -> str:
    """One row per stranger."""
    lines = [
        "| the user has | commands | install s | first result s | next command s | total |",
        "|---|---|---|---|---|---|",
    ]
    for stranger in STRANGERS:
        commands = visits.get(stranger.name)
        if commands is None:
            continue
        *install, first, after = (command.seconds for command in commands)
        total = sum(install) + first + after
        seconds = f"{sum(install):.0f} | {first:.0f} | {after:.0f} | {total / 60:.1f} min"
        lines.append(f"| {stranger.has} | {len(commands)} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    """Run the strangers one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--smollm2", type=Path, default=Path("build/smollm2"))
    parser.add_argument("--vllm-python", type=Path, default=Path(".venv-vllm/bin/python"))
    parser.add_argument("--only", default=",".join(each.name for each in STRANGERS), help="names, by commas")
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip is asked for beside the laptop's wheel")
    parser.add_argument("--save", type=Path, help="folder of the screens")
    args = parser.parse_args()
    servers: Mapping[str, AbstractContextManager[str]] = {
        "api-key": hosted(),
        "laptop": model_folder(),
        "vllm": vllm(args.vllm_python.absolute(), args.smollm2.resolve()),
    }
    names = args.only.split(",")
    visits: dict[str, Sequence[Command]] = {}
    for stranger in (each for each in STRANGERS if each.name in names):
        with servers[stranger.name] as url, tempfile.TemporaryDirectory() as home:
            folder = Path(home)
            shutil.copy(args.wheel, folder)
            (folder / "SmolLM2-135M-Instruct").symlink_to(args.smollm2.resolve())
            wheel = (
                f"./{args.wheel.name}"
                if not stranger.extra
                else f"{args.torch} './{args.wheel.name}[{stranger.extra}]'"
            )
            install = ["python3 -m venv .venv", f".venv/bin/pip install --quiet {wheel}"]
            commands = list(visit(stranger, install, folder, ".venv/bin/ttc", url))
            hidden = {
                str(folder): "~",
                url or "no address": stranger.shown or "",
                str(args.smollm2.resolve()): "SmolLM2",
            }
            screen = text_of(commands, hidden)
        visits[stranger.name] = commands
        print(screen)
        if args.save is not None:
            (args.save / f"{stranger.name}.txt").write_text(screen, encoding="utf-8")
        if len(commands) > MAX_COMMANDS or sum(command.seconds for command in commands) > MAX_S:
            sys.exit(f"{stranger.name} needs too many commands, or too long")
    print(table_of(visits))
    if args.save is not None and len(visits) == len(STRANGERS):
        PAGE.write_text(placed(PAGE.read_text(encoding="utf-8"), {"strangers": table_of(visits)}), encoding="utf-8")


if __name__ == "__main__":
    main()
