"""The language of the whole response; one without enough letters to tell passes, as in IFEval."""

from __future__ import annotations

from ttc.verifiers.instructions.arguments import Arguments, Check
from ttc.verifiers.shared.languages import check_code, detect


def response_language(arguments: Arguments) -> Check:
    """The response is in the language with that code (ISO 639-1)."""
    wanted = check_code(arguments.text("language"))
    return lambda text: is_in(text, wanted)


def is_in(text: str, language: str) -> bool:
    """Whether `text` is in `language`, or has too few letters to tell."""
    return detect(text) in (language, None)
