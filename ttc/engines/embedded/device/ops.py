"""The kernels of a step as one table: in Triton, or the same in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ttc.engines.embedded.device import activate, draw, embed, norm, project, survey
from ttc.engines.embedded.device.buffers import StepBuffers
from ttc.engines.embedded.device.shape import StepLayer, StepWeights


class Whole(Protocol):
    """A kernel over all rows of the buffers."""

    def __call__(self, buffers: StepBuffers, weights: StepWeights) -> None:
        """Launch it."""
        ...


class Projection(Protocol):
    """The kernel after the product of q, k and v."""

    def __call__(
        self,
        buffers: StepBuffers,
        weights: StepWeights,
        layer: StepLayer,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Launch it over one layer's pages."""
        ...


class Norm(Protocol):
    """A norm with its residual."""

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        place: norm.Place,
        *,
        y: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Launch it; see `norm`."""
        ...


@dataclass(frozen=True, slots=True)
class StepOps:
    """The operations of a step besides its matrix products and attention."""

    embed: Whole
    project: Projection
    activate: Whole
    norm: Norm
    survey: Whole
    draw: Whole


KERNEL_OPS = StepOps(embed.embed, project.project, activate.activate, norm.norm, survey.survey, draw.draw)
