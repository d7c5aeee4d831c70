r"""What of a text is prose: without code, formulas, links, tags and commands. Linear in the text."""

from __future__ import annotations

import re

_FENCED = (("```", "```"), ("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)"), (r"\begin{", r"\end{"))
_SHORT = re.compile(
    r"`[^`\n]*`"
    r"|\$[^$\n]{1,1000}\$"
    r"|https?://\S+|www\.\S+|(?<!\S)[^\s@]{1,100}@\S+"
    r"|</?[A-Za-z][^<>\n]{0,200}>"
    r"|\\[A-Za-z]+|[_^]\{[^{}\n]{0,200}\}"
)


def prose(text: str) -> str:
    """`text` with what is not prose replaced by spaces."""
    for opening, closing in _FENCED:
        text = _without(text, opening, closing)
    return _SHORT.sub(" ", text)


def _without(text: str, opening: str, closing: str) -> str:
    """`text` without the stretches from `opening` to the next `closing`; one that is never closed stays."""
    kept, at = [], 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        kept.append(text[at:start])
        at = end + len(closing)
    return " ".join([*kept, text[at:]])
