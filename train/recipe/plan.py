"""What a recipe needs on a device: memory by part, tokens, steps, hours; what does not fit, and how to make it fit.

Memory is counted, not guessed: parameters from the model's configuration without any device, activations by what
autograd would save (fake tensors through one and two layers: every further layer adds the difference). A device holds
weights, gradients and moments in fp32, the reference, the critic, models that reward, the activations of a micro-batch,
a chunk of logits a few times over, and the engine's share. Hours come from a probe of a few seconds: how fast this
machine updates and samples with this model; without it there are none. Tokens are upper bounds, with rollouts at full
length, and rows of a file at their own. For blocks that an allocator keeps, a tenth of a device of known size is left
free; a CPU's heap keeps blocks of up to 32 MiB, which is a part of its own (`benchmarks.train_memory`), and so are the
libraries of the process, and the copy of the weights that an engine that dies is replaced from. Left out: memory of
other processes, and traffic between devices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from train.recipe.recipe import Recipe, RecipeStep
from train.registries import STAGES, make_task
from train.update.batch import pass_tokens
from train.update.logprobs import chunk_size
from ttc.config.recipes import parse_spec
from ttc.config.signatures import options_of
from ttc.config.values import counted, storage
from ttc.errors import ConfigError

GB = 1e9
HARDWARE: Mapping[str, tuple[int, float]] = {"1x24gb": (1, 24.0), "1x80gb": (1, 80.0), "8x80gb": (8, 80.0)}
"""Devices and the memory of each, in GB, by scale."""
FREE = 0.1
"""Share of a device that is kept free."""
_HEAP = 0.5
"""What glibc's heap keeps of freed blocks, as a share of what is in use; the most that was measured is 0.47."""
_LIBRARIES = 0.5
"""GB of a process that has loaded torch, transformers and an engine; 0.46 were measured."""
_LEARNERS = ("grpo", "ppo", "agent", "on_policy")
_TRAINED = (*_LEARNERS, "sft", "preference", "reward_model", "prm", "verifier_lm")
_PAIRS = ("preference", "reward_model")
_JUDGES = ("process_reward", "verifier_lm")
"""Fields that name a model which rewards, beside those of `reward_model`; taken to be of the policy's size."""
_PROMPT = 256
"""Tokens of a prompt that tokens are counted with."""


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """A model in numbers: parameters, those of linear layers' adapters per rank, ids, width, layers."""

    parameters: int
    per_rank: int
    ids: int
    hidden: int
    layers: int


@dataclass(frozen=True, slots=True)
class StageCost:
    """The needs of one stage: GB on each device by part, tokens of all its steps, steps, and hours if known.

    `sampled` is None where only the run knows: a draw for each step of solutions that are drawn first.
    """

    name: str
    memory: Mapping[str, float]
    limit: float | None
    sampled: int | None
    trained: int
    steps: int
    hours: float | None
    fix: Mapping[str, Any] | None

    @property
    def total(self) -> float:
        """GB on each device."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether it fits with some room to spare; true for a device of unknown size."""
        return self.limit is None or self.total <= (1 - FREE) * self.limit


@dataclass(frozen=True, slots=True)
class Speed:
    """What a probe measured: floating-point operations a second of an update, and tokens a second sampled."""

    flops: float
    tokens: float


def plan_recipe(
    recipe: Recipe, config: Any, scale: str | None, speed: Speed | None, memory: float | None = None,
    device: str = "cpu", folder: Path | None = None,
) -> list[StageCost]:  # fmt: skip
    """The cost of every stage that trains or samples.

    `memory` is the GB of a device if the scale names none, and `device` its type then: passes are larger on a GPU.
    With the model's `folder`, rows of a file are counted in its tokens.
    """
    devices, gigabytes = HARDWARE.get(scale or "", (1, memory))
    limit, device = memory or gigabytes, "cuda" if scale in HARDWARE else torch.device(device).type
    counts = counts_of(config)
    costs = []
    for number, step in enumerate(recipe.steps, start=1):
        fields = _fields(step)
        if step.kind in (*_TRAINED, "sample"):
            name = f"{number}-{step.kind}"
            if folder is not None:
                fields |= {_SIZES: _sizes(step.kind, fields, folder)}
            costs.append(_cost(name, step.kind, fields, (config, counts), (devices, limit, device), speed))
    return costs


def counts_of(config: Any) -> ModelCounts:
    """Count a model without loading it."""
    model = _fake(config)
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    return ModelCounts(
        sum(p.numel() for p in model.parameters()),
        sum(m.in_features + m.out_features for m in linear),
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
    )


def _fake(config: Any, layers: int | None = None) -> Any:
    """The model of a configuration without a device, with this many layers."""
    from transformers import AutoModelForCausalLM

    values = config.to_dict()
    if layers is not None:
        values |= {"num_hidden_layers": layers}
        values |= {"layer_types": values["layer_types"][:layers]} if values.get("layer_types") else {}
    own = type(config).from_dict(values)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(own, attn_implementation="eager", dtype=torch.float32)


def _cost(
    name: str, kind: str, fields: Mapping[str, Any], model: tuple[Any, ModelCounts],
    place: tuple[int, float | None, str], speed: Speed | None,
) -> StageCost:  # fmt: skip
    config, counts = model
    _, limit, device = place
    steps, sampled, trained = _tokens(kind, fields)

    def memory(changed: Mapping[str, Any]) -> Mapping[str, float]:
        return stage_memory(kind, {**fields, **changed}, config, counts, *place)

    cost = StageCost(name, memory({}), limit, sampled, trained, steps, None, None)
    if not cost.fits:
        tries = (change for change in _changes(kind, fields, device) if replace(cost, memory=memory(change)).fits)
        cost = replace(cost, fix=next(tries, {}))
    return replace(cost, hours=None if speed is None else _hours(kind, fields, cost, counts, speed))


def _changes(kind: str, fields: Mapping[str, Any], device: str) -> Iterator[Mapping[str, Any]]:
    """Settings that need less memory, each on top of those before it."""
    known = options_of(STAGES.load(kind)) if kind in STAGES.names() else {}
    change: dict[str, Any] = {}
    steps: Sequence[tuple[str, Any]] = (
        ("autocast", True), ("checkpointing", True), ("micro_tokens", 8192), ("micro_tokens", 4096),
        ("micro_tokens", 2048), ("lora", 32),
    )  # fmt: skip
    for name, value in steps:
        smaller = name != "micro_tokens" or value < _tokens_of_pass(fields, device)
        if name in known and fields.get(name) != value and smaller:
            change = {**change, name: value}
            yield change
    if "vllm" in str(fields.get("engine")):
        yield {**change, "engine": re.sub(r"utilization=[0-9.]+", "utilization=0.25", str(fields["engine"]))}


def stage_memory(
    kind: str, fields: Mapping[str, Any], config: Any, counts: ModelCounts, devices: int, limit: float | None,
    device: str = "cpu",
) -> dict[str, float]:  # fmt: skip
    """GB that one device holds, by part."""
    shards = devices if fields.get("shard") else 1
    whole = counts.parameters
    asks = "engine" in fields and any(fields.get(name) for name in ("task", "held_out"))
    engine = {"engine": _engine_gb(str(fields["engine"]), counts, limit)} if asks else {}
    libraries = {"libraries": _LIBRARIES} if device == "cpu" else {}
    if kind not in _TRAINED:
        return (engine or {"engine": 4 * whole / GB}) | libraries
    rank = int(fields.get("lora") or 0)
    trained = rank * counts.per_rank if rank else whole
    each = 2 if rank and fields.get("autocast") else 4  # bytes of a frozen weight
    parts = {
        "weights": (each * whole + (4 * trained if rank else 0)) / shards / GB,
        "gradients": 4 * trained / shards / GB,
        "optimiser": 8 * trained / shards / GB,
        "activations": activation_bytes(kind, config, fields, counts, device) / GB,
        "head": head_bytes(kind, fields, counts, device) / GB,
    }
    if fields.get("autocast"):  # weights that are trained are cast once for a whole pass, others layer by layer
        parts["casts"] = 2 * (whole if not rank and shards == 1 else whole / counts.layers) / GB
    if kind in ("grpo", "ppo", "agent"):
        parts["reference"] = each * whole / shards / GB
    if rank and (device == "cpu" or kind in _LEARNERS):  # those of a GPU are merged there for the engine alone
        parts["merged"] = 4 * whole / GB
    judges = len(fields.get("reward_model") or ()) + sum(bool(fields.get(name)) for name in _JUDGES)
    if engine and kind in _LEARNERS and device == "cpu":  # for the next engine, should this one die
        parts["pushed"] = 4 * whole / GB
    if judges:
        parts["judges"] = 4 * whole * judges / GB
    if kind == "ppo" and fields.get("critic") != "head":
        parts["critic"] = 16 * whole / GB
    if shards > 1:  # the layer that computes and the next one, and embeddings
        parts["gathered"] = 4 * (2 * whole / counts.layers + counts.ids * counts.hidden) / GB
    if limit is None:  # of a device whose size is known a tenth stays free instead
        parts["allocator"] = _HEAP * sum(parts.values())
    return parts | engine | libraries


def head_bytes(kind: str, fields: Mapping[str, Any], counts: ModelCounts, device: str) -> float:
    """A chunk of logits, its normal form, the gradients of both, and the wanted hidden states with theirs."""
    rows, length = _pass(kind, fields, device)
    tokens = rows * length
    chunk = min(tokens, chunk_size(counts.ids, device))
    return 4.0 * (4 * chunk * counts.ids + 2 * tokens * counts.hidden)


def activation_bytes(kind: str, config: Any, fields: Mapping[str, Any], counts: ModelCounts, device: str) -> float:
    """What autograd keeps of one micro-batch below the head."""
    shape = rows, length = _pass(kind, fields, device)
    saved = [_saved(config, layers, shape, bool(fields.get("autocast"))) for layers in (1, 2)]
    layer = saved[1] - saved[0]
    kept = 4.0 * rows * length * counts.hidden
    if fields.get("checkpointing"):
        return saved[0] + counts.layers * kept + layer
    return saved[0] + (counts.layers - 1) * layer


def _saved(config: Any, layers: int, shape: tuple[int, int], autocast: bool) -> float:
    """Bytes that a forward pass of `layers` layers keeps for the backward one, beside weights.

    Raises:
        ConfigError: the family's code cannot be counted without weights.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register("ttc_counted", _counted_attention)
    AttentionMaskInterface.register("ttc_counted", lambda *given, **options: None)
    square = (shape[0], 1, shape[1], shape[1])  # a mask that is there is not looked into; some families read rows alone
    failure: Exception | None = None
    # products that are grouped by experts exist for bf16 alone where there are no numbers
    for dtype, mask in itertools.product((torch.float32, torch.bfloat16), (square, shape)):
        try:
            num_bytes = _kept(_fake(config, layers).to(dtype).train(), shape, torch.zeros(mask, device="meta"))
        except (RuntimeError, TypeError, ValueError) as exc:
            failure = exc
            continue
        return num_bytes * (4 / dtype.itemsize) * (_BF16 if autocast else 1.0)
    raise ConfigError(
        f"the memory of a model of the family {config.model_type} cannot be counted ({failure}): train it without a "
        "plan"
    ) from failure


def _kept(model: Any, shape: tuple[int, int], mask: torch.Tensor) -> float:
    """Bytes that a forward pass of a model without numbers keeps, beside its weights."""
    model.config._attn_implementation = "ttc_counted"
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
        held.append(tensor)
        return tensor

    held: list[torch.Tensor] = []
    ids = torch.zeros(shape, dtype=torch.long, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    return float(sum(size for place, size in storages.items() if place not in weights))


_BF16 = 0.6
"""What of the bytes in fp32 is left under autocast: matrices in bf16, norms and the residual stream in fp32."""


class _Counted(torch.autograd.Function):
    """Attention that keeps what fused kernels keep: queries, keys, values and outputs."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NotImplementedError("counted, never computed")


def _counted_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    output: torch.Tensor = _Counted.apply(query, key, value)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2).contiguous(), None


def _engine_gb(spec: str, counts: ModelCounts, limit: float | None) -> float:
    """The engine's part of a device: its share, or its weights and as much again for keys and values.

    Separate servers take nothing of the trainer's device.
    """
    _, options = parse_spec(spec)
    if "base_url" in options:
        return 0.0
    if "gpu_memory_utilization" in options and limit is not None:
        return float(str(options["gpu_memory_utilization"])) * limit
    return (8.0 if options.get("dtype") == "float32" else 4.0) * counts.parameters / GB


_SIZES = "row sizes"
"""No field of a stage: the tokens of each row of its file, of a pair those of both sides."""


def _sizes(kind: str, fields: Mapping[str, Any], folder: Path) -> list[tuple[int, ...]]:
    """Tokens of the rows that a stage reads of a file alone; none where only the run knows."""
    from train.base.models import turn_tokenizer
    from train.examples.examples import Example, read_examples
    from train.examples.pairs import read_pairs
    from train.examples.rows import is_marked, is_remote
    from ttc.engines.shared.text import Text

    path = Path(str(fields.get("data"))).expanduser()
    if kind not in ("sft", *_PAIRS) or "data" not in fields or fields.keys() & {"corpus", "rollouts"}:
        return []
    if is_remote(path) or (kind in _PAIRS and is_marked(path)):
        return []
    text, end = Text(folder), int(turn_tokenizer(folder).eos_token_id)

    def size(example: Example) -> int:
        return len(example.prompt_ids) + len(example.token_ids)

    if kind == "sft":
        return [(size(example),) for example in read_examples(path, text, end)]
    return [(size(pair.chosen), size(pair.rejected)) for pair in read_pairs(path, text, end)]


def _most_learnt(fields: Mapping[str, Any], rows: int) -> int:
    """Most tokens of so many rows, drawn epoch by epoch from those that are not held out."""
    sizes = sorted(map(sum, fields[_SIZES]), reverse=True)
    epochs, rest = divmod(rows, max(int(len(sizes) * (1 - float(fields.get("held_out_share") or 0))), 1))
    return epochs * sum(sizes) + sum(sizes[:rest])


def _pass(kind: str, fields: Mapping[str, Any], device: str) -> tuple[int, int]:
    """Rows of one pass, each as long as it may be, and their length: a row, or a pair, may be longer than a pass."""
    sizes = [size for row in fields.get(_SIZES) or () for size in row]
    length, each = max(sizes) if sizes else _PROMPT + _longest(fields), 2 if kind in _PAIRS else 1
    rows = _tokens_of_pass(fields, device) // (each * length)
    return each * max(min(rows, int(fields["rows"])) if sizes else rows, 1), length


def _tokens_of_pass(fields: Mapping[str, Any], device: str) -> int:
    return pass_tokens(fields.get("micro_tokens"), torch.device(device))


def _longest(fields: Mapping[str, Any]) -> int:
    """Most tokens of a completion."""
    if fields.get("max_tokens"):
        return int(fields["max_tokens"])
    task = fields.get("task")
    return make_task(task).sampling.max_tokens if isinstance(task, str) else 1024


def _tokens(kind: str, fields: Mapping[str, Any]) -> tuple[int, int | None, int]:
    """Steps, most tokens sampled and most tokens trained on, prompts counted once each time."""
    longest = _longest(fields)
    if kind == "sample":
        return 1, int(fields["n"]) * int(fields.get("limit") or 7500) * longest, 0
    steps = int(fields["steps"])
    if kind not in _LEARNERS:
        each = 2 if kind in _PAIRS else 1
        most = None if kind == "prm" and fields.get("task") else 0  # how many steps are labelled is not known before
        rows = steps * int(fields.get("rows") or 32)
        return steps, most, _most_learnt(fields, rows) if fields.get(_SIZES) else rows * each * (_PROMPT + longest)
    rollouts = steps * int(fields["prompts"]) * int(fields["n"])
    passes = int(fields.get("epochs") or 1)
    return steps, rollouts * longest, passes * rollouts * (_PROMPT + longest)


def _hours(kind: str, fields: Mapping[str, Any], cost: StageCost, counts: ModelCounts, speed: Speed) -> float:
    """Hours at the measured speeds: sampling, and 6 operations per parameter and token (8 when computed again)."""
    passes = 6 + 2 * bool(fields.get("checkpointing")) + (4 if kind in _LEARNERS else 0)
    return ((cost.sampled or 0) / speed.tokens + passes * counts.parameters * cost.trained / speed.flops) / 3600


def probe(folder: Path, device: str) -> Speed:
    """Measure an update of 256 tokens and 64 sampled tokens, seconds each."""
    import asyncio
    import time

    from train.base.models import load_model
    from train.base.stage import Setting
    from train.measure.measure import open_engine
    from train.update.logprobs import token_logprobs
    from ttc.core import Prompt, Sampling

    model = load_model(folder, device)
    ids = torch.full((1, 257), 5, device=device)

    def update() -> None:
        token_logprobs(model, ids, torch.ones(1, 256, dtype=torch.bool, device=device)).logprobs.sum().backward()
        model.zero_grad()
        if device != "cpu":
            torch.cuda.synchronize()

    def seconds(work: Callable[[], Any]) -> float:
        work()
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    flops = 6 * 256 * sum(p.numel() for p in model.parameters()) / seconds(update)
    engine = open_engine(folder, Setting(folder, folder, 0, device, torch.get_num_threads(), print))
    prompt = Prompt(text="", token_ids=(5,) * 32, rendered_len=32, path=(), problem_id="probe")

    async def sample() -> int:
        draws = await engine.generate(prompt, Sampling(max_tokens=16, seed=0), range(4), lambda usage: None)
        return sum(len(draw.token_ids) for draw in draws)

    async def both() -> float:
        await sample()
        began = time.perf_counter()
        number = await sample()
        rate = number / (time.perf_counter() - began)
        await engine.close()
        return rate

    return Speed(flops, asyncio.run(both()))


def lines(costs: Sequence[StageCost]) -> Iterator[str]:
    """The plan as text."""
    for cost in costs:
        hours = "" if cost.hours is None else f", {cost.hours:.3g} h at the probe's speed"
        draws = "draws for labels, at most" if cost.sampled is None else f"at most {cost.sampled:,} tokens sampled and"
        tokens = f"{draws} {cost.trained:,} trained"
        yield f"{cost.name}: {counted(cost.steps, 'step')}, {tokens}{hours}"
        parts = ", ".join(f"{name} {storage(size * GB)}" for name, size in cost.memory.items())
        of = "" if cost.limit is None else f" of {cost.limit:g} GB"
        yield f"    {storage(cost.total * GB)}{of} a device: {parts}"
        if cost.fits:
            continue
        if not cost.fix:
            yield "    DOES NOT FIT, and no setting of one device helps: take more devices, or a smaller model"
            continue
        kind = cost.name.partition("-")[0]
        fixes = " ".join(f"--set {kind}.{name}={str(value).lower()}" for name, value in cost.fix.items())
        yield f"    DOES NOT FIT; it does with {fixes}"


def _fields(step: RecipeStep) -> dict[str, Any]:
    """The fields of a stage, those at their defaults among them, by their types."""
    known = {**options_of(STAGES.load(step.kind)), **step.values}
    return {name: value for name, value in known.items() if value is not None}


def config_of(folder: Path) -> Any:
    """The configuration of a model folder; raises ConfigError for one without."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    return AutoConfig.from_pretrained(folder)
