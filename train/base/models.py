"""Models in training: created or loaded, adapted, split, and written so that every engine reads them.

A folder is a Hugging Face folder (config, safetensors, tokenizer with its chat template, generation config). Training
keeps fp32 weights, except frozen ones stored in bf16; a folder may be written in another type. Nothing from a folder is
ever executed.

Low-rank adapters train a few numbers beside frozen weights. Hu et al. 2021 (arXiv:2106.09685): a linear layer W x
becomes W x + (alpha / rank) B A x with A random and B zero, so training starts at the model itself. All linear layers
but the head get one (Dettmers et al. 2023 found that to matter more than the rank). Weights that leave the trainer
(pushed to an engine, saved to a folder) are merged under the names of the plain model, so nothing else needs to know of
adapters. Cost: two thin matrix products per layer; the optimiser keeps moments only of the adapters. We do not use
peft, because its wrapper changes the meaning of `base_model` and of the state's names, on which scoring and weight sync
rely.

A model that one device cannot hold with its moments is split over the processes by FSDP2. Zhao et al. 2023
(arXiv:2304.11277), in torch's form by parameter (`fully_shard`): every process keeps its part of each weight, gradient
and moment; a layer's weights are gathered while it computes. Scoring, a function passed in, goes through `forward`,
around which gathering happens. Weights that leave the trainer (for an engine, checkpoints, folders) are gathered whole,
by all processes together. Processes must run equally many forward passes, so an update needs at least one row for each.
Cost: two gathers and one scatter of the weights per micro-batch.

Models loaded here have no dropout, whatever their configuration says, and no noise in expert routing: an update is a
pure function of weights and rows, so that a run repeats and resumes bit for bit, and an update's log-probabilities are
those of the sampler. Written folders state 0. Adapters are also written separately (`save_adapter`);
`train.base.adapters` merges them elsewhere.

Some families scale or cap their head's output (`HEADS`): all scoring uses `logits_of`, which does the same. A loaded
model's own forward pass on a few tokens must agree with it, or the model is refused. Cost: two passes over these
tokens.

Attention uses torch's fused kernel, in fp32 on CPUs whose bf16 kernel is slower: without AMX its gradient takes longer
in bf16, so under autocast queries, keys and values are converted to fp32 there, which also rounds less. A gradient of
SmolLM2 takes 0.83 of the time (`benchmarks.train_step`). Memory: the three in fp32, kept for the gradient.

Left out: quantised weights; sharding critics and references, and folders too large for one process's memory.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.world import World
from ttc.durable import replace_text, replaced_folder
from ttc.engines.shared.compute import attention_options, cpu_has_amx
from ttc.engines.shared.text import Text, in_parts, roles_in_parts
from ttc.errors import ConfigError

_UPCAST = "ttc_fp32"
MASKED = ("sdpa", _UPCAST)
"""Names of attention that takes a mask of ours and writes no scores out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a new Qwen3 model; `head_dim` 64 is the smallest that vLLM runs on a CPU."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    mlp: int = 192

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        for name, value in asdict(self).items():
            if value < 1:
                raise ConfigError(f"model.{name} must be at least 1, got {value}")
        if self.heads % self.kv_heads:
            raise ConfigError(f"model.heads ({self.heads}) must be a multiple of model.kv_heads ({self.kv_heads})")


def new_model(shape: Shape, tokenizer: Any, seed: int, vocabulary: int | None = None) -> Any:
    """Return a causal language model with random fp32 weights from `seed`; embeddings are tied.

    `vocabulary` is its number of ids; None is the tokenizer's.
    """
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=vocabulary or len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp,
        tie_word_embeddings=True,
        max_position_embeddings=tokenizer.model_max_length,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def stored_type(folder: Path) -> torch.dtype:
    """The type of a folder's weights by its configuration: bf16, or fp32 for anything else."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    named = config.get("dtype", config.get("torch_dtype"))
    return torch.bfloat16 if named == "bfloat16" else torch.float32


def load_model(folder: Path, device: str, *, checkpointing: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    """Load a folder for training, in fp32, without dropout.

    Raises:
        ConfigError: the folder cannot be read or lacks weights, or the model has an unknown kind of head; names the
        folder.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    model = loaded("AutoModelForCausalLM", folder, dtype=dtype)
    without_dropout(model)
    speed_attention(model, device)
    if checkpointing:
        checkpoint_layers(model)
    model = model.to(device)
    check_head(model, folder)
    return model


def loaded(kind: str, folder: Path, *, new_head: bool = False, **options: Any) -> Any:
    """The model of a folder by a class of transformers; only its head may be new, and is then random.

    Raises:
        ConfigError: the folder cannot be read, or lacks other weights, which would be random, too; names them.
    """
    import transformers

    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # else a table of missing weights is printed, a new head included
    try:
        options |= attention_options(folder)
        model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **options)
    except Exception as exc:  # a damaged folder raises whatever its files raise
        raise ConfigError(f"{folder} holds no model that transformers can read: {type(exc).__name__}: {exc}") from exc
    finally:
        transformers.logging.set_verbosity(level)
    body = f"{model.base_model_prefix}."
    lacking = sorted(name for name in report["missing_keys"] if name.startswith(body) or not new_head)
    if lacking:
        names = ", ".join(lacking[:4]) + (", .." if len(lacking) > 4 else "")
        raise ConfigError(f"{folder} has no weights for {names}, which would be random: put back what is missing")
    return model


def checkpoint_layers(model: Any) -> None:
    """Compute activations again in the backward pass instead of keeping them (Chen et al. 2016, arXiv 1604.06174)."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its name since transformers 5.24
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def without_dropout(model: Any) -> None:
    """Set all dropout rates and router noise to 0: in the layers of `model` and in the configurations they read."""
    configs = {id(layer.config): layer.config for layer in model.modules() if hasattr(layer, "config")}
    for owner in (*model.modules(), *configs.values()):
        numbers = {name for name, value in vars(owner).items() if isinstance(value, float)}
        dropped = {name for name in numbers if "drop" in name or "jitter" in name}
        if isinstance(owner, torch.nn.modules.dropout._DropoutNd):
            dropped.add("p")
        for name in dropped:
            setattr(owner, name, 0.0)


def speed_attention(model: Any, device: str) -> None:
    """Make a model with torch's attention compute it in fp32 on devices where training is faster that way.

    A model whose own code names its kinds of attention (Falcon), or that has another kind, is not changed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    takes = model._supports_attention_backend and model.config._attn_implementation == "sdpa"
    if not takes or torch.device(device).type != "cpu" or cpu_has_amx():
        return
    AttentionInterface.register(_UPCAST, _upcast)
    AttentionMaskInterface.register(_UPCAST, sdpa_mask)
    model.set_attn_implementation(_UPCAST)


def _upcast(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """`sdpa` on queries, keys and values in fp32: (B, heads, T, D) -> (B, T, heads, D) in the type of the queries."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    mask = attention_mask
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    with torch.autocast(query.device.type, enabled=False):
        states, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **options)
    return states.to(query.dtype), None


HEADS: Mapping[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "logits_scaling": lambda logits, value: logits / value,  # Granite
    "logit_scale": lambda logits, value: logits * value,  # Cohere
    "final_logit_softcapping": lambda logits, value: torch.tanh(logits / value) * value,  # Gemma 2
}
"""What becomes of the head's output by a number of the configuration, where it is there."""


def logits_of(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function from last hidden states (.., H) to logits (.., V), as in the model's own forward pass."""
    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    rules = [(rule, getattr(config, name)) for name, rule in HEADS.items() if getattr(config, name, None) is not None]

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = head(hidden)
        for rule, value in rules:
            output = rule(output, value)
        return output

    return logits


_NEAR = {torch.float32: 1e-3}
"""Share of the largest logit by which two ways to the same logits may differ, by type; 0.02 in a narrower one."""


@torch.no_grad()
def check_head(model: Any, folder: Path) -> None:
    """Raise ConfigError if the model's own logits differ from those of `logits_of`."""
    ids = torch.arange(1, 4, device=next(model.parameters()).device)[None]
    own = model(input_ids=ids, use_cache=False).logits.float()
    ours = logits_of(model)(model.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
    if float((own - ours).abs().max()) > _NEAR.get(model.dtype, 0.02) * float(own.abs().max()):
        raise ConfigError(
            f"{folder}: model_type {model.config.model_type!r} changes the output of its head in a way that this "
            f"trainer does not know (it knows {', '.join(HEADS)} of config.json), so it would train on a wrong loss: "
            "take a model of another family"
        )


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder as engines read it.

    Without an end of text it takes the model's; without padding it pads with its end of text, since masks use lengths.

    Raises:
        ConfigError: no tokenizer, or nothing that ends a text; names the folder.
    """
    text = Text(folder)
    tokenizer = text.tokenizer
    if not text.eos_ids:
        raise ConfigError(
            f"{folder} names no end-of-text token, so nothing teaches a model to stop: set eos_token in its "
            "tokenizer_config.json"
        )
    if tokenizer.eos_token_id is None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(text.eos_ids[0])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


_PROBE = "zqx"
"""A content that no template writes by itself."""


def turn_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, with the token that ends a turn as its end of text.

    That is what the template writes after an assistant's turn, if engines stop at it, else the tokenizer's own. A model
    saved with it stops where it was taught to.
    """
    tokenizer = load_tokenizer(folder)
    tail = tail_of_turn(tokenizer)
    if tail and tail[0] in Text(folder).eos_ids:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(tail[0])
    return tokenizer


def tail_of_turn(tokenizer: Any) -> tuple[int, ...]:
    """Ids that the template writes after an assistant's content; empty without a template, or if it refuses."""
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        return ()
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
    try:
        conversation = tokenizer.apply_chat_template(in_parts(plain, roles_in_parts(tokenizer)), tokenize=False)
    except TemplateError:
        return ()
    return tuple(tokenizer.encode(str(conversation).rpartition(_PROBE)[2].lstrip(), add_special_tokens=False))


def save_model(
    model: Any, tokenizer: Any, folder: Path, dtype: torch.dtype = torch.float32, *, writes: bool = True
) -> None:
    """Write weights (adapters merged), configuration, tokenizer, and the generation config of the loaded model.

    Generation stops where it stopped before (at the template's end of a turn, as every engine reads it), and at the
    tokenizer's end of text.

    All processes of a model with split weights must call; without `writes` this one only helps to gather them.
    """
    from transformers import GenerationConfig

    state, model = merged_state(model, "cpu"), inner(model)  # beside the weights there may be no room for merged ones
    if not writes:
        return
    copied = copy.copy(model)
    generation = _generation(model, tokenizer)
    copied.generation_config = GenerationConfig()  # transformers refuses to write some of those that it reads
    with replaced_folder(folder) as fresh:
        write_weights(copied, state, fresh, dtype)
        save_tokenizer(tokenizer, fresh)
        replace_text(fresh / "generation_config.json", json.dumps(generation, indent=2, sort_keys=True) + "\n")


def write_weights(model: Any, state: Mapping[str, torch.Tensor], folder: Path, dtype: torch.dtype) -> None:
    """Write `state` in one type, and a configuration that names it, whatever types `model` holds its weights in.

    Weights that are tied in `model` are cast together, so that transformers sees that they are one and writes it once.
    """
    owners: dict[int, str] = {}
    tied = {name: owners.setdefault(id(one), name) for name, one in model.named_parameters(remove_duplicate=False)}
    casts = {name: tensor.to(dtype) for name, tensor in state.items() if tied.get(name, name) == name}
    model.save_pretrained(folder, state_dict={name: casts[tied.get(name, name)] for name in state})
    place = folder / "config.json"
    config = json.loads(place.read_text(encoding="utf-8")) | {"dtype": str(dtype).removeprefix("torch.")}
    replace_text(place, json.dumps(config, indent=2, sort_keys=True) + "\n")


_OF_READING = {"backend", "is_local", "local_files_only"}
"""Fields that transformers writes of how a tokenizer was read."""
_ELSEWHERE = {"added_tokens_decoder", "additional_special_tokens", "chat_template"}
"""Fields whose content transformers writes to other files, or under other names."""


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer with the settings of the folder that it was read from, except for later changes.

    This keeps its class: transformers writes that of its own loader, which versions before 5 do not know.
    """
    tokenizer.save_pretrained(folder)
    place = folder / "tokenizer_config.json"
    origin = Path(tokenizer.name_or_path) / place.name
    before = json.loads(origin.read_text(encoding="utf-8")) if origin.is_file() else {}
    settings = {name: value for name, value in before.items() if name not in _ELSEWHERE}
    after = json.loads(place.read_text(encoding="utf-8"))
    settings |= {name: value for name, value in after.items() if name not in _OF_READING}
    settings |= {name: before[name] for name in ("tokenizer_class",) if name in before}
    replace_text(place, json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


_FROM_MODEL = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")
"""What of generation the configuration of a model decides, where it came without one of its own."""


def _generation(model: Any, tokenizer: Any) -> dict[str, Any]:
    """The model's own generation config, with the tokenizer's end of text added to its stop tokens, ascending."""
    own = model.generation_config.to_diff_dict()
    if own.pop("_from_model_config", False):  # it came without one
        own = {name: own[name] for name in _FROM_MODEL if name in own}
    before = own.get("eos_token_id")
    stops = {*(before if isinstance(before, list) else (before,)), tokenizer.eos_token_id} - {None}
    ids = sorted(stops)
    pad_id = own.get("pad_token_id")
    pad_id = tokenizer.pad_token_id if pad_id is None else pad_id
    return {**own, "eos_token_id": ids[0] if len(ids) == 1 else ids, "pad_token_id": pad_id}


def num_parameters(model: Any) -> int:
    """Count the parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


class Sharded(torch.nn.Module):
    """The model, and the scoring of tokens as its forward pass."""

    def __init__(self, model: Any, score: Callable[..., Any]) -> None:
        """`score(model, ..)` gives log-probabilities, as `train.update.logprobs.token_logprobs` does."""
        super().__init__()
        self.model, self._score = model, score

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    def forward(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        """What `score` gives, as a tuple, whose tensors gathering follows."""
        scored = self._score(self.model, *arguments, **options)
        tensors = (scored.logprobs, scored.entropy)
        return tensors if scored.compared is None else (*tensors, scored.compared)


def shard(model: Any, world: World, score: Callable[..., Any]) -> Any:
    """Split the weights of `model` over `world`, layer by layer; with one process, return the model itself.

    `score` is what the forward pass of the split model does: see `Sharded`.
    """
    if world.size == 1:
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    sharded = Sharded(model, score)
    # gathered again after every pass, so that a pass without a backward one leaves no old weights behind
    fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
    return sharded


def layers_of(model: Any) -> torch.nn.ModuleList:
    """The layers of a model, whatever its family calls them: the list that holds most of its weights.

    Raises:
        ConfigError: it has none.
    """
    lists = [module for module in model.base_model.modules() if isinstance(module, torch.nn.ModuleList)]
    if not lists:
        raise ConfigError(
            f"a model of the family {model.config.model_type} has no list of layers to split by: no shard"
        )
    return max(lists, key=num_parameters)


def inner(model: Any) -> Any:
    """The model itself."""
    return model.model if isinstance(model, Sharded) else model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be split; every process must call this."""
    gather = getattr(tensor, "full_tensor", None)
    all_of_it: torch.Tensor = tensor if gather is None else gather()
    return all_of_it


def whole_tree(value: Any) -> Any:
    """`whole` for every tensor in nested dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        return whole(value)
    if isinstance(value, Mapping):
        return {name: whole_tree(item) for name, item in value.items()}
    return [whole_tree(item) for item in value] if isinstance(value, list) else value


def load_whole(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Copy whole tensors, named as `merged_state` names them, into a model whose weights may be split."""
    with torch.no_grad():
        for name, own in inner(model).state_dict().items():
            own.copy_(spread(state[name], own))


def spread(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`tensor` split like `like`; unchanged if `like` is not split or has another shape."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    split: Any = like
    part: DTensor = distribute_tensor(tensor.to(split.device), split.device_mesh, split.placements)
    return part


class LoraLinear(torch.nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, base: torch.nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        limit = 1 / math.sqrt(base.in_features)
        start = (torch.rand(rank, base.in_features, generator=generator) * 2 - 1) * limit
        self.down = torch.nn.Parameter(start.to(base.weight.device))
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output with the adapter's: (.., in) -> (.., out)."""
        output: torch.Tensor = self.base(x)
        # The adapter works in the type of the pass, and is scaled where it is narrow, not over (.., out).
        low = self.scale * torch.nn.functional.linear(x, self.down.to(x.dtype)).flatten(0, -2)  # (N, rank)
        return torch.addmm(output.flatten(0, -2), low, self.up.T.to(output.dtype)).view_as(output)

    @torch.no_grad()
    def merged(self) -> torch.Tensor:
        """The weight of an equivalent plain layer: (out, in)."""
        return whole(self.base.weight) + self.scale * (whole(self.up) @ whole(self.down))


def add_lora(model: Any, rank: int, alpha: float, seed: int, head: torch.nn.Module | None = None) -> None:
    """Freeze `model` and put an adapter on every linear layer but the head, in place; `seed` initialises them.

    A separate `head`, of a scoring model, is still trained in full.

    Raises:
        ConfigError: rank < 1, alpha <= 0, or a model without such layers.
    """
    if rank < 1 or not alpha > 0:
        raise ConfigError(f"lora must be a rank of at least 1 with lora_alpha above 0, got {rank} and {alpha}")
    left_out = (model.get_output_embeddings(), head)
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, torch.nn.Linear) and all(child is not one for one in left_out)
    ]
    if not places:
        raise ConfigError("lora: the model has no linear layers to put adapters on")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if head is not None:
        head.requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    for parent, name, child in places:
        setattr(parent, name, LoraLinear(child, rank, alpha, generator))


def merged_state(model: Any, device: str | None = None) -> dict[str, torch.Tensor]:
    """The model's whole state with all adapters merged, under the names of the plain model; moved to `device` if given.

    All processes of a model with split weights must call this.
    """
    model = inner(model)
    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        owner, _, last = name.rpartition(".")
        if owner in adapted:
            continue  # the adapter's own tensors
        layer = owner.removesuffix(".base")
        merges = layer in adapted and owner.endswith(".base")
        plain = f"{layer}.{last}" if merges else name
        weight = adapted[layer].merged() if merges and last == "weight" else whole(tensor.detach())
        state[plain] = weight if device is None else weight.to(device)
    return state


ADAPTER = "adapter"
"""What the folder of an adapter is called beside the weights that it was merged into."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_ORIGIN = "origin.json"
"""Beside peft's two files: which weights the adapter belongs to, and how a reward model of it is read."""
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"


def save_adapter(model: Any, folder: Path, *, task: str = "CAUSAL_LM", writes: bool = True) -> None:
    """Write the adapters of `model`, and other trained weights, to `folder`/adapter; nothing without adapters.

    In bf16 and in peft's layout, which other programs read: 5 MB for rank 8 of a model of 135 M. Other trained weights
    (the head of a reward model) have their own names; the digest of the frozen weights is `base` in a separate file,
    since the order of several metadata entries in safetensors changes from run to run. All processes of a model with
    split weights must call; without `writes` this one only helps to gather them.
    """
    from safetensors.torch import save_file

    model = inner(model)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    if not layers:
        return
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        tensors |= {f"{PREFIX}{name}{DOWN}": whole(layer.down), f"{PREFIX}{name}{UP}": whole(layer.up)}
    own = {name for layer in layers for name in (f"{layer}.down", f"{layer}.up")}
    beside = {n: whole(p) for n, p in model.named_parameters() if p.requires_grad and n not in own}
    tensors |= {f"{PREFIX}{name}": tensor for name, tensor in beside.items()}
    frozen = ((n.replace(".base.", "."), whole(p)) for n, p in model.named_parameters() if not p.requires_grad)
    base = weights_digest(frozen)
    if not writes:
        return
    one = next(iter(layers.values()))
    rank = one.down.shape[0]
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "r": rank,
        "lora_alpha": one.scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "base_model_name_or_path": None,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in beside}) or None,
    }
    reading = getattr(model.config, "ttc_prm", None)
    origin = {"base": base} if reading is None else {"base": base, "ttc_prm": reading}
    stored = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    with replaced_folder(folder / ADAPTER) as fresh:
        save_file(dict(sorted(stored.items())), str(fresh / ADAPTER_WEIGHTS), metadata={"format": "pt"})
        replace_text(fresh / ADAPTER_CONFIG, json.dumps(config, indent=1) + "\n")
        replace_text(fresh / ADAPTER_ORIGIN, json.dumps(origin, indent=1) + "\n")


def weights_digest(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over names and values in fp32, in the order of names: the same for a model in bf16 and in fp32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights, key=lambda pair: pair[0]):
        digest.update(name.encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()
