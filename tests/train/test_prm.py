"""Process reward models: labels from continuations, training on labels, and the scorer reading what was trained."""

import asyncio
import json
import random

import pytest

from evals.tasks.chain import NAMES, Chains
from evals.tasks.cipher import cipher as task
from tests.loops import finished
from tests.train.cipher_base import STEPS, SYMBOLS, secret
from tests.train.stages import make_stage, setting
from train.base.models import Shape, new_model, save_model
from train.corpora.chain import chain
from train.measure.measure import open_engine
from train.reward_models.monte_carlo import DrawJournal, MonteCarlo, Tried, most_uncertain
from train.reward_models.step_model import StepRow, Steps, new_step_model
from train.stages.prm import read_steps
from ttc.config.registry import SCORERS
from ttc.core import Message, Sampling
from ttc.engines.embedded.engine import EmbeddedEngine
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.verifiers.exact import exact
from ttc.verifiers.steps import prefixes


def test_continuations_go_to_the_prefix_that_is_least_certain_and_never_to_a_decided_one():
    even, sure, open_ = Tried(4, 8), Tried(8, 8), Tried(0, 0)
    assert most_uncertain([even, sure, open_], 1, 4, hard=False) == [(2, 4)]
    assert most_uncertain([even, sure, open_], 3, 4, hard=False) == [(0, 4), (2, 8)]
    assert most_uncertain([open_, open_, open_], 3, 2, hard=False) == [(0, 2), (1, 2), (2, 2)]
    assert most_uncertain([even, sure, Tried(0, 8)], 5, 2, hard=True) == [(2, 10)]
    assert most_uncertain([sure], 5, 2, hard=True) == []


def labelled(cipher_model, journal=None, verifier=None):
    """Rows labelled by continuations of the cipher base, how many were drawn, and the tokens that it took."""
    engine = open_engine(cipher_model, setting(cipher_model, cipher_model))
    items = task(symbols=SYMBOLS, max_steps=STEPS).items(8, 0)
    steps = Steps(cipher_model, "n")  # every counter ends a step
    labels = MonteCarlo(
        engine, verifier or exact(), Sampling(temperature=1.0, max_tokens=14), 1, steps, n=3, continuations=6,
        journal=journal,
    )  # fmt: skip

    async def go():
        return *await labels.rows(items), engine.counters().generated

    return finished(go(), engine)


@pytest.fixture(scope="module")
def made(cipher_model):
    return labelled(cipher_model)[:2]


def test_labels_by_continuation_spend_the_budget_and_the_last_step_has_the_verdict_itself(made):
    rows, drawn = made
    prefixes_ = sum(len(row.labels) - 1 for row in rows)
    assert len(rows) == 24 and 6 * prefixes_ <= drawn <= 6 * prefixes_ + 12
    for row in rows:
        assert row.reads == tuple(sorted(row.reads)) and row.reads[-1] == len(row.ids) - 1
        assert all(label is None or 0 <= label <= 1 for label in row.labels) and row.labels[-1] in (0.0, 1.0)


def test_the_engine_need_not_keep_what_was_drawn_for_a_label(cipher_model, monkeypatch):
    left, prune = [], EmbeddedEngine.prune

    def note(engine, problem_id, path):
        left.append((problem_id, path))
        prune(engine, problem_id, path)

    monkeypatch.setattr(EmbeddedEngine, "prune", note)
    _, drawn, _ = labelled(cipher_model)
    assert len(set(left)) == len(left) == drawn > 0


class _Killed:
    """The exact verifier, until a file has so many lines."""

    def __init__(self, path, lines):
        self._inner, self._path, self._lines = exact(), path, lines

    async def verify(self, target, submission):
        if len(self._path.read_text().splitlines()) >= self._lines:
            raise KeyboardInterrupt
        return await self._inner.verify(target, submission)


@pytest.mark.parametrize("lines", [1, 8])
def test_labelling_that_was_interrupted_goes_on_with_the_same_labels_and_pays_for_little_twice(
    cipher_model, tmp_path, made, lines
):
    path = tmp_path / "draws.jsonl"
    with pytest.raises(KeyboardInterrupt), DrawJournal(path) as journal:
        labelled(cipher_model, journal, _Killed(path, lines))
    assert len(path.read_text().splitlines()) >= lines
    with DrawJournal(path) as journal:
        rows, drawn, _ = labelled(cipher_model, journal)
    assert (rows, drawn) == made
    with DrawJournal(path) as journal:
        assert labelled(cipher_model, journal) == (*made, 0)


def test_a_walk_that_is_right_so_far_is_worth_more_than_one_that_has_gone_wrong(made, cipher_model):
    rows, _ = made
    text, key = Text(cipher_model), secret()
    found = {True: [], False: []}
    for row in rows:
        words = [text.decode([index]) for index in row.ids]
        if "<think>" not in words:
            continue
        place, symbol, right = words.index("<think>"), int(words[0][1:]), True
        for read, label in zip(row.reads[:-1], row.labels[:-1], strict=True):
            if read > place and words[read].startswith("n") and words[read - 1].startswith("s"):
                symbol, now = key.step(symbol), int(words[read - 1][1:])
                right = right and now == symbol
                found[right].append(label)
    means = {right: sum(values) / len(values) for right, values in found.items() if values}
    assert len(found[True]) > 5 and means[True] > means.get(False, 0.0) + 0.3


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A model with random weights, and solutions that are right until a step gives 7 or more: a rule, not a sum."""
    folder = tmp_path_factory.mktemp("chain")
    tokenizer = chain(length=2, operations="+").tokenizer()
    save_model(new_model(Shape(48, 2, 2, 1, 24, 128), tokenizer, 0), tokenizer, folder / "base")
    rng, chains = random.Random(0), Chains(2, "+")
    lines = []
    for number in range(600):
        drawn = chains.draw(rng, rng.choice(["train", "eval"]))
        values = [rng.randrange(10) for _ in drawn.steps]
        named = zip(NAMES, drawn.steps, values, strict=False)
        steps = [f"{name}{operation}{digit}={value}" for name, (operation, digit), value in named]
        labels = [float(max(values[: place + 1]) < 7) for place in range(len(values))]
        row = {"id": number, "problem": drawn.question, "steps": steps, "labels": labels, "cluster": drawn.question}
        lines.append(json.dumps(row))
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(language):
    place = setting(language / "1-prm", language / "base")
    stage = make_stage(
        "prm",
        data=str(language / "steps.jsonl"),
        step_delimiter=".",
        steps=60,
        lr=3e-3,
        rows=48,
        warmup=6,
        eval_every=60,
        held_out_share=0.3,
    )
    stage.check(True)
    return place, stage.run(place)


def test_training_on_labels_judges_the_steps_of_unseen_problems_rightly(trained):
    _, result = trained
    assert result.metrics["steps_right_gain_low"] > 0
    assert result.metrics["steps_right_after"] > 0.9 and result.metrics["ranking"] > 0.95
    assert result.metrics["first_error_f1"] > result.metrics.get("first_error_f1_before", 0.0)


def test_the_scorer_reads_the_trained_folder_with_the_probabilities_of_training(trained, language):
    place, _ = trained
    scorer = SCORERS.load("prm")(str(place.folder / "prm"), EmbeddedCore(dtype="float32", device="cpu"))
    text = Text(language / "base")
    root = text.render([_message("3a+1b+2=")], None)
    path = prefixes(root, text.encode, ["a+1=4", "b+2=9"], ".")[-1]
    (score,) = asyncio.run(scorer.score([path], lambda usage: None))
    model = new_step_model(place.folder / "prm", "label", ".", None, 0, "cpu")
    ours = model.scores([_as_row(path, Steps(language / "base", ".").reads(path))], 0)[0]
    assert score.steps == pytest.approx(ours, abs=1e-5) and score.steps[0] > score.steps[1]


def _message(content):
    return Message("user", content)


def _as_row(path, reads):
    return StepRow("x", path.token_ids, reads, (1.0,) * len(reads))


def test_a_language_model_may_say_a_good_or_a_bad_token_instead(language):
    place = setting(language / "1-token", language / "base")
    fields = {"data": str(language / "steps.jsonl"), "step_delimiter": ".", "steps": 2, "lr": 1e-3, "eval_every": 2}
    make_stage("prm", **fields, form="token", good="+", bad="-").run(place)
    stated = json.loads((place.folder / "prm" / "config.json").read_text())["ttc_prm"]
    assert stated == {"kind": "token", "step_delimiter": ".", "good": "+", "bad": "-"}
    scorer = SCORERS.load("prm")(str(place.folder / "prm"), EmbeddedCore(dtype="float32", device="cpu"))
    text = Text(language / "base")
    path = prefixes(text.render([_message("3a+1b+2=")], None), text.encode, ["a+1=4"], ".")[-1]
    (score,) = asyncio.run(scorer.score([path], lambda usage: None))
    ours = new_step_model(place.folder / "prm", "token", ".", ("+", "-"), 0, "cpu")
    assert score.steps == pytest.approx(ours.scores([_as_row(path, (len(path.token_ids) - 1,))], 0)[0], abs=1e-5)


def test_activations_are_computed_again_where_that_is_asked_for(language, monkeypatch):
    place = setting(language / "2-again", language / "base")
    models = []
    monkeypatch.setattr("train.stages.prm.fit", lambda model, *rest: models.append(model) or ({}, ""))
    fields = {"data": str(language / "steps.jsonl"), "step_delimiter": ".", "steps": 1, "lr": 1e-3}
    make_stage("prm", **fields, checkpointing=True).run(place)
    assert models[0].is_gradient_checkpointing


def test_labels_made_by_continuation_are_kept_and_a_run_on_them_resumes(cipher_model, tmp_path):
    place = setting(tmp_path / "2-prm", cipher_model)
    fields = {
        "task": f"cipher:symbols={SYMBOLS},max_steps={STEPS},split=train", "step_delimiter": "n", "limit": 20, "n": 2,
        "continuations": 2, "rounds": 2, "steps": 3, "lr": 1e-3, "rows": 8, "eval_every": 3, "held_out_share": 0.3,
    }  # fmt: skip
    first = make_stage("prm", **fields).run(place)
    kept = (place.folder / "labels.jsonl").read_text()
    again = make_stage("prm", **fields).run(place)
    assert (place.folder / "labels.jsonl").read_text() == kept
    assert again.metrics["steps_right_after"] == first.metrics["steps_right_after"]
    assert (place.folder / "model" / "config.json").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "exactly one of"),
        ({"task": "cipher", "n": 0}, "n must be"),
        ({"task": "cipher", "form": "token", "good": "+"}, "good and bad"),
        ({"task": "cipher", "good": "+", "bad": "-"}, "good and bad"),
        ({"data": "nowhere.jsonl"}, "does not exist"),
    ],
)
def test_fields_that_cannot_be_are_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        make_stage("prm", steps=1, lr=1e-3, **change).check(True)


def test_a_delimiter_that_does_not_keep_the_steps_apart_is_refused(language):
    with pytest.raises(ConfigError, match="step_delimiter"):
        read_steps(language / "steps.jsonl", language / "base", "=")
