"""Training texts: right where they claim to be, wrong only where they say so."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from evals.data.worked_steps import STEP_DELIMITER, WorkedPath, parse
from evals.tasks.arithmetic import LEVELS, sample_expression
from train.nano import tokenizer, traces
from train.nano.examples import IGNORE, ExampleMixture, collate, encode, example, pool
from train.nano.traces import HANDOVER, NO_THINK, Noise, Piece

QUIET = Noise(slip=0.0, lapse=0.0, recheck=0.0)


def draw(seed, level, noise):
    rng = random.Random(seed)
    problem = sample_expression(rng, level, "train")
    return problem, traces.thinking(rng, problem, noise)


def states(problem, pieces):
    progress, found = WorkedPath.start(parse(problem.text)), []
    for line in "".join(piece.text for piece in pieces).split(STEP_DELIMITER)[:-1]:
        progress = progress.step(line)
        found.append(progress)
    return found


@settings(deadline=None, max_examples=80)
@given(st.integers(), st.sampled_from(sorted(LEVELS)))
def test_a_quiet_trace_is_right_at_every_step_and_complete(seed, level):
    found = states(*draw(seed, level, QUIET))
    assert all(progress.on_track for progress in found)
    assert found[-1].done


@settings(deadline=None, max_examples=80)
@given(st.integers(), st.sampled_from(sorted(LEVELS)))
def test_a_noisy_trace_recovers_and_ends_done(seed, level):
    problem, pieces = draw(seed, level, Noise(slip=0.3, lapse=0.5, recheck=0.3))
    assert states(problem, pieces)[-1].done


@settings(deadline=None, max_examples=80)
@given(st.integers(), st.sampled_from(sorted(LEVELS)))
def test_only_wrong_results_are_left_out_of_the_loss(seed, level):
    problem, pieces = draw(seed, level, Noise(slip=0.5, lapse=0.0, recheck=0.0))
    wrong = sum(not piece.learn for piece in pieces)
    assert wrong == sum(not progress.on_track for progress in states(problem, pieces))


def test_lapses_are_followed_by_a_second_pass():
    _, pieces = draw(3, 4, Noise(slip=0.0, lapse=1.0, recheck=0.0))
    assert sum(not piece.learn for piece in pieces) == 1
    assert Piece("Wait, ") in pieces


def test_one_problem_has_several_orders():
    problem = sample_expression(random.Random(1), 5, "train")
    written = {"".join(p.text for p in traces.thinking(random.Random(seed), problem, QUIET)) for seed in range(20)}
    assert len(written) > 10


def test_a_product_that_a_lapse_left_without_a_split_is_finished_at_once():
    for seed in range(20):
        assert [step.left for step in traces.solve(random.Random(seed), parse("0*11"))] == ["0*11"]


def test_solve_returns_the_value():
    steps = traces.solve(random.Random(0), parse("(23+48)*38-17"))
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            assert stop.value == 2681
            break


@settings(deadline=None, max_examples=200)
@given(st.integers(), st.integers(-99999, 99999))
def test_a_wrong_value_is_wrong(seed, value):
    assert traces.wrong_value(random.Random(seed), value) != value


@settings(deadline=None, max_examples=60)
@given(st.integers(), st.sampled_from(sorted(LEVELS)))
def test_pieces_encode_like_their_joined_text(seed, level):
    nano = tokenizer.build()
    problem, pieces = draw(seed, level, Noise(slip=0.3, lapse=0.3, recheck=0.3))
    whole = [*pieces, Piece("</think>\n\n" + traces.answer(problem.value))]
    joined = "".join(piece.text for piece in whole)
    assert encode(nano, whole).ids == nano.encode(joined, add_special_tokens=False)


def test_an_example_depends_on_seed_and_index_alone(nano):
    first = [example(nano, ExampleMixture(), 1, i, 0.5) for i in range(20)]
    assert first == [example(nano, ExampleMixture(), 1, i, 0.5) for i in range(20)]
    assert first != [example(nano, ExampleMixture(), 2, i, 0.5) for i in range(20)]


def test_the_prompt_carries_no_loss_and_the_answer_does(nano):
    for i in range(50):
        item = example(nano, ExampleMixture(), 1, i, 0.9)
        start = item.ids.index(nano.convert_tokens_to_ids("<think>"))
        assert set(item.labels[: start + 1]) == {IGNORE}
        assert item.labels[-1] == nano.eos_token_id


def test_every_kind_of_example_is_drawn(nano):
    texts = [nano.decode(example(nano, ExampleMixture(), 1, i, 0.9).ids) for i in range(200)]
    assert any(NO_THINK in text for text in texts)
    assert any(HANDOVER in text for text in texts)
    assert any("Wait, " in text for text in texts)


def test_the_hand_over_sentence_itself_is_not_learnt(nano):
    mixture = ExampleMixture(no_think=0.0, handover=1.0)
    for i in range(20):
        item = example(nano, mixture, 1, i, 0.9)
        close = len(item.ids) - 1 - item.ids[::-1].index(nano.convert_tokens_to_ids("</think>"))
        sentence = nano.encode(HANDOVER, add_special_tokens=False)
        assert item.ids[close - len(sentence) + 2 : close + 2] == sentence
        assert set(item.labels[close - len(sentence) + 2 : close + 2]) == {IGNORE}


def test_no_training_example_asks_a_held_out_problem(nano):
    held_out = {sample_expression(random.Random(seed), 1, "eval").text for seed in range(3000)}
    for i in range(300):
        text = nano.decode(example(nano, ExampleMixture(curriculum=((1.0, (1.0,)),)), 1, i, 0.9).ids)
        question = text.split("user\n")[1].split("<|im_end|>")[0]
        asked = question.removeprefix("Compute ").removeprefix("Calculate ")
        assert asked.removeprefix("What is ").rstrip(".?") not in held_out


def test_batches_are_padded_on_the_right_to_a_multiple_of_eight(nano):
    (batch,) = pool(nano, ExampleMixture(), 1, 0, batches=1, rows=4, progress=0.5)
    ids, labels = collate(batch, pad=7)
    assert ids.shape == labels.shape
    assert ids.shape[1] % 8 == 0
    for row, item in enumerate(batch):
        assert ids[row, : len(item.ids)].tolist() == item.ids
        assert set(ids[row, len(item.ids) :].tolist()) <= {7}
        assert set(labels[row, len(item.ids) :].tolist()) <= {IGNORE}
