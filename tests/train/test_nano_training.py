"""The training loop, the reward model's start and the student's data, on tiny random models."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from train.base.models import Shape
from train.nano import model, prm, teacher
from train.nano.examples import POLISH, ExampleMixture

TINY = Shape(hidden=32, layers=2, heads=1, kv_heads=1, head_dim=64, mlp=32)
DEEPER = Shape(hidden=32, layers=4, heads=1, kv_heads=1, head_dim=64, mlp=32)


def recipe(steps, save_every=1000, mixture=None):
    run = teacher.RunLength(steps, lr=3e-3, save_every=save_every)
    return teacher.TrainingRun(mixture or ExampleMixture(), seed=1, run=run, rows=4)


def trained_by(nano, steps, checkpoint, **options):
    network = model.build(TINY, nano, 1)
    teacher.train(network, recipe(steps, **options), checkpoint, "cpu")
    return network


@pytest.mark.long
def test_the_loss_falls(nano, tmp_path):
    batch = [item for at in range(4) for item in teacher.examples.pool(nano, ExampleMixture(), 9, at, 1, 8, 0.1)[0]]
    trained = trained_by(nano, 60, tmp_path / "a")
    fresh = model.build(TINY, nano, 1)
    with torch.no_grad():
        before, after = (
            teacher.causal_loss(network, batch, nano.pad_token_id, "cpu").item() for network in (fresh, trained)
        )
    assert after < before - 1.0


@pytest.mark.numeric
def test_an_interrupted_run_ends_at_the_same_weights(nano, tmp_path):
    whole = trained_by(nano, 8, tmp_path / "whole").state_dict()

    class Interrupted(model.build(TINY, nano, 1).__class__):
        calls = 0

        def forward(self, *args, **kwargs):
            Interrupted.calls += 1
            if Interrupted.calls == 6:
                raise KeyboardInterrupt
            return super().forward(*args, **kwargs)

    network = model.build(TINY, nano, 1)
    network.__class__ = Interrupted
    with pytest.raises(KeyboardInterrupt):
        teacher.train(network, recipe(8, save_every=3), tmp_path / "cut", "cpu")
    resumed = trained_by(nano, 8, tmp_path / "cut", save_every=3).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_saved_model_loads_unchanged_in_bf16(tmp_path, nano):
    network = model.build(TINY, nano, seed=3).eval()
    ids = torch.tensor([nano.encode("Compute 1+1.", add_special_tokens=False)])
    model.save(network, tmp_path)
    loaded, problems = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not any(problems.values())
    assert loaded.dtype == torch.bfloat16
    assert torch.allclose(loaded(ids).logits.float(), network(ids).logits, atol=0.05)


@pytest.mark.numeric
def test_the_reward_model_begins_as_the_teacher_with_layers_that_change_nothing(nano):
    below = model.build(TINY, nano, seed=3).eval()
    above = model.build(DEEPER, nano, seed=4).eval()
    prm.deepen(above, below.state_dict(), TINY)
    ids = torch.tensor([nano.encode("Compute 12+30.", add_special_tokens=False)])
    assert torch.allclose(above(ids).logits, below(ids).logits, atol=1e-5)


def test_a_teacher_with_other_weights_is_refused(nano):
    with pytest.raises(ValueError, match="lacks"):
        prm.deepen(model.build(TINY, nano, 1), model.build(DEEPER, nano, 1).state_dict(), TINY)


def test_the_student_is_asked_to_answer_at_once(nano):
    for i in range(50):
        text = nano.decode(teacher.examples.example(nano, teacher.STUDENT_MIXTURE, 1, i, 0.9).ids)
        assert "\n\n</think>" in text or "<think>\n</think>" in text


def test_the_end_of_the_teachers_training_shows_second_and_third_passes(nano):
    texts = [nano.decode(teacher.examples.example(nano, POLISH, 1, i, 0.5).ids) for i in range(200)]
    passes = [text.split("</think>")[0].count("\n\nWait, ") for text in texts]
    assert min(passes) == 0 and max(passes) >= 2
