"""The head keeps no logits for the gradient, in chunks or not, and computes what it computed while it kept them.

One that is not trained computes them once, and says the same.
"""

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
    return floats, scored.logprobs.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.long
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


@pytest.fixture
def frozen_head(model):
    """The model with a head of its own that is not trained, and the calls of it."""
    calls, head = [], model.get_output_embeddings()
    own = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    tied, head.weight = head.weight, own
    hook = head.register_forward_hook(lambda *_: calls.append(1))
    yield model, calls
    hook.remove()
    head.weight = tied


@pytest.mark.parametrize("autocast", [False, True])
def test_a_head_that_is_not_trained_is_asked_once_and_has_the_gradient_of_one_that_is(frozen_head, autocast):
    model, calls = frozen_head
    ids = torch.randint(2, 1 << 15, (4, 33), generator=torch.Generator().manual_seed(2))
    bound = 3e-2 if autocast else 1e-5  # of a gradient's largest number; bf16 has eight bits
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        floats, once, gradients = backward(model, ids, chunk_logits=32 << 15)
        assert len(calls) == 2
        assert autocast or floats <= 0.05 * ids.numel() * (1 << 15)  # with it a chunk's weights in bf16 pass by, too
        entropy = token_logprobs(model, ids, torch.ones(4, 32, dtype=torch.bool)).entropy
        model.get_output_embeddings().weight.requires_grad_(True)
        _, plain, (*others, _) = backward(model, ids, kept=1 << 40)
        same = token_logprobs(model, ids, torch.ones(4, 32, dtype=torch.bool)).entropy
    assert torch.allclose(once, plain, atol=1e-5) and torch.allclose(entropy, same, atol=1e-4)
    for mine, theirs in zip(gradients, others, strict=True):
        assert (mine - theirs).abs().max() <= bound * theirs.abs().max()
