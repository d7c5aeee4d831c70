"""Keep answers that most of a strategy's own draws agree with: a label without a key.

Huang et al. 2022 ("Large Language Models Can Self-Improve"); TTRL. The share is over all draws, including those without
an answer, by equivalence class of the problem's kind. Cost: none beyond the draws. Left out: calibration. A model that
is confidently wrong agrees with itself, so measure the student against a verifier where there is one.
"""

from __future__ import annotations

from distill.data.pipeline import Filter, each, placed
from distill.spec.sample import Sample
from ttc import answers
from ttc.errors import ConfigError


@placed(40)
def agreement(*, min_share: float = 0.5) -> Filter:
    """Keep answers with enough votes.

    Args:
        min_share: least share of the draws that give the chosen answer, in (0, 1].
    """
    if not 0 < min_share <= 1:
        raise ConfigError(f"filter agreement: min_share must be in (0, 1], got {min_share}")

    def judge(sample: Sample) -> str | None:
        share = share_of_votes(sample)
        return None if share >= min_share else f"too few agree: {share:.2f} of the draws"

    return each(judge)


def share_of_votes(sample: Sample) -> float:
    """Share of the draws that give the chosen answer; 0 without an answer."""
    answer, kind = sample.answer, sample.item.problem.kind
    if answer.final is None or not answer.candidates:
        return 0.0
    key = answers.key(answer.final, kind)
    keys = [answers.key(one.final, kind) for one in answer.candidates if one.final is not None]
    class_of = answers.classes((key, *keys))
    return sum(class_of[other] == class_of[key] for other in keys) / len(answer.candidates)
