"""Insert tables made by scripts into the pages that show them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def placed(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables between `<!-- table NAME -->` and `<!-- end -->`; other places stay as they are.

    Raises:
        KeyError: a table that the page has no place for.
    """
    homeless = tables.keys() - {match[2] for match in _PLACE.finditer(page)}
    if homeless:
        raise KeyError(*sorted(homeless))

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}{tables[match[2]]}\n{match[3]}" if match[2] in tables else match[0]

    return _PLACE.sub(filled, page)
