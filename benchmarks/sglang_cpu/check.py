"""The sglang engine against SGLang itself, with checks that can fail; run by `run.sh`.

The conformance suite of every engine (seeds, stops, ledger, cancellation), log-probabilities sampled against
given, new weights and back, a tree search (every strategy, if the model thinks), greedy decoding against the embedded
engine, and, over HTTP, our ledger against the counters that the server itself exports. Equality is to the bit only
because the run is in float32.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import importlib.metadata
import json
import os
import pathlib
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from tests.ttc import conformance as suite
from tests.ttc import test_conformance as conformance
from ttc.core import Answer, ExtraSampling, Message, Sampling, Usage
from ttc.engines.embedded.engine import embedded
from ttc.engines.sglang.factory import sglang

BASIC = (
    conformance.test_raising_n_only_adds_draws,
    conformance.test_raising_max_tokens_only_extends,
    conformance.test_a_draw_resumed_in_pieces_equals_one_long_run,
    conformance.test_text_is_what_the_ids_decode_to,
    conformance.test_a_stop_token_ends_the_draw_and_stays_in_it,
    conformance.test_every_draw_reports_its_usage_once_and_the_sum_is_the_engines_own,
    conformance.test_a_cancelled_draw_is_aborted_and_its_tokens_are_overrun,
    conformance.test_a_prompt_beyond_the_context_is_refused_with_both_numbers,
    conformance.test_encode_and_decode_are_inverse_on_plain_text,
)
COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "cached_tokens_total")
QUESTIONS = ("What is 12+30*2?", "Name three colours.", "Why is the sky blue?", "Write a short poem about rain.")


class Shared:
    """An engine that outlives the checks that close it, counting anew: starting one takes half a minute."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.before = engine, engine.counters()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def counters(self) -> Usage:
        """What was counted since this check began."""
        now = self.engine.counters()
        return Usage(**{f.name: getattr(now, f.name) - getattr(self.before, f.name) for f in dataclasses.fields(now)})

    async def close(self) -> None:
        """Do nothing; the engine is closed at the end of all checks."""


def prompt(engine: Any, question: str = QUESTIONS[0]) -> Any:
    """Render one question."""
    return engine.render([Message("user", question)], None)


async def logprobs_agree(engine: Any) -> str:
    """Sampled tokens have the log-probabilities that the same tokens have as a given text."""
    usages: list[Usage] = []
    root = prompt(engine)
    drawn = await engine.generate(
        root, Sampling(seed=5, temperature=0.7, max_tokens=32, logprobs=True), range(4), usages.append
    )
    worst = 0.0
    for done in drawn:
        given = await engine.logprobs(root.token_ids + done.token_ids, len(root.token_ids), usages.append)
        worst = max(worst, *(abs(a - b) for a, b in zip(given, done.logprobs, strict=True)))
    if not worst < 1e-3:
        raise AssertionError(f"largest difference {worst}")
    return f"largest difference {worst:.1e} nats over {sum(len(d.token_ids) for d in drawn)} tokens"


async def likeliest_agree(engine: Any) -> str:
    """The likeliest tokens stand in order beside drawn and given ones, and a greedy draw takes the first."""
    root, usages = prompt(engine), list[Usage]()
    sampling = ExtraSampling(seed=5, temperature=0.0, max_tokens=24, logprobs=True, top_logprobs=3)
    (done,) = await engine.generate(root, sampling, range(1), usages.append)
    rows = await engine.top_logprobs((*root.token_ids, *done.token_ids), len(root.token_ids), 3, usages.append)
    worst = 0.0
    for token, top, row in zip(done.token_ids, done.top_logprobs, rows, strict=True):
        if top[0][0] != token or [value for _, value in top] != sorted((value for _, value in top), reverse=True):
            raise AssertionError(f"{token} {top}")
        worst = max(worst, *(abs(value - row[other]) for other, value in top if other in row))
    if not worst < 1e-3 or sum(usages, Usage()).scored == 0:
        raise AssertionError(f"differs by {worst}")
    return f"{len(rows)} places, drawn against given within {worst:.2g} nats"


async def stop_strings_hold(engine: Any) -> str:
    """A draw ends with the first token that completes a stop string, however the string falls into tokens."""
    (free,) = await engine.generate(prompt(engine), Sampling(seed=5, max_tokens=40), range(1), lambda usage: None)
    lengths = []
    for start in range(1, 13, 3):
        stop = free.text[start : start + 4]
        sampling = Sampling(seed=5, max_tokens=40, stop=(stop,))
        (done,) = await engine.generate(prompt(engine), sampling, range(1), lambda usage: None)
        before = engine.decode(done.token_ids[:-1])
        if done.stop_reason != stop or stop not in done.text or stop in before:
            raise AssertionError(f"{stop!r} {done}")
        if done.token_ids != free.token_ids[: len(done.token_ids)]:
            raise AssertionError("a stop string changed the draw")
        lengths.append(len(done.token_ids))
    return f"cut after {lengths} tokens"


async def streams_agree(engine: Any) -> str:
    """A streamed draw is the same draw, its tokens handed over once each."""
    usages: list[Usage] = []
    pieces: list[tuple[int, ...]] = []
    sampling = Sampling(seed=5, max_tokens=32)
    (whole,) = await engine.generate(prompt(engine), sampling, range(3, 4), usages.append)
    done = await engine.stream(prompt(engine), sampling, 3, usages.append, pieces.append)
    if not sum(pieces, ()) == done.token_ids == whole.token_ids:
        raise AssertionError(f"{pieces} != {whole.token_ids}")
    return f"{len(done.token_ids)} tokens in {len(pieces)} pieces"


async def cancelled_in_full_flight(engine: Any) -> str:
    """Draws that are cancelled in the middle report what they had decoded."""
    usages: list[Usage] = []
    counts, started = [0, 0], asyncio.Event()
    sampling = Sampling(seed=5, temperature=4.0, max_tokens=400)  # hot enough not to end by itself

    def on_tokens(which: int, ids: tuple[int, ...]) -> None:
        counts[which] += len(ids)
        if min(counts) > 3:
            started.set()

    streams = [
        engine.stream(prompt(engine), sampling, which, usages.append, functools.partial(on_tokens, which))
        for which in (0, 1)
    ]
    whole = engine.generate(prompt(engine), sampling, range(2, 4), usages.append)
    tasks = [asyncio.create_task(work) for work in (*streams, whole)]
    await started.wait()
    for task in tasks:
        task.cancel()
    begun = time.perf_counter()
    await asyncio.wait(tasks)
    seconds, overrun = time.perf_counter() - begun, [usage.overrun for usage in usages]
    if not (all(task.cancelled() for task in tasks) and len(usages) == 4 and 0 < min(overrun) <= max(overrun) < 400):
        raise AssertionError(f"{tasks} {usages}")
    return f"{overrun} tokens of 4 draws, known {seconds:.2f} s after the cancellation"


async def weights_change_and_come_back(engine: Any, folder: pathlib.Path) -> str:
    """Other weights give other numbers and an empty cache; the old ones give the old numbers."""
    from safetensors.torch import load_file

    usages: list[Usage] = []
    ids = engine.encode("The capital of France is Paris, and that of Italy is Rome.")

    async def read() -> tuple[float, ...]:
        found: tuple[float, ...] = await engine.logprobs(ids, 1, usages.append)
        await engine.generate(prompt(engine), Sampling(temperature=0.0, max_tokens=2), range(1), usages.append)
        return found

    await read()
    state, before = load_file(folder / "model.safetensors"), await read()
    name = next(key for key in state if key.endswith("down_proj.weight"))
    await engine.load_weights(state | {name: state[name] * 0.5})
    other = await read()
    await engine.load_weights(state)
    after = await read()
    moved, back = (max(abs(a - b) for a, b in zip(before, new, strict=True)) for new in (other, after))
    cached = [usage.cached for usage in usages[1::2]]
    text = f"numbers moved by {moved:.2g} and back to within {back:.2g} nats, prompt tokens cached {cached}"
    if not (moved > 0.01 and back < 1e-4 and cached[1] > 0 and cached[2:] == [0, 0]):
        raise AssertionError(text)
    return text


async def tree_search(engine: Any, url: str | None) -> str:
    """A tree search, its ledger against our counters and, over HTTP, the server's."""
    before, ours = metrics(url), engine.counters()
    answers = await suite.solve_in_order(engine, suite.cases("sglang")["tree"], suite.problems(2), 2, max_tokens=96)
    total = sum((answer.usage for answer in answers.values()), Usage())
    now = engine.counters()
    if total.generated + total.overrun != now.generated + now.overrun - ours.generated - ours.overrun:
        raise AssertionError("the ledger of the search is not the engine's")
    text = f"{total.generated} tokens kept, {total.overrun} overrun, {total.cached} of {total.prompt} prompt cached"
    if url is not None:
        await asyncio.sleep(1)
        theirs = [int(b - a) for a, b in zip(before, metrics(url), strict=True)]
        if theirs != [total.prompt, total.generated + total.overrun, total.cached]:
            raise AssertionError(f"the server counts {theirs}: {text}")
        text += ", equal to the server's counters"
    return text


def ledger_holds(name: str, case: str) -> None:
    """The cost that a strategy's answers report equals the engine's counters and the total of the trace."""

    async def solve(engine: Any) -> tuple[Mapping[str, Answer], Usage]:
        return await suite.solve_in_order(engine, suite.cases(name)[case], suite.problems(2), 2), engine.counters()

    answers, counters = conformance.run(name, solve)
    conformance.check_the_ledger(answers.values(), counters)
    conformance.check_the_trace(answers.values())


async def greedy_equals_embedded(engine: Any, folder: pathlib.Path) -> str:
    """Two engines, one model, float32: the same tokens."""
    other = embedded(str(folder), dtype="float32")
    same = total = 0
    for question in QUESTIONS:
        sampling = Sampling(temperature=0.0, max_tokens=48)
        (a,) = await engine.generate(prompt(engine, question), sampling, range(1), lambda usage: None)
        (b,) = await other.generate(prompt(engine, question), sampling, range(1), lambda usage: None)
        same += a.token_ids == b.token_ids
        total += len(a.token_ids)
    await other.close()
    if same < len(QUESTIONS):
        raise AssertionError(f"{same} of {len(QUESTIONS)} completions are the same")
    return f"{same} of {len(QUESTIONS)} completions the same, {total} tokens"


async def whole_ledger(engine: Any, url: str, before: list[float]) -> str:
    """All of this run, cancellations, log-probabilities and weights included, against the server's counters."""
    await asyncio.sleep(2)
    ours = engine.counters()
    counted = [ours.prompt, ours.generated + ours.overrun, ours.cached]
    theirs = [int(b - a) for a, b in zip(before, metrics(url), strict=True)]
    text = f"prompt, decoded, cached tokens: {counted} here, {theirs} there, in {ours.calls} requests"
    if counted != theirs:
        raise AssertionError(text)
    return text


def metrics(url: str | None) -> list[float]:
    """The server's own counters, in the order of COUNTERS."""
    if url is None:
        return []
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    found = [[line for line in lines if line.startswith(f"sglang:{name}{{")] for name in COUNTERS]
    return [sum(float(line.rpartition(" ")[2]) for line in group) for group in found]


def main() -> int:
    """Run every check; the number of failed ones is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--url", help="a running server; without it the engine runs in this process")
    parser.add_argument("--out", type=pathlib.Path, help="add the results to this JSON file")
    args = parser.parse_args()
    started = time.perf_counter()
    if args.url is None:
        engine = sglang(
            str(args.model),
            device="cpu",
            dtype="float32",
            attention_backend="torch_native",
            cuda_graph=False,
            overlap_schedule=False,
            mem_fraction_static=0.8,
            max_total_tokens=20_000,
            max_requests=64,
        )
    else:
        engine = sglang(str(args.model), base_url=args.url)
    begun = metrics(args.url)
    where = "in process" if args.url is None else "over HTTP"
    print(f"{where}: ready after {time.perf_counter() - started:.0f} s, {engine.capabilities}")
    own: dict[str, Callable[[], Awaitable[str]]] = {
        "logprobs_agree": lambda: logprobs_agree(engine),
        "likeliest_agree": lambda: likeliest_agree(engine),
        "stop_strings_hold": lambda: stop_strings_hold(engine),
        "streams_agree": lambda: streams_agree(engine),
        "cancelled_in_full_flight": lambda: cancelled_in_full_flight(engine),
        "tree_search": lambda: tree_search(engine, args.url),
        "weights_change_and_come_back": lambda: weights_change_and_come_back(engine, args.model),
        "greedy_equals_embedded": lambda: greedy_equals_embedded(engine, args.model),
    }
    checks = checks_of("sglang", engine, BASIC, own)
    if args.url is not None:
        checks["whole_ledger"] = lambda: asyncio.run(whole_ledger(engine, args.url, begun))
    results = {name: attempt(name, check) for name, check in checks.items()}
    asyncio.run(engine.close())
    if args.out is not None:
        known = json.loads(args.out.read_text()) if args.out.is_file() else {}
        conditions = {
            "date": time.strftime("%Y-%m-%d"),
            "sglang": importlib.metadata.version("sglang"),
            "torch": importlib.metadata.version("torch"),
            "model": args.model.name,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }
        args.out.write_text(json.dumps({**known, where: {"conditions": conditions, **results}}, indent=1) + "\n")
    return sum(not result["ok"] for result in results.values())


def checks_of(
    name: str, engine: Any, basic: Iterable[Callable[[str], None]], own: Mapping[str, Callable[[], Awaitable[str]]]
) -> dict[str, Callable[[], Any]]:
    """The checks of the suite for `engine`, called `name` there, its own ones, and, if it thinks, every strategy."""
    suite.ENGINES[name] = lambda jitter: Shared(engine)  # type: ignore[assignment,return-value]
    thinks = bool(engine.capabilities.think_close)
    suite.EXTRA[name] = suite.THINKING_STRATEGIES if thinks else {}
    checks: dict[str, Callable[[], Any]] = {check.__name__: functools.partial(check, name) for check in basic}
    checks |= {title: lambda work=work: asyncio.run(work()) for title, work in own.items()}
    if thinks:  # a model that small makes it quick to try every strategy
        checks |= {f"ledger of {case}": functools.partial(ledger_holds, name, case) for case in suite.cases(name)}
    return checks


def attempt(name: str, check: Callable[[], Any]) -> dict[str, Any]:
    """Run one check and print its result; a failure does not stop the others."""
    started = time.perf_counter()
    try:
        found, ok = check() or "", True
    except Exception as exc:
        found, ok = f"{type(exc).__name__}: {exc}"[:500], False
    seconds = round(time.perf_counter() - started, 1)
    print(f"{'ok    ' if ok else 'FAILED'} {name} ({seconds} s) {found}", flush=True)
    return {"ok": ok, "seconds": seconds, "found": found}


if __name__ == "__main__":
    sys.exit(main())
