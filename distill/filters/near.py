"""Drop near-duplicates: answers whose shingles reach a threshold of Jaccard similarity with another's.

Exact, not sketched: two sets as similar as the threshold share one of their rarest few shingles (the prefix filter of
Chaudhuri et al. 2006), so only such pairs are compared. Cost: about linear in the texts at thresholds near 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from distill.data.pipeline import Context, Filter, placed
from distill.spec.sample import Sample
from evals.data.decontamination import normalised
from ttc.errors import ConfigError


@placed(100)
def near(*, threshold: float = 0.9, n: int = 8, across: bool = False) -> Filter:
    """Keep the first of answers that are nearly the same.

    Args:
        threshold: Jaccard similarity from which two answers count as one, in (0, 1].
        n: characters of a shingle.
        across: compare answers to different prompts as well.
    """
    if not 0 < threshold <= 1 or n < 1:
        raise ConfigError(f"filter near: needs threshold in (0, 1] and n >= 1, got {threshold} and {n}")

    def judge(samples: Sequence[Sample], context: Context) -> list[str | None]:
        groups: dict[tuple[str, ...], list[int]] = {}
        for place, sample in enumerate(samples):
            groups.setdefault(() if across else (sample.prompt, sample.label), []).append(place)
        reasons: list[str | None] = [None] * len(samples)
        for places in groups.values():
            sets = [shingles(samples[place].text, n) for place in places]
            for later, earlier in _pairs(sets, threshold):
                reasons[places[later]] = f"nearly equal: {samples[places[earlier]].key}"
        return reasons

    return judge


def shingles(text: str, n: int) -> frozenset[str]:
    """The runs of n characters of a normalised text; a shorter text is a single shingle."""
    plain = normalised(text)
    return frozenset(plain[i : i + n] for i in range(max(len(plain) - n + 1, 1)))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared elements over all; 1 for two empty sets."""
    union = len(first | second)
    return len(first & second) / union if union else 1.0


def _pairs(sets: Sequence[frozenset[str]], threshold: float) -> list[tuple[int, int]]:
    """(later, earlier) for every set that is too similar to an earlier one that stays."""
    frequency = Counter(shingle for shingle_set in sets for shingle in shingle_set)
    holders: dict[str, list[int]] = {}
    pairs = []
    for place, shingle_set in enumerate(sets):
        rare = sorted(shingle_set, key=lambda shingle: (frequency[shingle], shingle))
        prefix = rare[: len(rare) - math.ceil(threshold * len(rare) - 1e-9) + 1]
        others = sorted({other for shingle in prefix for other in holders.get(shingle, ())})
        same = next((other for other in others if jaccard(shingle_set, sets[other]) >= threshold), None)
        if same is not None:
            pairs.append((place, same))
            continue
        for shingle in prefix:
            holders.setdefault(shingle, []).append(place)
    return pairs
