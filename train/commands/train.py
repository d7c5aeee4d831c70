"""`ttc train`: train a model by a recipe; replay, report or promote a run.

    ttc train list
    ttc train run cipher-grpo --seed 1 --out runs/cipher        a packaged recipe, with a model of its own
    ttc train run r1-zero --model Qwen/Qwen2.5-1.5B --scale 1x80gb --device cuda --seed 1 --out runs/r1
    ttc train report runs/cipher
    ttc train plan r1-zero --model Qwen/Qwen2.5-1.5B --scale 1x80gb
    ttc train adapt HuggingFaceTB/SmolLM2-135M --form r1-zero --out models/smol
    ttc train merge models/smol runs/cipher/2-grpo/model/adapter --out models/merged
    ttc train replay runs/cipher --step 3
    ttc train rescore runs/cipher --verifier exact
    ttc train gate runs/cipher --gates gates.toml --seed 1

A recipe of your own is a short TOML file of stages. Fields of each kind of stage: ttc list stages KIND.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc.config.recipes import overrides
from ttc.config.values import at_least, check_seed, check_training_place, counted, within
from ttc.errors import ConfigError

if TYPE_CHECKING:
    from train.base.stage import StageResult
    from train.recipe.recipe import RecipeStep


def register(subparsers: Any) -> None:
    """Add `ttc train`."""
    parser = subparsers.add_parser("train", description=__doc__)
    verbs = parser.add_subparsers(metavar="ACTION", required=True)
    _add_run(verbs)
    _add_plan(verbs)
    _add_adapt(verbs)
    _add_merge(verbs)
    _add_list(verbs)
    _add_replay(verbs)
    _add_rescore(verbs)
    _add_report(verbs)
    _add_gate(verbs)


def _add_run(verbs: Any) -> None:
    run = verbs.add_parser("run", help="run a recipe; run it again to resume")
    run.add_argument("recipe", help="name of a packaged recipe (ttc train list), or a TOML file")
    run.add_argument("--out", type=Path, required=True, help="folder of the run")
    run.add_argument("--seed", type=int, required=True, help="seed of data, weights and rollouts")
    run.add_argument("--model", help="model folder or hub id to start from; not for recipes that make their own")
    run.add_argument("--scale", help="nano, which is a toy run, or the hardware: cpu, 1x24gb, 1x80gb or 8x80gb")
    run.add_argument("--data", type=Path, metavar="DIR", help="folder of data sets (default: TTC_DATA, or the hub)")
    run.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    run.add_argument("--threads", type=int, default=1, help="compute threads on a CPU (default: 1)")
    run.add_argument("--processes", type=int, default=1, help="processes that share rollouts and updates (default: 1)")
    run.add_argument("--keep-checkpoints", action="store_true", help="keep those of finished stages, for replays")
    run.add_argument("--json", action="store_true", help="end stdout with a JSON line per stage, not with the summary")
    _add_settings(run, "STAGE.FIELD", "change a field, also STAGE.health.RULE.FIELD")
    run.set_defaults(run=_run, continues=True)


def _add_plan(verbs: Any) -> None:
    plan = verbs.add_parser("plan", help="say what a recipe takes: memory by part, tokens, hours; trains nothing")
    plan.add_argument("recipe", help="name of a packaged recipe (ttc train list), or a TOML file")
    plan.add_argument("--model", required=True, help="model folder or hub id; a folder with a config.json will do")
    plan.add_argument("--scale", help="nano, which is a toy run, or the hardware: cpu, 1x24gb, 1x80gb or 8x80gb")
    plan.add_argument("--memory", type=float, metavar="GB", help="of a device, where the scale names none or another")
    plan.add_argument("--device", default="cpu", help="what trains and probes: cpu or cuda (default: cpu)")
    plan.add_argument("--threads", type=int, default=1, help="compute threads of the probe on a CPU (default: 1)")
    plan.add_argument("--no-probe", action="store_true", help="measure nothing: no hours")
    _add_settings(plan, "STAGE.FIELD", "change a field, also STAGE.health.RULE.FIELD")
    plan.set_defaults(run=_plan)


def _add_adapt(verbs: Any) -> None:
    adapt = verbs.add_parser("adapt", help="copy a model with thinking markers and a prompt form")
    adapt.add_argument("model", help="model folder or hub id")
    adapt.add_argument("--out", type=Path, required=True, help="folder of the copy")
    adapt.add_argument("--open", help="what begins a thought; its own marker by default, else <think>")
    adapt.add_argument("--close", help="what ends it")
    adapt.add_argument("--tokens", action="store_true", help="add the two markers to the vocabulary as single tokens")
    adapt.add_argument("--form", help="how problems are asked: r1-zero, think-answer or boxed")
    adapt.set_defaults(run=_adapt)


def _add_merge(verbs: Any) -> None:
    merge = verbs.add_parser("merge", help="write a model with the adapter of a stage merged into it")
    merge.add_argument("model", help="model folder or hub id that the adapter was trained from")
    merge.add_argument("adapter", type=Path, help="folder of the adapter, or the model folder that it stands in")
    merge.add_argument("--out", type=Path, required=True, help="folder of the merged model")
    merge.set_defaults(run=_merge)


def _add_list(verbs: Any) -> None:
    listing = verbs.add_parser("list", help="list recipes")
    listing.set_defaults(run=_list)


def _add_replay(verbs: Any) -> None:
    replay = verbs.add_parser("replay", help="compute one update again from its recorded rollouts")
    replay.add_argument("folder", type=Path, help="folder of the run")
    replay.add_argument("--stage", type=int, help="number of the stage (default: the last one with rollouts)")
    replay.add_argument("--model", type=Path, help="model folder the stage started from, when it is not in the run")
    replay.add_argument("--step", type=int, required=True, help="the update, from 0")
    replay.add_argument("--device", default="cpu", help="cpu or cuda; equal numbers need the run's own (default: cpu)")
    replay.set_defaults(run=_replay)


def _add_rescore(verbs: Any) -> None:
    rescore = verbs.add_parser("rescore", help="judge recorded rollouts again, with another verifier or version")
    rescore.add_argument("folder", type=Path, help="folder of the run")
    rescore.add_argument("--stage", type=int, help="number of the stage (default: the last one with rollouts)")
    rescore.add_argument("--verifier", metavar="NAME", help="default: the one of the stage's task")
    _add_settings(rescore, "KEY", "parameter of the verifier")
    rescore.add_argument("--out", type=Path, metavar="FILE", help="write the rollouts with their new rewards")
    rescore.set_defaults(run=_rescore)


def _add_report(verbs: Any) -> None:
    report = verbs.add_parser("report", help="write the dashboard of a run, and print its summary")
    report.add_argument("folder", type=Path, help="folder of the run; it may still be running")
    report.add_argument("--out", type=Path, help="where to write the page; RUN/report.html by default")
    report.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write the metrics for TensorBoard")
    report.add_argument("--wandb", metavar="PROJECT", help="also send the metrics to Weights & Biases")
    report.set_defaults(run=_report)


def _add_gate(verbs: Any) -> None:
    gate = verbs.add_parser("gate", help="measure the recipe's gates, and promote the model when all of them pass")
    gate.add_argument("folder", type=Path, help="folder of a finished run")
    gate.add_argument("--gates", type=Path, metavar="FILE", help="a TOML file with a table [gates]; else the recipe's")
    gate.add_argument("--model", type=Path, help="model folder the run started from, when it is not in the run")
    gate.add_argument("--seed", type=int, required=True, help="seed of the samples and of the intervals")
    gate.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    gate.add_argument("--threads", type=int, default=1, help="compute threads on a CPU (default: 1)")
    gate.set_defaults(run=_gate)


def _without_bars() -> None:
    """Keep transformers' own progress bars off the screen."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _add_settings(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add `--set NAME=VALUE`, which may be given several times."""
    parser.add_argument("--set", action="append", default=[], metavar=f"{name}=VALUE", dest="settings", help=text)


def _run(args: argparse.Namespace) -> int:
    import torch

    from evals.data.sources import DATA
    from train.base.world import HANDED_ON_S, joined, relaunch, without
    from train.recipe.adapt import adaptation, adapted
    from train.recipe.recipe import START, read_recipe
    from train.recipe.run import RunOptions, check_start, run_recipe
    from train.report import read_run, render_outcome
    from ttc.cli.parts import check_writable
    from ttc.concurrent import SteadyLog, StopRequest
    from ttc.engines.embedded.core.model import pick_device
    from ttc.engines.shared.folder import resolve

    check_training_place("train", args.device, args.threads)
    check_seed("train", seed=args.seed)
    at_least("train", 1, processes=args.processes)
    check_writable("--out", args.out)
    pick_device(args.device)
    _without_bars()
    if args.data is not None:
        os.environ[DATA] = str(args.data)
    own, settings = _parted(overrides(args.settings))
    recipe = read_recipe(args.recipe, scale=args.scale, overrides=settings)
    model = None if args.model is None else resolve(args.model)
    if own and model is None:
        raise ConfigError("--set thinking.KEY applies to the model of --model; name one, or leave it out")
    copy = adaptation(recipe, model, own)
    if args.processes > 1 and not torch.distributed.is_torchelastic_launched():
        return relaunch(args.processes, without("--processes", sys.argv[1:]), StopRequest(armed=True))
    torch.set_num_threads(args.threads)
    world = joined(args.device)
    if copy is not None and model is not None:
        if world.main:
            check_start(args.out)
            adapted(model, args.out / START, copy)
        world.wait()
        model = args.out / START
    stop = StopRequest(armed=True, apart_s=0.0 if world.size == 1 else HANDED_ON_S)
    options = RunOptions(
        args.out, args.seed, model, args.device, args.threads, world, stop, keep_checkpoints=args.keep_checkpoints
    )

    def write(text: str) -> None:
        if world.main:
            print(text, file=sys.stderr, flush=True)

    with SteadyLog(write) as log:
        results = run_recipe(recipe, options, log)
    if not world.main:
        return 0
    if args.json:
        for step, result in zip(recipe.steps, results, strict=False):
            print(_line(step.kind, result))
    else:
        print(render_outcome(read_run(args.out, samples=False)), end="")
    print(_sentence(recipe.steps, results, args.out), file=sys.stderr)
    return 3 if results[-1].stopped.startswith("health rule") else 0


def _line(kind: str, result: StageResult) -> str:
    """What a stage measured, as JSON, with null for a missing number."""
    from evals.report.kit import finite

    numbers = {name: finite(value) for name, value in result.metrics.items()}
    return json.dumps({"stage": kind, "stopped": result.stopped, **numbers}, allow_nan=False)


def _sentence(steps: Sequence[RecipeStep], results: Sequence[StageResult], out: Path) -> str:
    """How training ended, where the model is, and the next command."""
    last = results[-1]
    early = f"; {steps[len(results) - 1].kind} ended early: {last.stopped}" if last.stopped else ""
    following = shlex.join(["ttc", "train", "report", str(out)])
    kind = steps[len(results) - 1].kind
    place = out / f"{len(results)}-{kind}"
    folders = sorted(str(path.parent) for path in place.glob("*/config.json") if path.parent.name != "model")
    where = f"the model is in {last.model}"
    if folders and (place / "model").is_symlink():
        where = f"what {kind} made is in {', '.join(folders)}; the model that came in is as it was, in {last.model}"
    done = f"{len(results)} of {counted(len(steps), 'stage')} done{early}; {where}"
    return f"{done}\nnext: {following}  # all that it logged"


def _parted(settings: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Split settings into `thinking.KEY`, without the prefix, and those of stages."""
    own = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("thinking.")}
    return own, {key: value for key, value in settings.items() if not key.startswith("thinking.")}


def _plan(args: argparse.Namespace) -> int:
    import torch

    from train.recipe.plan import config_of, lines, plan_recipe, probe
    from train.recipe.recipe import read_recipe
    from ttc.engines.shared.folder import resolve

    check_training_place("train plan", args.device, args.threads)
    if args.memory is not None:
        within("train plan", 0.001, 1e6, memory=args.memory)
    _without_bars()
    _, settings = _parted(overrides(args.settings))
    recipe, folder = read_recipe(args.recipe, scale=args.scale, overrides=settings), resolve(args.model)
    has_weights = any(folder.glob("*.safetensors"))
    torch.set_num_threads(args.threads)
    speed = probe(folder, args.device) if has_weights and not args.no_probe else None
    costs = plan_recipe(recipe, config_of(folder), args.scale, speed, args.memory, args.device, folder)
    for line in lines(costs):
        print(line)
    names = {cost.name for cost in costs}
    others = [
        name for number, step in enumerate(recipe.steps, start=1) if (name := f"{number}-{step.kind}") not in names
    ]
    if others:
        print(f"not planned: {', '.join(others)}")
    return 0 if all(cost.fits for cost in costs) else 3


def _adapt(args: argparse.Namespace) -> int:
    from train.recipe.adapt import Adaptation, adapt
    from ttc.cli.parts import check_writable
    from ttc.engines.shared.folder import resolve

    check_writable("--out", args.out)
    if args.out.exists():
        raise ConfigError(f"--out {args.out} exists; choose another folder")
    _without_bars()
    form = Adaptation(args.open, args.close, args.tokens, args.form)
    opening, closing = adapt(resolve(args.model), args.out, form)
    print(f"wrote {args.out}: thinks between {opening} and {closing}")
    return 0


def _merge(args: argparse.Namespace) -> int:
    from train.base.adapters import merge_adapter
    from ttc.cli.parts import check_writable
    from ttc.engines.shared.folder import resolve

    check_writable("--out", args.out)
    _without_bars()
    digest = merge_adapter(resolve(args.model), args.adapter, args.out)
    print(f"wrote {args.out}: weights {digest}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from train.recipe.recipe import packaged
    from ttc.config.recipes import load_toml

    width = max(map(len, packaged()))
    for name, path in packaged().items():
        about = str(load_toml(path).get("about", "")).strip().splitlines()
        print(f"{name:{width}}  {about[0] if about else ''}")
    return 0


def _replay(args: argparse.Namespace) -> int:
    from train.replay.replay import replay_step

    check_training_place("train replay", args.device, 1)
    at_least("train replay", 0, step=args.step, stage=args.stage)
    _without_bars()
    for line in replay_step(args.folder, args.step, stage=args.stage, model=args.model, device=args.device):
        print(line)
    return 0


def _rescore(args: argparse.Namespace) -> int:
    import asyncio

    from train.base.rollout import write_rollouts
    from train.replay.replay import change_lines, differences, judged_again, verifier_of
    from ttc.cli.parts import check_file

    if args.out is not None:
        check_file("--out", args.out)
        if args.out.exists():
            raise ConfigError(f"--out {args.out} exists; choose another file")
    service = verifier_of(args.folder, args.stage, args.verifier, overrides(args.settings))

    async def work() -> list[Any]:
        try:
            return [pair async for pairs in judged_again(args.folder, args.stage, service) for pair in pairs]
        finally:
            await service.close()

    pairs = asyncio.run(work())
    for row in differences(pairs):
        print(json.dumps(row))
    if args.out is not None:
        write_rollouts(args.out, (after for _, after in pairs))
    print("\n".join(change_lines(pairs, service.version)), file=sys.stderr)
    return 0


def _report(args: argparse.Namespace) -> int:
    from train.report import read_run, render_summary, write_report
    from train.report.data import to_tensorboard, to_wandb
    from ttc.cli.parts import check_file, check_writable

    place = args.out or args.folder / "report.html"
    if args.out is not None or place.is_dir():
        check_file("--out", place)
    if args.tensorboard is not None:
        check_writable("--tensorboard", args.tensorboard)
    data = read_run(args.folder)
    if args.tensorboard is not None:
        to_tensorboard(data, args.tensorboard)
    if args.wandb is not None:
        to_wandb(data, args.wandb)
    print(render_summary(data), end="")
    if args.out is None and not os.access(args.folder, os.W_OK):
        raise ConfigError(f"{args.folder} cannot be written to: give the page another place with --out FILE")
    print(f"wrote {write_report(args.folder, args.out)}", file=sys.stderr)
    return 0


def _gate(args: argparse.Namespace) -> int:
    import torch

    from train.base.stage import Setting
    from train.measure.gates import read_gates
    from train.promote.gate import judge, promote
    from train.recipe.run import RUN, read_asked, stage_folders
    from ttc.concurrent import SteadyLog
    from ttc.config.recipes import load_toml

    check_training_place("train gate", args.device, args.threads)
    check_seed("train gate", seed=args.seed)
    stage_folders(args.folder)  # refuses a folder that is no run
    where = args.gates or args.folder / RUN
    tables = load_toml(args.gates) if args.gates is not None else read_asked(args.folder)
    if "gates" not in tables:
        raise ConfigError(f"{where} declares no gates; write a table [gates] into the recipe, or give --gates FILE")
    torch.set_num_threads(args.threads)
    _without_bars()
    with SteadyLog(partial(print, file=sys.stderr, flush=True)) as log:
        setting = Setting(args.folder, args.model, args.seed, args.device, args.threads, log)
        checks = judge(read_gates(tables["gates"], str(where)), args.folder, args.model, setting)
    for check in checks:
        print(f"{'pass' if check.passed else 'FAIL'}  {check.gate:16} {check.text}")
    pointer = promote(args.folder, checks)
    print("not promoted" if pointer is None else f"promoted: {pointer}")
    return 3 if pointer is None else 0
