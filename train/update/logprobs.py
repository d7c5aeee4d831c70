"""Log-probabilities of the tokens of a right-padded batch under a causal language model.

Sequences start at position 0 and are padded on the right, so causal attention never sees padding: no attention mask and
no position ids are needed, and a row's numbers do not depend on its neighbours. Only requested positions go through the
head, in chunks, so that (R, T, V) logits never exist at once. Unless all chunks together are small, a chunk's logits
are not kept but computed again for the gradient. Under a head that is not trained (adapters) nothing is computed again:
the derivative of a log-probability in its hidden state depends on its own logits alone, so it is computed while they
exist, and the backward pass only scales it. Temperature is 1, as for rollouts. A comparison over the whole vocabulary
(with a teacher) gets the same chunks. Memory: a few times the logits of a chunk; kept for the gradient are only hidden
states, or these derivatives. Cost: one more product with the head where that is trained.

A forward pass arranges rows in one of three ways:

    padded   one row per line, filled up on the right: causal attention never sees the padding, so no mask is needed
    packed   short rows end to end in lines of a given number of tokens (Krell et al. 2021, arXiv:2107.02027), placed
             first-fit, longest first
    shared   rows with the same beginning before the first wanted token (rollouts of a prompt, the two answers of a
             pair) follow one copy of that beginning: it is computed once, and its gradient is the sum of theirs

A token keeps the position of its own row, and a mask lets it see only its own row and its beginning, so the numbers are
those of padded rows (tests: to 1e-6). Packing without such a mask taught models to repeat themselves (open-r1 issue
520). Attention covers a whole line, and masked products are computed, too, so beginnings are shared only where this
saves a tenth of the multiplications. Left out: kernels that skip masked blocks; beginnings of beginnings; packing and
sharing in models with sliding windows or with layers that keep a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

from train.base.models import MASKED, NEAR, logits_of
from train.base.weights import Sharded, inner
from ttc.errors import ConfigError

_CHUNK = 8192
"""Most positions that go through the head at once."""
LOGITS = 1 << 26
"""Most logits that exist at once (256 MiB in fp32), as long as a chunk has `LEAST` positions."""
CACHED = 9 << 20
"""The same on a processor (36 MiB): glibc keeps blocks of up to 32 MiB when they are free, and larger ones never."""
LEAST = 64
_KEPT = 1 << 24
"""Logits of all positions together that are kept for the gradient (64 MiB in fp32); more are computed again."""
_COMPARED = 1024
"""The same where a whole vocabulary is compared."""

_WORTH = 0.9
"""Beginnings are shared where that leaves at most so much of the work."""

Compare: TypeAlias = Callable[[torch.Tensor, slice], torch.Tensor]
"""(log-probabilities (n, V), which of the wanted positions these are, row by row) -> one number each (n,)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """`logprobs` (R, T) nats with the gradient, 0 where not asked; `entropy` (R, T) nats, with it where asked.

    `compared` (R, T) is what a comparison gave, with the gradient; None without one.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    compared: torch.Tensor | None = None


def chunk_size(num_ids: int, device: str) -> int:
    """Positions whose logits of `num_ids` tokens exist at once on a type of device."""
    return max((CACHED if device == "cpu" else LOGITS) // num_ids, LEAST)


def token_logprobs(
    model: Any,
    ids: torch.Tensor,
    wanted: torch.Tensor,
    compare: Compare | None = None,
    *,
    packed: int = 0,
    moves: bool = False,
) -> Scored:
    """Log-probability of every wanted token given what stands before it.

    Args:
        model: a causal language model of transformers.
        ids: (R, L) token ids, padded on the right.
        wanted: (R, L - 1) bool; position t asks for ids[:, t + 1].
        compare: is given the log-probabilities of the whole vocabulary at the wanted positions, chunk by chunk.
        packed: lay rows end to end in lines of so many tokens, instead of padding them; 0: do not.
        moves: whether the entropy has a gradient, too.
    """
    if isinstance(model, Sharded):
        return Scored(*model(ids, wanted, compare, packed=packed, moves=moves))
    # hidden states (R, L - 1, H): position t predicts ids[:, t + 1]. Only the W wanted ones go on, row by row: (W, H).
    groups = families(ids, wanted) if packed else worth_sharing(model, ids, wanted)
    if groups:
        rows = laid_hidden(model, ids, wanted, groups, packed or max(family.size for family in groups))
    else:
        rows = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[wanted]
    targets = ids[:, 1:][wanted]  # (W,)
    head, logits = model.get_output_embeddings(), logits_of(model)

    size = min(_CHUNK if compare is None else _COMPARED, chunk_size(head.out_features, rows.device.type))
    places = [slice(start, min(start + size, rows.shape[0])) for start in range(0, rows.shape[0], size)]
    if rows.requires_grad and compare is None and not moves and not any(w.requires_grad for w in head.parameters()):
        pairs = [_frozen_head_logprobs(logits, rows[place], targets[place]) for place in places]
        return Scored(*_in_rows(wanted, pairs, 2))
    done: set[int] = set()

    def score(some: torch.Tensor, place: slice) -> tuple[torch.Tensor, ...]:
        normal = torch.log_softmax(logits(some).float(), -1)  # (n, V): only here is the vocabulary written out
        logprobs = normal.gather(1, targets[place, None])[:, 0]
        if not moves and place.start in done:  # computed again for the gradient, of which entropy has none
            entropy = torch.zeros_like(logprobs)
        else:
            with torch.set_grad_enabled(moves and torch.is_grad_enabled()):
                entropy = -(normal.exp() * normal).sum(-1)
        done.add(place.start)
        return (logprobs, entropy) if compare is None else (logprobs, entropy, compare(normal, place))

    parts: list[tuple[torch.Tensor, ...]] = []
    again = torch.is_grad_enabled() and (compare is not None or rows.shape[0] * head.out_features > _KEPT)
    for place in places:
        if again:
            parts.append(checkpoint(score, rows[place], place, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(score(rows[place], place))
    return Scored(*_in_rows(wanted, parts, 2 if compare is None else 3))


def _in_rows(wanted: torch.Tensor, parts: Sequence[tuple[torch.Tensor, ...]], count: int) -> list[torch.Tensor]:
    """Values of the wanted positions, chunk by chunk, at their places in (R, T); zeros without chunks."""
    empty = torch.zeros(wanted.shape, dtype=torch.float32, device=wanted.device)
    columns = [empty.masked_scatter(wanted, torch.cat(column)) for column in zip(*parts, strict=True)]
    return columns or [empty] * count


# -- under a head that is not trained ----------------------------------------------------------------------------------
class _ReadyGradient(torch.autograd.Function):
    """Values (n,) whose slopes (n, H) in the rows that they come of are known already."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return (gradients[0][:, None] * slopes).to(slopes.dtype), None, None


def _frozen_head_logprobs(
    logits_at: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (n,) with their gradient in `rows` (n, H), and entropies (n,) without one, computed once."""
    leaf = rows.detach().requires_grad_()
    logits = logits_at(leaf)  # (n, V)
    with torch.no_grad(), torch.autocast(rows.device.type, enabled=False):
        normal = torch.log_softmax(logits.float(), -1)
        logprobs = normal.gather(1, targets[:, None])[:, 0]
        likely = normal.exp()
        entropy = -torch.bmm(likely[:, None], normal[:, :, None])[:, 0, 0]
        # d log p / d logits: 1 at the token itself, less every token's probability
        slope = likely.neg_().scatter_add_(1, targets[:, None], torch.ones_like(likely[:, :1]))
        (slopes,) = torch.autograd.grad(logits, leaf, slope.to(logits.dtype))
    values: torch.Tensor = _ReadyGradient.apply(rows, logprobs, slopes)  # type: ignore[no-untyped-call]
    return values, entropy


# -- how rows lie in a pass --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Family:
    """Rows that lie behind one beginning: their numbers, its tokens, and the tokens that each has of its own."""

    rows: tuple[int, ...]
    common: int
    own: tuple[int, ...]

    @property
    def size(self) -> int:
        """Tokens in a line."""
        return self.common + sum(self.own)


def families(ids: torch.Tensor, wanted: torch.Tensor) -> list[Family]:
    """Rows with a wanted token, by what stands before the first of them, in the order of their first rows.

    Args:
        ids: (R, L) token ids, padded on the right.
        wanted: (R, L - 1) bool; position t asks for ids[:, t + 1].
    """
    places = torch.arange(1, ids.shape[1], device=ids.device)
    ends = (wanted * places).amax(1).tolist()  # tokens that are read: those up to the last wanted position
    firsts = wanted.long().argmax(1).tolist()
    texts = ids.tolist()
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(ends)):
        if ends[row]:
            groups.setdefault(tuple(texts[row][: firsts[row]]), []).append(row)
    return [
        Family(tuple(rows), len(common), tuple(ends[row] - len(common) for row in rows))
        for common, rows in groups.items()
    ]


def split(family: Family, most: int) -> Iterator[Family]:
    """The family in parts of at most `most` tokens, the beginning in each; a row that is longer is alone."""
    rows: list[int] = []
    own: list[int] = []
    for row, size in zip(family.rows, family.own, strict=True):
        if rows and family.common + sum(own) + size > most:
            yield Family(tuple(rows), family.common, tuple(own))
            rows, own = [], []
        rows.append(row)
        own.append(size)
    yield Family(tuple(rows), family.common, tuple(own))


def placed(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Which pieces share a line of at most `most` tokens; one that is longer is alone."""
    bins: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fits = next((b for b, left in enumerate(room) if lengths[row] <= left), None)
        if fits is None:
            bins.append([])
            room.append(max(most, lengths[row]))
            fits = len(bins) - 1
        bins[fits].append(row)
        room[fits] -= lengths[row]
    return bins


def check_packing(model: Any) -> None:
    """Raise ConfigError for a model whose layers see windows, or keep a state: a mask of ours would lose both.

    Or one that reads our positions or our mask in another way.
    """
    if _windowed(model):
        raise ConfigError(
            "packed: layers of this model have a sliding window or a state, which packing would lose; set packed = 0"
        )
    if not keeps_apart(model):
        raise ConfigError(f"packed: a {model.config.model_type} model mixes rows of one line; set packed = 0")


def worth_sharing(model: Any, ids: torch.Tensor, wanted: torch.Tensor) -> list[Family]:
    """The families of a batch where it pays to compute their beginnings once; else none.

    Cheap: it reads ids alone. Lines as long as the largest family are compared with padded rows.
    """
    groups = families(ids, wanted) if _takes_masks(model) else []
    num = sum(len(family.rows) for family in groups)
    if num == len(groups):
        return []
    config = model.config.get_text_config()
    width = max(family.size for family in groups)
    laid = (len(placed([family.size for family in groups], width)), width)
    padded = (num, max(family.common + max(family.own) for family in groups))
    if _work(config, *laid) > _WORTH * _work(config, *padded):
        return []
    return groups


def kindred(model: Any, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor | None:
    """A number for each row, (R,), the same within a family, if micro-batches should keep families together.

    Compared are whole families with rows in batches of like length, which pad little.
    """
    groups = families(ids, wanted) if _takes_masks(model) else []
    if sum(len(family.rows) for family in groups) == len(groups):
        return None
    config = model.config.get_text_config()
    apart = sum(_work(config, 1, family.common + own) for family in groups for own in family.own)
    if sum(_work(config, 1, family.size) for family in groups) > _WORTH * apart:
        return None
    numbers = torch.arange(ids.shape[0]) + len(groups)
    for number, family in enumerate(groups):
        numbers[list(family.rows)] = number
    return numbers


def _work(config: Any, lines: int, width: int) -> float:
    """Multiplications of a layer, up to a factor: 12 H squared a token for the products, 2 W H for attention."""
    return lines * width * (1 + width / (6 * int(config.hidden_size)))


def _windowed(model: Any) -> bool:
    """Whether a layer sees less than everything before a token, which our mask would not respect.

    By its layers where the configuration names them, else by a window that slides within the model's context (as in
    Mistral). Layers with a state of their own, which no mask holds back, count too.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if getattr(model, "_is_stateful", False) or kinds:
        return any(kind != "full_attention" for kind in kinds or ("state",))
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size"))
    return any(window is not None and window < config.max_position_embeddings for window in windows)


def _takes_masks(model: Any) -> bool:
    """Whether its attention takes our mask without materialising scores, which would cost more than is saved."""
    attention = getattr(getattr(model, "config", None), "_attn_implementation", "")
    return attention in MASKED and not _windowed(model) and keeps_apart(model)


_APART = "ttc_keeps_apart"
"""Where a model keeps what `keeps_apart` measured of it."""


def keeps_apart(model: Any) -> bool:
    """Whether rows in one line have the numbers that they have alone: some families ignore positions, or our mask.

    Measured once for a model, on two rows of a few tokens with one beginning; before its weights are split.
    """
    model = inner(model)
    if not hasattr(model, _APART):
        setattr(model, _APART, _measured_apart(model))
    return bool(getattr(model, _APART))


@torch.no_grad()
def _measured_apart(model: Any) -> bool:
    device = next(model.parameters()).device
    ids = torch.tensor([[1, 2, 3, 4, 1], [1, 2, 5, 3, 1]], device=device)
    wanted = torch.tensor([[False, True, True, True]] * 2, device=device)
    with torch.autocast(device.type, enabled=False):
        padded = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[wanted]
        try:
            laid = laid_hidden(model, ids, wanted, families(ids, wanted), 8)
        except (TypeError, ValueError, RuntimeError, IndexError):  # of a family's own code, which takes other masks
            return False
    return float((padded - laid).abs().max()) <= NEAR.get(model.dtype, 0.02) * float(padded.abs().max())


def laid_hidden(
    model: Any, ids: torch.Tensor, wanted: torch.Tensor, groups: Sequence[Family], most: int
) -> torch.Tensor:
    """Last hidden states at the wanted positions, row by row: (W, H), from lines of at most `most` tokens.

    Args:
        model: a causal language model of transformers, whose attention takes a mask: eager or sdpa.
        ids: (R, L) token ids, padded on the right.
        wanted: (R, L - 1) bool.
        groups: the families that hold every row with a wanted token.
        most: tokens of a line; a family that is longer is split, with its beginning in each part.
    """
    parts = [part for family in groups for part in split(family, most)]
    bins = placed([part.size for part in parts], most)
    width = max(sum(parts[place].size for place in line) for line in bins)
    packed = ids.new_zeros(len(bins), width)
    positions = torch.zeros_like(packed)
    owner = torch.full_like(packed, -1)  # (B, W): the piece that a token is of, a row's own or a beginning
    parent = torch.full_like(packed, -2)  # (B, W): the beginning that it sees besides
    index = ids.new_zeros(wanted.shape)  # (R, L - 1): place of a row's token among all B W
    piece = 0
    for line, members in enumerate(bins):
        start = 0
        for place in members:
            part = parts[place]
            begins, first = piece, part.rows[0]
            span = slice(start, start + part.common)
            packed[line, span] = ids[first, : part.common]
            positions[line, span] = torch.arange(part.common, device=ids.device)
            owner[line, span] = begins
            start, piece = start + part.common, piece + 1
            for row, size in zip(part.rows, part.own, strict=True):
                span, source = slice(start, start + size), slice(part.common, part.common + size)
                packed[line, span] = ids[row, source]
                positions[line, span] = torch.arange(part.common, part.common + size, device=ids.device)
                owner[line, span], parent[line, span] = piece, begins
                index[row, source] = torch.arange(start, start + size, device=ids.device) + line * width
                start, piece = start + size, piece + 1
    dtype = next(model.parameters()).dtype
    hidden: torch.Tensor = model.base_model(
        input_ids=packed, position_ids=positions, attention_mask=_mask(owner, parent, dtype), use_cache=False
    ).last_hidden_state
    return hidden.flatten(0, 1)[index[wanted]]


def _mask(owner: torch.Tensor, parent: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive (B, 1, W, W): 0 where a token may look, at its own piece and its beginning, not ahead."""
    width = owner.shape[1]
    seen = (owner[:, :, None] == owner[:, None, :]) | (parent[:, :, None] == owner[:, None, :])
    causal = torch.ones(width, width, dtype=torch.bool, device=owner.device).tril()
    hidden = torch.zeros(seen.shape, dtype=dtype, device=owner.device)
    return hidden.masked_fill(~(seen & causal), torch.finfo(dtype).min)[:, None]
