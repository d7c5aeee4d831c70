"""Stages made of flat fields, as a recipe makes them."""

from typing import Any

from train.registries import STAGES


def make_stage(kind: str, **fields: Any) -> Any:
    """The stage of that kind."""
    supply = {"health": fields.pop("health")} if "health" in fields else {}
    return STAGES.create(kind, fields, supply=supply)
