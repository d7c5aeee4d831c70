"""Models in training: created or loaded, scored by a known head, and written so that every engine reads them.

A folder is a Hugging Face folder (config, safetensors, tokenizer with its chat template, generation config). Training
keeps fp32 weights, except frozen ones stored in bf16; a folder may be written in another type. Nothing from a folder is
ever executed.

Models loaded here have no dropout, whatever their configuration says, and no noise in expert routing: an update is a
pure function of weights and rows, so that a run repeats and resumes bit for bit, and an update's log-probabilities are
those of the sampler. Written folders state 0, and hold plain weights: adapters are merged, split weights gathered
(`train.base.weights`).

Some families scale or cap their head's output (`HEADS`): all scoring uses `logits_of`, which does the same. A loaded
model's own forward pass on a few tokens must agree with what an update computes of them, or the model is refused: a
family may change its head's output, attend to later tokens, or draw at random in training (`benchmarks.families_train`
compares all families). Cost: six passes over these tokens.

Attention uses torch's fused kernel, in fp32 on CPUs whose bf16 kernel is slower: without AMX its gradient takes longer
in bf16, so under autocast queries, keys and values are converted to fp32 there, which also rounds less. A gradient of
SmolLM2 takes 0.83 of the time (`benchmarks.train_step`). Memory: the three in fp32, kept for the gradient.

Left out: quantised weights.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from train.base.weights import inner, merged_state
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
        ConfigError: the folder cannot be read or lacks weights, or an update would compute other numbers than the model
        itself; names the folder.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    model = loaded("AutoModelForCausalLM", folder, dtype=dtype).to(device)
    own = _written(model, folder)
    _set_noise(model, 0.9)  # so large that it shows on a few tokens if it acts
    noisy = _written(model, folder)
    without_dropout(model)
    speed_attention(model, device)
    if checkpointing:
        checkpoint_layers(model)
    check_passes(model, folder, own, noisy)
    return model


def loaded(kind: str, folder: Path, *, new_head: bool = False, **options: Any) -> Any:
    """The model of a folder by a class of transformers; only its head may be new, or of another size: it is random.

    Raises:
        ConfigError: the folder cannot be read, or lacks other weights, which would be random, too; names them.
    """
    import transformers

    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # else a table of missing weights is printed, a new head included
    try:
        options |= {**attention_options(folder), "ignore_mismatched_sizes": True}
        model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **options)
    except Exception as exc:  # a damaged folder raises whatever its files raise
        raise ConfigError(f"{folder} holds no model that transformers can read: {type(exc).__name__}: {exc}") from exc
    finally:
        transformers.logging.set_verbosity(level)
    body = f"{model.base_model_prefix}."
    random = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    lacking = sorted(name for name in random if name.startswith(body) or not new_head)
    if lacking:
        names = ", ".join(lacking[:4]) + (", .." if len(lacking) > 4 else "")
        raise ConfigError(
            f"{folder} has no weights for {names}, which would be random, or of another size than in config.json: "
            "put back what is missing"
        )
    return model


def checkpoint_layers(model: Any) -> None:
    """Compute activations again in the backward pass instead of keeping them (Chen et al. 2016, arXiv 1604.06174)."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its name since transformers 5.24
    try:
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    except ValueError as exc:
        raise ConfigError(
            f"checkpointing: transformers cannot compute a {model.config.model_type} model's activations again: leave "
            "checkpointing out, and set micro_tokens lower if memory is short"
        ) from exc


def without_dropout(model: Any) -> None:
    """Set all dropout rates and router noise to 0: in the layers of `model` and in the configurations they read."""
    _set_noise(model, 0.0)


def silenced(model: Any, folder: Path) -> Any:
    """A model that only reads, without dropout and noise; raises ConfigError where these act then, too."""
    own = _written(model, folder)
    without_dropout(model)
    if not torch.allclose(own, _written(model, folder), rtol=1e-3, atol=1e-3 * float(own.abs().max())):
        raise _untrainable(model, folder, "reads with its rates of noise, too, which training sets to 0")
    return model


def _set_noise(model: Any, rate: float) -> None:
    configs = {id(layer.config): layer.config for layer in model.modules() if hasattr(layer, "config")}
    for owner in (*model.modules(), *configs.values()):
        numbers = {name for name, value in vars(owner).items() if isinstance(value, float)}
        dropped = {name for name in numbers if "drop" in name or "jitter" in name}
        if isinstance(owner, torch.nn.modules.dropout._DropoutNd):
            dropped.add("p")
        for name in dropped:
            setattr(owner, name, rate)


def speed_attention(model: Any, device: str) -> None:
    """Make a model with torch's attention compute it in fp32 on devices where training is faster that way.

    A model whose own code asks for this kind by its name (Falcon; those that attend to their best tokens alone, as
    DeepSeek V3.2), or that has another kind, is not changed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    own_code = inspect.getsource(inspect.getmodule(type(model)) or type(model))
    if re.search(r'_attn_implementation (==|in) .*"sdpa"', own_code):
        return
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
    "lm_head_multiplier": lambda logits, value: logits * value,  # Falcon-H1
    "logit_scale": lambda logits, value: logits * value,  # Cohere
    "final_logit_softcapping": lambda logits, value: torch.tanh(logits / value) * value,  # Gemma 2
    "logits_soft_cap": lambda logits, value: torch.tanh(logits / value) * value,  # RecurrentGemma
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


NEAR = {torch.float32: 1e-3}
"""Share of the largest number by which two ways to the same numbers may differ, by type; 0.02 in a narrower one."""


def _probe(model: Any) -> torch.Tensor:
    """A text of three tokens, and two behind it: (1, 5)."""
    return torch.arange(1, 6, device=next(model.parameters()).device)[None]


@contextmanager
def _own_code(model: Any, folder: Path) -> Iterator[None]:
    """Run a family's own code without a gradient; what it raises refuses the family."""
    try:
        with torch.no_grad():
            yield
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, TypeError, ValueError, RuntimeError, AssertionError) as exc:
        raise _untrainable(model, folder, f"does not run as a decoder of text ({type(exc).__name__}: {exc})") from exc


def _untrainable(model: Any, folder: Path, why: str) -> ConfigError:
    return ConfigError(f"{folder}: model_type {model.config.model_type!r} {why}: take a model of another family")


def _written(model: Any, folder: Path) -> torch.Tensor:
    """The model's own logits of a text, as when it writes: (1, 3, V)."""
    with _own_code(model, folder):
        logits: torch.Tensor = model(input_ids=_probe(model)[:, :3], use_cache=False).logits.float()
        return logits


def check_passes(model: Any, folder: Path, own: torch.Tensor, noisy: torch.Tensor) -> None:
    """Raise ConfigError unless an update computes the logits (1, 3, V) that the model had of its `own`.

    An update reads the last hidden states, in train mode, of a text with others behind it (padding). `noisy` are the
    logits under high rates of dropout and noise, which must not act when a model writes.
    """
    ids, names = _probe(model), ", ".join(HEADS)

    def ours(ids: torch.Tensor) -> torch.Tensor:
        return logits_of(model)(model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :3]).float()

    now = _written(model, folder)  # with the attention of training, which rounds a narrow type otherwise
    with _own_code(model, folder):
        alone, prefix = ours(ids[:, :3]), ours(ids)
        model.train()
        training = ours(ids)
        model.eval()
    near = NEAR.get(model.dtype, 0.02)
    far = NEAR.get(model.dtype, 0.1)  # in a narrow type, texts of other lengths are also rounded, and routed, otherwise
    for why, first, second, share in (
        ("writes with its rates of noise, too, which training sets to 0: it would be another model", own, noisy, near),
        (
            f"changes the output of its head in a way that this trainer does not know (it knows {names} of "
            "config.json), so it would train on a wrong loss", now, alone, near,
        ),
        ("attends to later tokens, so it would learn to copy what it reads", now, prefix, far),
        ("computes other numbers in training than when it writes", now, training, far),
    ):  # fmt: skip
        if float((first - second).abs().max()) > share * float(own.abs().max()):
            raise _untrainable(model, folder, why)


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
