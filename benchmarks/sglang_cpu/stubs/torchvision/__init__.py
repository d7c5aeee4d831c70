"""Stands in for torchvision, which SGLang imports for images; there are none here."""

from __future__ import annotations

from stand_in import stand_in

__getattr__ = stand_in("torchvision")
__version__ = "0.26.0"
