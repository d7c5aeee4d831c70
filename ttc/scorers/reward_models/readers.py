"""How a reward model's score is read from hidden states: a label, a token against another, a likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ttc.errors import ConfigError

if TYPE_CHECKING:
    from ttc.engines.embedded.model import Body
    from ttc.scorers.reward_models.incremental import PathUpdate

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states (N, D) -> probabilities (N,) that the path is right so far."""


class HeadReader:
    """Reads a probability at the last token of a step (or at its tag) through `head`; nothing is remembered."""

    remembers = False

    def __init__(self, body: Body, head: Head) -> None:
        self._body, self._head = body, head

    def root(self, hidden: torch.Tensor) -> Any:
        """Nothing."""
        return None

    def read(self, works: Sequence[PathUpdate], hidden: Sequence[torch.Tensor]) -> list[tuple[tuple[float, ...], Any]]:
        """One matrix product for all reads of the batch."""
        rows = torch.cat([states[work.reads] for work, states in zip(works, hidden, strict=True)])
        padded = F.pad(rows, (0, 0, 0, -len(rows) % self._body.pad_rows))
        values = iter(self._head(padded)[: len(rows)].tolist())
        return [(tuple(next(values) for _ in work.reads), None) for work in works]


class LikelihoodReader:
    """Reads exp(beta * sum of log p(token) / p(first choice)) over the sampled tokens of the path so far, in (0, 1].

    A token that the model itself would have chosen costs nothing, one it finds absurd costs much, and a free choice
    (which step first) costs little. Injected tokens, which have no log-probability in the prompt, do not count.
    """

    remembers = True

    def __init__(self, body: Body, beta: float) -> None:
        if not beta > 0:
            raise ConfigError(f"prm beta must be > 0, got {beta}")
        self._body, self._beta = body, beta

    def root(self, hidden: torch.Tensor) -> Any:
        """The last hidden state, which predicts the first token, and a sum of 0."""
        return hidden[-1:], 0.0

    def read(self, works: Sequence[PathUpdate], hidden: Sequence[torch.Tensor]) -> list[tuple[tuple[float, ...], Any]]:
        """One matrix product for all new tokens of the batch."""
        pairs = list(zip(works, hidden, strict=True))
        before = torch.cat([part for work, states in pairs for part in (work.base.memo[0], states[:-1])])
        token_ids = torch.tensor([token for work in works for token in work.new], device=before.device)
        logits = self._body.logits(before).float()
        margins = iter((logits.gather(1, token_ids[:, None])[:, 0] - logits.amax(-1)).tolist())
        return [self._accumulate(work, [next(margins) for _ in work.new], states) for work, states in pairs]

    def _accumulate(
        self, work: PathUpdate, margins: list[float], states: torch.Tensor
    ) -> tuple[tuple[float, ...], Any]:
        prompt = work.prompt
        start = work.start - prompt.rendered_len
        logprobs = None if prompt.logprobs is None else prompt.logprobs[start : start + len(work.new)]
        total, sums = work.base.memo[1], []
        for at, margin in enumerate(margins):
            injected = logprobs is not None and logprobs[at] is None
            total += 0.0 if injected else self._beta * margin
            sums.append(total)
        return tuple(math.exp(sums[at]) for at in work.reads), (states[-1:], total)


def label_head(
    tensors: Mapping[str, torch.Tensor], device: torch.device, positive_label: int, activation: str, where: str
) -> Head:
    """The head of a folder, as one function to the probability of the positive label.

    Three forms are known: one linear layer (`score`), two with a ReLU (`score.0`, `score.2`: the Qwen2.5-Math reward
    models) and a value head (`v_head.summary`). The arithmetic is in fp32.
    """

    def part(name: str) -> torch.Tensor | None:
        tensor = tensors.get(name)
        return None if tensor is None else tensor.to(device=device, dtype=torch.float32)

    stacks = (("score",), ("score.0", "score.2"), ("v_head.summary",))
    stack = [names for names in stacks if all(f"{name}.weight" in tensors for name in names)]
    if not stack:
        raise ConfigError(f"{where} has no classification head (score.weight): it is not a reward model")
    layers = [(tensors[f"{name}.weight"].to(device, torch.float32), part(f"{name}.bias")) for name in stack[0]]
    labels = layers[-1][0].shape[0]
    if labels > 1 and not 0 <= positive_label < labels:
        raise ConfigError(f"prm positive_label={positive_label}, but {where} has {labels} labels")

    def head(hidden: torch.Tensor) -> torch.Tensor:
        x = hidden.float()
        for index, (weight, bias) in enumerate(layers):
            x = F.linear(F.relu(x) if index else x, weight, bias)
        return probability(x, positive_label, activation)

    return head


def probability(logits: torch.Tensor, positive_label: int, activation: str) -> torch.Tensor:
    """Probability (N,) of the positive label of logits (N, labels); a single output goes through a sigmoid."""
    if logits.shape[-1] == 1 or activation == "sigmoid":
        return torch.sigmoid(logits[:, min(positive_label, logits.shape[-1] - 1)])
    return torch.softmax(logits, -1)[:, positive_label]


def token_head(body: Body, good: int, bad: int) -> Head:
    """The language-model head read as P(good) against P(bad)."""

    def head(hidden: torch.Tensor) -> torch.Tensor:
        return torch.softmax(body.logits(hidden)[:, [good, bad]].float(), -1)[:, 0]

    return head
