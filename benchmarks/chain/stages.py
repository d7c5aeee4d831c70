"""The stages of the chain: each a command of the toolkit, with its numbers for `benchmarks/results/chain`.

`sft`, `prm`, `grpo` train by a recipe, `distil-search` and `distil-teacher` by a spec; each leaves an adapter. `probe`,
`pools`, `search`, `curve` and `serve` run on problems of the part that is named. Evaluations save one number per
problem, so that claims can be paired later without the runs. A saved arm of `probe` or `search` is not run again, so
that arms can run on several machines; after retraining a model, delete the file of its arms. The additional experiment
on word problems is in `side`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chain.place import BASES, RECIPES, START, ChainPlace
from benchmarks.chain.served import right_replies
from evals.numbers.metrics import Vote
from evals.numbers.summary import is_correct, votes
from evals.run_folder import read_run
from ttc.errors import ConfigError

N = 16
POOL = 32
THRESHOLDS = (0.8, 0.9, 0.95, 0.98)
"""How likely the leader of an adaptive vote must be its winner."""
CAPS = (16, 32, 64, 128, 256)
"""Thinking tokens of the curve: a factor of sixteen. Beyond them an answer has 32 more."""
MAX_TOKENS = 256
HANDOVER = "\n</think>\n"
"""The bare end of a thought: the start was never shown a sentence before it."""
_TRAINED = {"sft": "1-sft/model/adapter", "prm": "1-prm/prm/adapter", "grpo": "1-grpo/model/adapter"}
"""Where a recipe's stage leaves its adapter, by its kind."""
SECOND = "grpo-second"
"""The one second try of the claim that failed: the same recipe, twice the steps."""
STUDENT_SECOND = "distil-search-second"
"""The second try of the student: from the start itself, the four shortest draws that agree in each vote of 16."""
_SECOND_STEPS = 120
_SHORT: Mapping[str, Sequence[str]] = {
    "sft": ("steps=20", "rows=4", "warmup=2", "eval_every=10", "save_every=10"),
    "prm": ("limit=4", "n=2", "continuations=1", "rounds=1", "steps=2", "rows=2", "warmup=0", "held_out_share=0.4"),
    "grpo": ("steps=2", "prompts=2", "n=2", "warmup=0", "held_out_limit=2", "eval_every=2", "save_every=1"),
}
"""What a cut run sets instead, by stage."""
_CUT_TOKENS = 48
_LATER: Mapping[str, Sequence[str]] = {"prm": ("continuations=2",), "distil-search": ("limit=450",)}
"""What every seed after the first sets instead, for time: labels of three continuations a step take four hours, scored
searches of 900 problems five, and 360 steps read no more draws than those of 450 give."""


def trained(place: ChainPlace, name: str, kind: str, *settings: str) -> None:
    """Train by the recipe of a stage of this kind, from the model before it."""
    sets = [f"1.{setting}" for setting in (*settings, *(_LATER.get(name, ()) if place.seed > 1 else ()))]
    if place.kv_bytes is not None and kind != "sft":
        sets.append(f"1.engine=embedded:kv_bytes={place.kv_bytes}")
    if place.cut:
        sets += [f"1.{setting}" for setting in _SHORT[kind]]
    if place.cut and name == kind == "sft":  # the only recipe with a corpus
        sets.append("1.corpus_rows=120")
    if place.cut and name == kind != "sft":
        sets.append(f"1.task=countdown:numbers=3,part=train,form=brief,max_tokens={_CUT_TOKENS}")
    out = place.out / "runs" / f"{name}-{place.seed}"
    recipe = RECIPES / f"{name.removesuffix('-second')}.toml"
    text, seconds = place.ttc(
        "train", "run", recipe, "--model", place.model(BASES[name]), "--seed", str(place.seed), "--out", out,
        "--device", place.device, "--json", *(word for setting in sets for word in ("--set", setting)),
    )  # fmt: skip
    row = json.loads(text.splitlines()[-1])
    digest = place.keep(name, out / _TRAINED[kind])
    place.write(name, {"metrics": row, "seconds": round(seconds), "weights": digest})


def distilled(place: ChainPlace, name: str) -> None:
    """Distil by the stage's spec: a search of the start, or the policy that rewards have taught."""
    out = _job(place, name)
    _, seconds = place.ttc(
        "distill", "run", spec_of(name), "--student", place.model(BASES[name]), "--seed", str(place.seed), "--out", out,
        *(word for setting in job_settings(place, name) for word in ("--set", setting)),
    )  # fmt: skip
    (adapter,) = sorted(out.glob("train/*/*/model/adapter"))
    digest = place.keep(name, adapter)
    manifest = json.loads((out / "manifest.json").read_text())
    place.write(name, {"metrics": manifest.get("metrics", {}), "seconds": round(seconds), "weights": digest})


def spec_of(name: str) -> Path:
    """The spec of a stage that distils; a second try has that of the first."""
    return RECIPES / f"{name.removesuffix('-second')}.toml"


def job_settings(place: ChainPlace, name: str) -> list[str]:
    """What a stage that distils sets beside its spec."""
    searches = spec_of(name).stem == "distil-search"
    sets = [f"device={place.device}", f"teacher.model={place.model('sft' if searches else 'grpo')}"]
    has_judge = searches and name != STUDENT_SECOND
    if has_judge:
        sets.append(f"teacher.scorer=prm:{place.model('prm')}")
    if name == STUDENT_SECOND:
        sets += ["search.most=4", "train.lr=5e-4", f"teacher.strategy=majority:n={2 if place.cut else N}"]
    if place.kv_bytes is not None:
        sets.append(f"teacher.options.kv_bytes={place.kv_bytes}")
        sets += [f"teacher.scorer_options.kv_bytes={place.kv_bytes // 2}"] if has_judge else []
    if place.seed > 1:
        sets += _LATER.get(name, ())
    if place.cut:
        sets += ["limit=6", "smoke=1", "smoke_failures=1", "train.steps=2", "train.rows=2", "eval.limit=2", "n=1"]
        sets += ["sampling.max_tokens=48", *(["teacher.strategy=best_of_n:n=2"] if has_judge else [])]
    return sets


def _job(place: ChainPlace, name: str) -> Path:
    return place.out / "runs" / f"{name}-{place.seed}"


# -- questions ---------------------------------------------------------------------------------------------------------
def asked(
    place: ChainPlace, run: str, model: Path, strategy: str, *options: str, form: str = "brief"
) -> dict[str, Any]:
    """One evaluation on Countdown, resumed where it stopped: accuracy, tokens, and one line per problem."""
    task = ("countdown", *_settings("task", {"numbers": 3, "part": place.part, "form": form}))
    return asked_of(task, place, f"{run}-{place.part}", model, strategy, *options)


def asked_of(
    task: Sequence[str], place: ChainPlace, run: str, model: Path, strategy: str, *options: str
) -> dict[str, Any]:
    """The same on any task, a name and the words of its settings."""
    tokens = _CUT_TOKENS if place.cut else MAX_TOKENS
    own = {"device": None if place.device == "cpu" else place.device, "kv_bytes": place.kv_bytes}
    out = place.out / "evals" / f"{run}-{place.seed}"
    _, seconds = place.ttc(
        "eval", "--model", model, "--task", *task, "--strategy", strategy, "--baseline", "none",
        "--limit", str(place.limit), "--seed", str(place.seed), "--max-tokens", str(tokens), "--out", out,
        "--retry-errors", *_settings("engine", own), *options,
    )  # fmt: skip
    return {**told(out), "strategy": strategy, "options": list(options), "seconds": round(seconds)}


def told(folder: Path) -> dict[str, Any]:
    """What a run is kept as: 1 or 0 and tokens per problem, and of a pool every candidate's answer, verdict, score.

    Raises:
        ConfigError: a problem failed; running the stage again asks it again.
    """
    records = read_run(folder).records
    failures = [record.error for record in records if record.error is not None]
    if failures:
        raise ConfigError(
            f"{len(failures)} of {len(records)} problems failed in {folder}, the first with {failures[0]}: run the "
            "stage again, which asks these alone"
        )
    known = [record for record in records if record.answer is not None]
    usages = [record.answer.usage for record in known if record.answer is not None]
    right = [int(is_correct(record)) for record in known]
    row: dict[str, Any] = {
        "problems": [record.problem.id for record in known],
        "right": right,
        "accuracy": sum(right) / max(len(right), 1),
        "generated": [usage.generated for usage in usages],
        "thinking": [usage.thinking for usage in usages],
        "flops": [usage.flops for usage in usages],
    }
    pools = [votes(record) for record in known]
    if any(len(pool) > 1 for pool in pools):
        row["pool"] = [_written(pool) for pool in pools]
    return row


def _written(pool: Sequence[Vote]) -> list[list[Any]]:
    """A pool's candidates as [number of its answer, right, score]: what every vote and choice is computed from."""
    numbers: dict[str, int] = {}
    return [
        [
            None if vote.key is None else numbers.setdefault(vote.key, len(numbers)),
            int(vote.correct),
            None if vote.score is None else round(vote.score, 4),
        ]
        for vote in pool
    ]


def scored(place: ChainPlace, judge: str = "prm") -> tuple[str, ...]:
    """The words that let a stage's judge score."""
    own = {
        "device": None if place.device == "cpu" else place.device,
        "kv_bytes": None if place.kv_bytes is None else place.kv_bytes // 2,
    }
    return ("--scorer", f"prm:{place.model(judge)}", *_settings("scorer", own))


def _settings(part: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """Those that are not None, as words of a command."""
    return tuple(
        word for key, value in values.items() if value is not None for word in ("--set", f"{part}.{key}={value}")
    )


def probe(place: ChainPlace) -> None:
    """The public model in both prompt forms, and every model that is there, greedily."""
    rows, greedy = place.arms(f"probe-{place.part}"), "direct:temperature=0"
    for name, form in {"public": "brief", "public, tags": "tags"}.items():
        if name not in rows:
            rows[name] = asked(place, name.replace(", ", "-"), place.model(START), greedy, form=form)
    for name in ("sft", "grpo", SECOND, "distil-search", STUDENT_SECOND, "distil-teacher"):
        if name not in rows and place.adapter(name).is_dir():
            rows[name] = asked(place, f"{name}-greedy", place.model(name), greedy)
    place.write(f"probe-{place.part}", {"arms": rows})


def pools(place: ChainPlace) -> None:
    """One scored pool of the start; what votes or selects less is computed from it exactly (`ttc replay`)."""
    n = 3 if place.cut else POOL
    row = asked(place, "pool", place.model("sft"), f"best_of_n:n={n},select=weighted", *scored(place))
    place.write(f"pools-{place.part}", {"arms": {"pool": row}})


def search(place: ChainPlace) -> None:
    """Live search at one width; `auto` spends what a vote does on average, by a plan made from the pool of dev."""
    n, rows = (3 if place.cut else N), place.arms(f"search-{place.part}")
    line = "boundary=sentence,max_step_tokens=32"  # a sentence ends with its line, too
    for name, strategy in {
        "majority": f"majority:n={n}",
        "best_of_n": f"best_of_n:n={n},select=weighted",
        **{policy: f"tree:n={n},policy={policy},{line}" for policy in ("beam", "dvts", "particle")},
    }.items():
        if name in rows:
            continue
        needs = () if name == "majority" else scored(place)
        rows[name] = asked(place, f"live-{name}", place.model("sft"), strategy, *needs)
        place.write(f"search-{place.part}", {"arms": rows, "whole": False})
    if "auto" not in rows:
        voted = rows["majority"]["generated"]
        plan, tokens = place.out / f"plan-{place.seed}.json", sum(voted) / len(voted)
        place.ttc("calibrate", place.out / "evals" / f"pool-dev-{place.seed}", "--out", plan)
        spent = ("--set", f"plan={plan}", "--set", f"tokens={tokens:.0f}")
        rows["auto"] = asked(place, "live-auto", place.model("sft"), "auto", *scored(place), *spent)
    place.write(f"search-{place.part}", {"arms": rows, "whole": True})


def search_second(place: ChainPlace) -> None:
    """The second try against votes: a vote that stops once it is decided, replayed from the pool at every threshold."""
    pool, rows = place.out / "evals" / f"pool-{place.part}-{place.seed}", {}
    for threshold in THRESHOLDS:
        strategy = f"adaptive:n={3 if place.cut else POOL},threshold={threshold}"
        out = place.out / "evals" / f"replay-adaptive-{threshold}-{place.part}-{place.seed}"
        shutil.rmtree(out, ignore_errors=True)
        place.ttc("replay", pool, "--strategy", strategy, "--out", out)
        rows[f"adaptive {threshold}"] = {**told(out), "strategy": strategy}
    place.write(f"search-second-{place.part}", {"arms": rows})


def curve(place: ChainPlace) -> None:
    """Accuracy against thinking tokens, greedily: a thought that is cut and handed over, and one that is only cut."""
    rows = {}
    for cap in CAPS[:2] if place.cut else CAPS:
        for at_cap in ("handover", "stop"):
            strategy = f"budget_forcing:max_thinking={cap},at_cap={at_cap},temperature=0"
            own = ("--set", f"thinking.handover={HANDOVER}", "--max-tokens", str(cap + 32))
            rows[f"{at_cap} {cap}"] = asked(place, f"curve-{at_cap}-{cap}", place.model("sft"), strategy, *own)
            place.write(f"curve-{place.part}", {"arms": rows, "whole": False})
    place.write(f"curve-{place.part}", {"arms": rows, "whole": True})


def serve(place: ChainPlace) -> None:
    """Whether the distilled student answers over HTTP as it does in an evaluation."""
    row = right_replies(place.model("distil-teacher"), place.part, 2 if place.cut else 20, place.cut)
    place.write(f"serve-{place.part}", row)


STAGES: Mapping[str, Callable[[ChainPlace], None]] = {
    "sft": lambda place: trained(place, "sft", "sft"),
    "prm": lambda place: trained(place, "prm", "prm"),
    "pools": pools,
    "search": search,
    "search-second": search_second,
    "grpo": lambda place: trained(place, "grpo", "grpo"),
    SECOND: lambda place: trained(place, SECOND, "grpo", f"steps={_SECOND_STEPS}"),
    "distil-search": lambda place: distilled(place, "distil-search"),
    STUDENT_SECOND: lambda place: distilled(place, STUDENT_SECOND),
    "distil-teacher": lambda place: distilled(place, "distil-teacher"),
    "curve": curve,
    "probe": probe,
    "serve": serve,
}
"""In the order of the chain."""


def is_done(place: ChainPlace, name: str) -> bool:
    """Whether a stage has left all its numbers."""
    paths = [place.kept / f"{one}-{place.seed}.json" for one in (name, f"{name}-{place.part}")]
    return any(path.is_file() and json.loads(path.read_text()).get("whole", True) for path in paths)
