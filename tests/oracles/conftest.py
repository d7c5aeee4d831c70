"""Oracles run beside whatever else a machine does, so no example has a time of its own to keep."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("oracles", deadline=None)
settings.load_profile("oracles")
