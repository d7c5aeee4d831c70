"""Tables that scripts make, in the pages that show them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def placed(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables between `<!-- table NAME -->` and `<!-- end -->`.

    Raises:
        KeyError: a place that there is no table for.
    """
    return _PLACE.sub(lambda match: f"{match[1]}{tables[match[2]]}\n{match[3]}", page)
