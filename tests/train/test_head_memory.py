"""The head keeps no logits for the gradient, in chunks or not, and computes what it computed while it kept them."""

import pytest
import torch

from train.base.models import Shape, new_model
from train.update import logprobs
from train.update.logprobs import token_logprobs

pytestmark = pytest.mark.numeric


class Words:
    """What a new model asks of a tokenizer."""

    model_max_length, eos_token_id, pad_token_id = 512, 1, 0

    def __len__(self) -> int:
        return 1 << 15


@pytest.fixture(scope="module")
def model():
    return new_model(Shape(hidden=32, layers=1, heads=2, kv_heads=1, mlp=32), Words(), 0)


def backward(model, ids, chunk_logits=None, kept=None):
    """Floats that the head alone keeps, the log-probabilities and the gradient of every weight."""
    saved = []
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "CACHED", chunk_logits or logprobs.CACHED)
        patch.setattr(logprobs, "_KEPT", logprobs._KEPT if kept is None else kept)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            scored = token_logprobs(model, ids, torch.ones(ids.shape[0], ids.shape[1] - 1, dtype=torch.bool))
        scored.logprobs.sum().backward()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // 4 for t in saved}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    floats = sum(size for pointer, size in storages.items() if pointer not in weights)
    return floats, scored.logprobs.detach(), [p.grad.clone() for p in model.parameters()]


def test_what_is_kept_for_the_gradient_is_a_twentieth_of_the_logits_at_most(model):
    ids = torch.randint(2, 1 << 15, (8, 129), generator=torch.Generator().manual_seed(0))
    floats, *_ = backward(model, ids)
    plain, *_ = backward(model, ids, kept=1 << 40)
    logits = 8 * 128 * (1 << 15)
    assert floats <= 0.05 * logits
    assert plain >= logits  # the measure sees what is kept


def test_logits_computed_again_give_the_same_bits_in_one_chunk_and_the_same_numbers_in_many(model):
    ids = torch.randint(2, 1 << 15, (4, 33), generator=torch.Generator().manual_seed(1))
    _, plain, gradients = backward(model, ids, kept=1 << 40)
    _, again, same = backward(model, ids, chunk_logits=ids.numel() << 15, kept=0)
    assert torch.equal(plain, again) and all(map(torch.equal, gradients, same))
    _, cut, near = backward(model, ids, chunk_logits=32 << 15, kept=0)
    assert torch.allclose(plain, cut, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, near, strict=True))
