"""What a run costs in money, by the price list of an endpoint.

Dollars per million tokens, two prices: `in` for the tokens of prompts, `out` for all that was decoded: kept, judged and
overrun. Cached prompt tokens count in full, and so do those of a prompt that is sent once for each draw, as in a
request of its own: where a server discounts them, the bill is lower. Left out: what a scorer's own server costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ttc.core import Prices, Usage
from ttc.errors import ConfigError

MILLION = 1_000_000


def prices_of(price_in: float | None, price_out: float | None) -> Prices | None:
    """Return the prices a user gave; raises ConfigError for one without the other, or for what is no price."""
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise ConfigError("--price-in and --price-out are given together, in dollars per million tokens")
    for name, price in (("--price-in", price_in), ("--price-out", price_out)):
        if not 0 <= price < math.inf:
            raise ConfigError(f"{name} must be dollars per million tokens, 0 or more, got {price:g}")
    return Prices(price_in, price_out)


def dollars(usage: Usage, prices: Prices) -> float:
    """Return what `usage` costs."""
    decoded = usage.generated + usage.judged + usage.overrun
    return (usage.prompt * prices.prompt + decoded * prices.generated) / MILLION


def with_dollars(entry: Mapping[str, Any], prices: Prices | None) -> dict[str, Any]:
    """Return a summary entry with what the run cost in all and per problem; without prices, as it was."""
    if prices is None:
        return dict(entry)
    total = dollars(Usage(**entry["usage"]), prices)
    listed = {"prices": {"in": prices.prompt, "out": prices.generated}}
    return {**entry, **listed, "dollars": total, "dollars_per_problem": total / max(int(entry["problems"]), 1)}
