"""Log-probabilities of the reference, computed once per completion and kept on disk.

The reference of a preference stage is the model that it starts from; its numbers never change, so after the first run
of the stage no second model is needed in memory. The file is named after the completions and the weights, so that other
data or another model is never mistaken for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from train.base.models import load_model
from train.examples.examples import Example
from train.examples.imitation import completion_sums
from ttc.durable import replaced_file

__all__ = ["reference_sums"]


def reference_sums(source: Path, examples: Sequence[Example], folder: Path, device: str, pad_id: int) -> torch.Tensor:
    """Log-probability of each completion by the model in `source`, nats: (R,)."""
    from safetensors.torch import load_file, save_file

    path = folder / f"reference-{_digest(source, examples)}.safetensors"
    if path.is_file():
        kept: torch.Tensor = load_file(str(path))["sums"]
        return kept
    model = load_model(source, device)
    sums = torch.tensor([total for total, _ in completion_sums(model, examples, pad_id)])
    with replaced_file(path) as partial:
        save_file({"sums": sums}, str(partial))
    return sums


def _digest(source: Path, examples: Sequence[Example]) -> str:
    found = hashlib.sha256(json.dumps([[e.prompt_ids, e.token_ids] for e in examples]).encode())
    for weights in sorted(source.glob("*.safetensors")):
        with weights.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]
