"""The code that runs inside vLLM's workers when weights are replaced in place.

vLLM 0.32 on a CPU packs every matrix for its kernels. `reload_weights` packs the layers anew, but an output head that
is tied to the embedding keeps its old packed copy: there is no error, and the logits belong to neither model. So the
head is packed again, and then checked: its product with random vectors must equal the embedding's. Cost: one file read
and one packing.
"""

from __future__ import annotations

from typing import Any


class WeightLoader:
    """Mixed into vLLM's worker class by name (`worker_extension_cls`); its methods are called by remote procedure."""

    def ttc_load_weights(self, path: str) -> float:
        """Load the safetensors files of the folder `path`; return the difference between head and embedding.

        It is the largest difference relative to the largest logit; 0.0 for a model with its own head.
        """
        worker: Any = self
        worker.reload_weights(weights_path=path)
        model = worker.get_model()
        head, embedding = getattr(model, "lm_head", None), _embedding(model)
        if head is None or embedding is None or not getattr(model.config, "tie_word_embeddings", False):
            return 0.0
        head.quant_method.process_weights_after_loading(head)
        return _disagreement(head, embedding.weight)


def _embedding(model: Any) -> Any:
    """The module of input embeddings on this rank; None where it is on another pipeline stage."""
    inner = getattr(model, "model", model)
    module = getattr(inner, "embed_tokens", None)
    return module if hasattr(module, "weight") else None


def _disagreement(head: Any, weight: Any) -> float:
    import torch

    if not hasattr(head, "quant_method"):
        return 0.0
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        vectors = torch.randn(4, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
        reference = torch.nn.functional.linear(vectors, weight).float()
        output = head.quant_method.apply(head, vectors).float()
        scale = reference.abs().max().clamp_min(1e-30)
        return float((output[:, : reference.shape[1]] - reference).abs().max() / scale)
