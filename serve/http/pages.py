"""The playground: static files of this package, served at `/` under a policy that lets nothing else in.

They need no key, since they hold nothing; what the page then asks for does. Everything comes from this server, no file
is built, nothing is loaded from elsewhere, and text cannot become markup (`require-trusted-types-for`).
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["HEADERS", "Page", "read_pages"]

TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
    }
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
    }
)


@dataclass(frozen=True, slots=True)
class Page:
    """One file and where it is served."""

    path: str
    media_type: str
    content: bytes


def read_pages() -> tuple[Page, ...]:
    """Read the files of the playground; `index.html` is served at `/`, the others below `/playground/`."""
    folder = importlib.resources.files("serve") / "playground"
    files = [file for file in folder.iterdir() if _suffix(file.name) in TYPES]
    return tuple(
        Page(
            "/" if file.name == "index.html" else f"/playground/{file.name}",
            TYPES[_suffix(file.name)],
            file.read_bytes(),
        )
        for file in sorted(files, key=lambda file: file.name)
    )


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]
