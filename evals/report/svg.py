"""Markup from values: one function builds an element and escapes whatever is put into it; one embeds JSON.

Children are markup (from `element` or `text`); attributes and `text` take raw values. Left out: everything else
an SVG library has.
"""

from __future__ import annotations

import html
import json
from typing import Any


def text(value: object) -> str:
    """Escape `value` for use between tags."""
    return html.escape(str(value), quote=True)


def element(name: str, *children: str, **attributes: object) -> str:
    """Return `<name …>children</name>`.

    Underscores in attribute names become hyphens (`text_anchor`), a trailing one is dropped (`class_`); an
    attribute of None is left out; floats keep one decimal, which is enough for pixels.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{''.join(children)}</{name}>"


def embed_json(value: Any) -> str:
    """JSON that is inert inside a script element whatever strings it holds."""
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        plain = plain.replace(sign, f"\\u{ord(sign):04x}")
    return plain


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return html.escape(str(value), quote=True)
