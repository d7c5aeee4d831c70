"""What a part reads from the disk, stated by the part itself and without loading it.

    def _reads(*, model, **options):                  @reads(_reads)
        return [ModelFolder(resolve(model))]          def my_engine(model=None, *, threads=1): ...

The function gets every argument of the factory by name and names the model folders and the inner parts that those
arguments lead to. `ttc.identity.contents` digests them, so that a run can be told from the same run over other weights.
A part that states nothing is taken to read its `model` where that is a folder or a file here, which is right for most;
what must be stated is a default model, a hub id, a folder of which only the tokenizer counts, and parts inside a part.
Files among the other parameters need no statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ttc.identity.digests import ROLES

if TYPE_CHECKING:
    from ttc.config.registry import Registry

__all__ = ["BESIDE_WEIGHTS", "InnerPart", "ModelFolder", "Reads", "reads", "reads_of"]

BESIDE_WEIGHTS = tuple(role for role in ROLES if role != "weights")
"""What is read here of a model whose weights are behind a server."""
_ATTRIBUTE = "ttc_reads"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder, or only some of its roles; `owner` is what people call it, where the part's name does not do."""

    path: Path
    roles: tuple[str, ...] = tuple(ROLES)
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class InnerPart:
    """A part that the part makes: `spec` is NAME or NAME:MODEL."""

    registry: Registry
    spec: str
    params: Mapping[str, Any] = field(default_factory=dict)


Reads: TypeAlias = Callable[..., Iterable[ModelFolder | InnerPart]]
Factory = TypeVar("Factory", bound=Callable[..., Any])


def reads(statement: Reads) -> Callable[[Factory], Factory]:
    """Attach to a factory what it reads; `statement` takes all its arguments by name."""

    def attach(factory: Factory) -> Factory:
        setattr(factory, _ATTRIBUTE, statement)
        return factory

    return attach


def reads_of(factory: Callable[..., Any]) -> Reads | None:
    """Return the statement of a factory, or None where it made none."""
    statement: Reads | None = getattr(factory, _ATTRIBUTE, None)
    return statement
