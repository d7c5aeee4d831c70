"""The packaged weights: they load unchanged, fit their limit and do what the model card says."""

import asyncio
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from train.nano import prm, tokenizer
from train.nano.traces import HANDOVER
from ttc import nano
from ttc.answers import kind_of
from ttc.core import Completion, Message, Problem, Sampling
from ttc.engines.embedded.engine import embedded
from ttc.errors import ConfigError
from ttc.scorers.prm import prm as scorer_of
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.session.session import Session

pytestmark = pytest.mark.numeric

LIMIT_BYTES = 12_000_000
RIGHT = "23+48=71\n\n71*3=213\n\n213-17=196\n\n</think>\n\nThe answer is \\boxed{196}."
WRONG = {
    "a sum": RIGHT.replace("=71", "=61").replace("71*3=213", "61*3=183").replace("213-17=196", "183-17=166"),
    "a product": RIGHT.replace("=213", "=223").replace("213-", "223-").replace("196", "206"),
    "the answer": RIGHT.replace("boxed{196}", "boxed{195}"),
}


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="teacher"):
        nano.path("techer")


def test_all_weights_together_fit_the_limit():
    assert sum(file.stat().st_size for file in nano.path("prm").parent.rglob("*")) <= LIMIT_BYTES


@pytest.mark.parametrize("name", nano.NAMES)
def test_each_folder_loads_unchanged_in_transformers(name):
    network, problems = AutoModelForCausalLM.from_pretrained(nano.path(name), dtype="auto", output_loading_info=True)
    assert not any(problems.values())
    assert network.dtype == torch.bfloat16
    assert network.config.head_dim == 64
    loaded, built = AutoTokenizer.from_pretrained(nano.path(name)), tokenizer.build()
    assert loaded.get_vocab() == built.get_vocab()
    assert loaded.chat_template == built.chat_template


def test_the_configs_say_how_to_hand_over_and_how_to_read_the_reward_model():
    configs = {name: json.loads((nano.path(name) / "config.json").read_text()) for name in ("teacher", "prm")}
    assert configs["teacher"]["ttc"] == {"handover": HANDOVER}
    assert configs["prm"]["ttc_prm"] == prm.READING


@pytest.mark.parametrize("mistake", list(WRONG))
def test_the_reward_model_prefers_right_work_to_wrong_work(mistake):
    problem = Problem("p", (Message("user", "Compute (23+48)*3-17."),))
    scorer = scorer_of(None, EmbeddedCore(batch_invariant=True))

    async def go():
        engine = embedded(batch_invariant=True)
        session = Session(problem, engine, answers=kind_of("math"), seed=0, sampling=Sampling())
        prompt = session.render()
        paths = []
        for draw, text in enumerate((RIGHT, WRONG[mistake])):
            ids = engine.encode(text)
            paths.append(prompt.then(Completion((draw,), text, ids, "stop", None)))
        scores = await session.score(scorer, paths)
        await engine.close()
        return [score.value for score in scores]

    right, wrong = asyncio.run(go())
    assert right > 3 * wrong
