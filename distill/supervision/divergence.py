"""How far a student is from its teacher, per token: pure functions of log-probabilities.

    forward     KL(teacher || student): the student must cover all that the teacher might say
    reverse     KL(student || teacher): the student keeps to what the teacher says most; MiniLLM (arXiv:2306.08543)
    jsd         beta KL(teacher || m) + (1 - beta) KL(student || m), m = beta teacher + (1 - beta) student; GKD (Agarwal
                et al. 2024, arXiv:2306.13649), beta in (0, 1)
    sampled     log q - log p of the sampled token as advantage of the policy gradient: the reverse KL in expectation

The first three are over a vocabulary, (n, V) each, and are differentiated. A server gives a teacher's k likeliest
tokens only: `coarse` puts the rest of both vocabularies into one bucket, and a divergence of what remains is a lower
bound of the whole one, never negative, whatever the student does with the rest (without the bucket, forward can be
negative and reverse is least where the student leaves the k tokens). `sampled` is one number a token and must not be
differentiated itself: its gradient does not contain the teacher. Chunks of tokens are the caller's
(`train.update.logprobs`). Left out: discounted sums over later tokens, which did not help when tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch

from train.update.terms import exact_kl
from ttc.errors import ConfigError

Kind: TypeAlias = Literal["reverse", "forward", "jsd", "sampled"]
Divergence: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(student (n, V), teacher (n, V)) log-probabilities -> (n,) nats, with the student's gradient."""

WORDS: dict[Kind, str] = {
    "reverse": "reverse KL(student || teacher): the student is pulled to where the teacher puts its mass; mode-seeking",
    "forward": "forward KL(teacher || student): the student must cover all that the teacher might say; mass-covering",
    "jsd": "generalised Jensen-Shannon divergence: between covering the teacher (beta near 0) and keeping to its modes "
    "(beta near 1)",
    "sampled": "sampled reverse KL(student || teacher) as an advantage: a token is rewarded by how much likelier the "
    "teacher finds it; mode-seeking, noisy",
}
_ROUNDING = 5e-7
"""How far the probabilities from a teacher's fp32 log-probabilities may miss 1: its bucket gets that much more.

What is left of 1 is the bucket, so where it is small the rounding is a large part of it. With less than it truly has, a
reverse divergence would be above the whole one.
"""


def forward(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) per row, nats."""
    return exact_kl(teacher, student)


def reverse(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(student || teacher) per row, nats."""
    return exact_kl(student, teacher)


def jsd(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Generalised Jensen-Shannon divergence per row, nats; at most log 2 at beta one half."""
    weight = torch.tensor(beta, dtype=student.dtype, device=student.device)
    mixed = torch.logaddexp(student + torch.log1p(-weight), teacher + torch.log(weight))
    return beta * exact_kl(teacher, mixed) + (1 - beta) * exact_kl(student, mixed)


def make_divergence(kind: Kind, beta: float = 0.5) -> Divergence:
    """The divergence over a vocabulary named `kind`; raises ConfigError for `sampled` and a beta outside of (0, 1)."""
    if not 0 < beta < 1:
        raise ConfigError(f"beta must be in (0, 1), got {beta}: 0 is divergence = forward, 1 is divergence = reverse")
    table: dict[str, Divergence] = {
        "forward": forward,
        "reverse": reverse,
        "jsd": lambda student, teacher: jsd(student, teacher, beta),
    }
    if kind not in table:
        raise ConfigError(f"divergence {kind} is not over a vocabulary; use one of {', '.join(table)}")
    return table[kind]


def coarse(student: torch.Tensor, ids: torch.Tensor, known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both distributions over the teacher's k tokens and one bucket of all others: two (n, k + 1), normalised.

    Args:
        student: (n, V) log-probabilities, with the gradient.
        ids: (n, k) the teacher's tokens; k < V.
        known: (n, k) their log-probabilities under the teacher.
    """
    rest = student.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True)
    spoken = known.double().exp().sum(1, keepdim=True).clamp(max=1)
    ours = torch.cat([student.gather(1, ids), rest], 1)
    theirs = torch.cat([known, torch.log1p(_ROUNDING - spoken).to(known.dtype)], 1).log_softmax(1)
    return ours, theirs


def advantage(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Minus k1 at the sampled tokens: how much likelier the teacher finds them, without a gradient."""
    return (teacher - student).detach()
