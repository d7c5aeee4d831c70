"""Versions of the libraries that verdicts depend on, for the versions of verifiers."""

from __future__ import annotations

import importlib.metadata


def library(name: str) -> str:
    """`name-1.2.3`, or `no-name` where it is not installed."""
    try:
        return f"{name}-{importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no-{name}"
