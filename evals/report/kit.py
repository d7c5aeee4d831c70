"""The report kit that all reports use: markup from values, tables, whole pages, and numbers in readable form.

One function builds an element and escapes whatever is put into it. Children are markup (from `element` or `text`);
attributes and `text` take raw values. A missing number prints as an en dash, never as 0; shares are in [0, 1] and print
in percent. Charts over steps are in `evals.report.lines`. Left out: everything else an SVG or template library has.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from importlib import resources
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


def svg(width: int, height: int, *parts: str, label: str) -> str:
    """A chart of this size; `label` is for those who cannot see it."""
    return element("svg", *parts, class_="chart", role="img", viewBox=f"0 0 {width} {height}", aria_label=label)


def level(y: float, left: float, right: float, label: str, gap: float = 6) -> list[str]:
    """A horizontal line of a chart's grid, with its label on the left."""
    line = element("line", class_="grid", x1=left, x2=right, y1=y, y2=y)
    return [line, element("text", text(label), class_="tick", x=left - gap, y=y + 4, text_anchor="end")]


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


def bullets(facts: Iterable[str]) -> str:
    """The row of short facts below a headline."""
    return element("ul", *(element("li", text(fact)) for fact in facts), class_="facts")


def table(head: Sequence[str], rows: Sequence[str], style: str | None = None) -> str:
    """A table of markup: cells of its head (none: no head), and whole rows."""
    top = element("thead", element("tr", *head)) if head else ""
    return element("table", top, element("tbody", *rows), class_=style)


def text_table(titles: Sequence[str], rows: Iterable[Sequence[str]], style: str | None = None) -> str:
    """A table of texts; the first cell of a row is its name. Columns of words stand left, columns of numbers right."""
    rows = list(rows)
    columns = list(zip(*rows, strict=True)) or [()] * len(titles)
    styles = [None, *("words" if any(map(_is_words, cells)) else None for cells in columns[1:])]
    named = zip(titles, styles, strict=True)
    head = [element("th", text(title), scope="col", class_=style) for title, style in named] if any(titles) else []
    body = [
        element(
            "tr",
            element("th", text(name), scope="row"),
            *(element("td", text(cell), class_=style) for cell, style in zip(cells, styles[1:], strict=True)),
        )
        for name, *cells in rows
    ]
    return table(head, body, style)


def _is_words(cell: str) -> bool:
    return cell[:1].isalpha()


def document(title: str, body: str, note: str = "") -> str:
    """An HTML page of this body that loads nothing and runs no script; `note` ends its foot."""
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        element("title", text(title)),
        element("style", asset("page.css") + asset("panels.css")),
    ]
    foot = element("footer", element("p", f"This page loads nothing from a network. {note}".rstrip()))
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head><body>{body}{foot}</body></html>\n'


def asset(name: str) -> str:
    """A file of this folder: styles, the script, the frame of the page of evaluations."""
    return resources.files("evals.report").joinpath(name).read_text(encoding="utf-8")


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
MISSING = "–"
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_ROUNDS_UP = 0.9995
"""From this share of a unit on, three figures round up to the whole unit: 999,600 is 1 M and not 1e+03 k."""


def finite(value: object) -> float | None:
    """Return `value` as a float, or None when it is no finite number (a bool is not a number)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def percent(share: float | None) -> str:
    """0.7134 -> "71.3 %"."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def interval(low: float | None, high: float | None) -> str:
    """0.684, 0.741 -> "68.4–74.1" (percent, without the sign)."""
    return MISSING if low is None or high is None else f"{100 * low:.1f}–{100 * high:.1f}"


def points(difference: float | None) -> str:
    """0.231 -> "+23.1" percentage points."""
    return MISSING if difference is None else f"{100 * difference:+.1f}".replace("-", "−")


def count(value: float | None) -> str:
    """1449.6 -> "1,450"; below ten one decimal is kept."""
    if value is None:
        return MISSING
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def quantity(value: float | None) -> str:
    """3.2e12 -> "3.2 T"; for FLOPs and axis labels."""
    if value is None:
        return MISSING
    for size, prefix in _PREFIXES:
        if abs(value) >= size * _ROUNDS_UP:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g}"


def seconds(value: float | None) -> str:
    """0.0312 -> "0.031 s", 75 -> "75 s"."""
    if value is None:
        return MISSING
    return f"{value:.3f} s" if value < 1 else f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def money(value: float | None) -> str:
    """0.00123 -> "$0.0012", 12.5 -> "$12.50"; two figures at least, never an exponent."""
    if value is None:
        return MISSING
    places = 2 if value >= 1 or value <= 0 else max(2, 1 - math.floor(math.log10(value)))
    return f"${value:,.{places}f}"
