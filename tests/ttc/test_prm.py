"""The incremental reward model against a direct computation, on small random weights of the true architectures."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil

import pytest

from benchmarks.forest import held
from ttc.core import Completion, Message, Prompt, Usage
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.reward_models.embedded import IncrementalScorer

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.numeric

STEPS = ("1+1=2\n\n", "2*3=6\n\n", "so 6")
KIND = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
SIZE = {"intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 256}


def make_tokenizer(folder: pathlib.Path, tag: bool = True) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    if tag:
        core.add_tokens([AddedToken("<step>", special=False, normalized=False)])
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """A Qwen3 token classifier, a Qwen2 with the two-layer head of Qwen2.5-Math-PRM, a Llama step-token model."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2Model,
        Qwen3Config,
        Qwen3ForTokenClassification,
    )

    made: dict[str, pathlib.Path] = {}
    torch.manual_seed(0)
    for name in ("classifier", "two-layer", "step-token"):
        made[name] = tmp_path_factory.mktemp(name)
        make_tokenizer(made[name])
    Qwen3ForTokenClassification(Qwen3Config(**KIND, **SIZE, head_dim=32, num_labels=2)).save_pretrained(
        made["classifier"]
    )
    LlamaForCausalLM(LlamaConfig(**KIND, **SIZE)).save_pretrained(made["step-token"])
    from safetensors.torch import save_file

    qwen2 = Qwen2Model(Qwen2Config(**KIND, **SIZE))
    qwen2.save_pretrained(made["two-layer"])
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    tensors = {f"model.{k}": v.contiguous() for k, v in qwen2.state_dict().items()}
    tensors |= {f"score.{k}": v for k, v in head.state_dict().items()}
    save_file(tensors, made["two-layer"] / "model.safetensors", metadata={"format": "pt"})
    return made


OPTIONS: dict[str, dict[str, str]] = {
    "classifier": {},
    "two-layer": {"step_tag": "<step>"},
    "step-token": {"kind": "token", "step_tag": "<step>", "good": "+", "bad": "-"},
}


def scorer_of(folder: pathlib.Path, name: str) -> IncrementalScorer:
    return prm(str(folder), EmbeddedCore(dtype="float32", device="cpu"), **OPTIONS[name])  # type: ignore[arg-type]


def root(folder: pathlib.Path, question: str = "user: 1+1?\n", problem: str = "p") -> Prompt:
    from transformers import AutoTokenizer

    ids = tuple(AutoTokenizer.from_pretrained(folder).encode(question, add_special_tokens=False))
    return Prompt(
        text=question,
        token_ids=ids,
        rendered_len=len(ids),
        rendered_chars=len(question),
        messages=(Message("user", question),),
        problem_id=problem,
    )


def grow(prompt: Prompt, text: str, draw: int = 0) -> Prompt:
    alphabet = root_ids(text)
    return prompt.then(Completion((*prompt.path, draw), text, alphabet, "stop", "\n\n"))


def root_ids(text: str) -> tuple[int, ...]:
    from tokenizers import pre_tokenizers

    order = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return tuple(order[c] for piece, _ in pieces for c in piece)


def direct(folder: pathlib.Path, name: str, question: str, steps: tuple[str, ...]) -> list[float]:
    """One whole forward pass of transformers' own module, read where the model's authors read it."""
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer, Qwen2Model

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tag = tokenizer.encode("<step>", add_special_tokens=False) if name != "classifier" else []
    ids, reads = list(root_ids(question)), []
    for step in steps:
        ids += [*root_ids(step), *tag]
        reads.append(len(ids) - 1)
    batch = torch.tensor([ids])
    with torch.inference_mode():
        if name == "classifier":
            logits = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)(batch).logits
            return torch.softmax(logits[0, reads], -1)[:, 1].tolist()
        if name == "step-token":
            logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(batch).logits
            return torch.softmax(logits[0, reads][:, [*root_ids("+"), *root_ids("-")]], -1)[:, 0].tolist()
        from safetensors.torch import load_file

        tensors = load_file(folder / "model.safetensors")
        model = Qwen2Model.from_pretrained(folder, dtype=torch.float32)
        model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        hidden = torch.relu(
            model(batch).last_hidden_state[0, reads] @ tensors["score.0.weight"].T + tensors["score.0.bias"]
        )
        return torch.softmax(hidden @ tensors["score.2.weight"].T + tensors["score.2.bias"], -1)[:, 1].tolist()


@pytest.mark.parametrize("name", list(OPTIONS))
def test_step_by_step_scores_equal_one_direct_pass_and_each_token_is_computed_once(
    folders: dict[str, pathlib.Path], name: str
) -> None:
    folder, usages = folders[name], []
    scorer = scorer_of(folder, name)
    prompt = root(folder)

    async def go() -> list[tuple[float, ...]]:
        found, node = [], prompt
        for step in STEPS:
            node = grow(node, step)
            (score,) = await scorer.score([node], usages.append)
            found.append(score.steps)
        return found

    found = asyncio.run(go())
    expected = direct(folder, name, prompt.text, STEPS)
    for length, steps in enumerate(found, start=1):
        assert steps == pytest.approx(expected[:length], abs=2e-5)
    num_tags = 0 if name == "classifier" else len(STEPS)
    total = sum(usages, Usage())
    assert total.scored == prompt.rendered_len + sum(len(root_ids(step)) for step in STEPS) + num_tags
    assert total.flops > 0


@pytest.mark.parametrize("name", list(OPTIONS))
def test_forks_scored_at_once_share_their_prefix_and_equal_the_direct_pass(
    folders: dict[str, pathlib.Path], name: str
) -> None:
    folder, usages = folders[name], []
    scorer = scorer_of(folder, name)
    first = grow(root(folder), STEPS[0])
    forks = [grow(first, text, draw) for draw, text in enumerate(["2*3=6\n\n", "2*3=5\n\n", "9\n\n"])]

    async def go():
        return await asyncio.gather(*(scorer.score([p], usages.append) for p in [first, *forks]))

    scores = [score for (score,) in asyncio.run(go())]
    for prompt, score in zip(forks, scores[1:], strict=True):
        steps = (STEPS[0], prompt.generated_text[len(STEPS[0]) :])
        assert score.steps == pytest.approx(direct(folder, name, first.text[: first.rendered_chars], steps), abs=2e-5)
    num_tags = 0 if name == "classifier" else 4
    unique = first.rendered_len + len(root_ids(STEPS[0])) + sum(len(root_ids(p.generated_text)) for p in forks)
    unique -= 3 * len(root_ids(STEPS[0]))
    assert sum(usages, Usage()).scored == unique + num_tags


def test_paths_of_unlike_depth_are_one_batch_of_the_model_unless_one_continues_another(
    folders: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders["classifier"]
    scorer, num_paths = scorer_of(folder, "classifier"), []
    compute = IncrementalScorer._compute_wave
    monkeypatch.setattr(
        IncrementalScorer, "_compute_wave", lambda self, works: num_paths.append(len(works)) or compute(self, works)
    )
    chains = [[root(folder, problem=name)] for name in "pq"]
    for chain in chains:
        for step in STEPS:
            chain.append(grow(chain[-1], step))
    (_, p1, p2, p3), (_, q1, *_) = chains

    async def go(*prompts: Prompt) -> list[tuple[float, ...]]:
        scores = await asyncio.gather(*(scorer.score([prompt], lambda usage: None) for prompt in prompts))
        return [score.steps for (score,) in scores]

    asyncio.run(go(p1))
    found = asyncio.run(go(p2, q1))
    assert num_paths == [1, 2]
    found += asyncio.run(go(p3, chains[1][3], chains[1][2]))
    assert num_paths[2:] == [2, 1]
    expected = direct(folder, "classifier", p1.text[: p1.rendered_chars], STEPS)
    for steps in found:
        assert steps == pytest.approx(expected[: len(steps)], abs=2e-5)


def test_released_problems_are_computed_anew_and_others_are_kept(folders: dict[str, pathlib.Path]) -> None:
    folder = folders["classifier"]
    scorer, counts = scorer_of(folder, "classifier"), []

    async def go() -> None:
        for problem in ("a", "b"):
            await scorer.score([grow(root(folder, problem=problem), STEPS[0])], lambda u: None)
        scorer.release("a")
        for problem in ("a", "b"):
            seen: list[Usage] = []
            await scorer.score([grow(root(folder, problem=problem), STEPS[0])], seen.append)
            counts.append(sum(seen, Usage()).scored)

    asyncio.run(go())
    assert counts[0] > 0 and counts[1] == 0


def test_a_pruned_path_gives_its_memory_back_and_the_others_go_on(folders: dict[str, pathlib.Path]) -> None:
    folder = folders["classifier"]
    scorer = scorer_of(folder, "classifier")
    first = grow(root(folder), STEPS[0])
    forks = [grow(first, "2*3=6, as everybody knows who has counted\n\n", draw) for draw in range(3)]
    held: list[int] = []

    async def go() -> None:
        usages: list[Usage] = []
        await scorer.score([first, *forks], usages.append)
        for fork in forks[1:]:
            held.append(scorer._body.pool.num_tokens)
            scorer.prune(fork.problem_id, fork.path)
            await scorer.score([first], usages.append)  # after the worker has done it
        held.append(scorer._body.pool.num_tokens)
        before = sum(usages, Usage()).scored
        await scorer.score([grow(forks[0], "7\n\n")], usages.append)
        assert sum(usages, Usage()).scored - before == len(root_ids("7\n\n"))

    asyncio.run(go())
    step = len(root_ids(forks[0].generated_text)) - len(root_ids(STEPS[0]))
    assert held[0] - held[1] >= step and held[1] - held[2] >= step


def test_a_prompt_with_nothing_generated_has_no_verdict(folders: dict[str, pathlib.Path]) -> None:
    folder = folders["classifier"]
    (score,) = asyncio.run(scorer_of(folder, "classifier").score([root(folder)], lambda u: None))
    assert score.value is None and score.note


def test_a_foreign_tokenizer_is_refused_by_name(folders: dict[str, pathlib.Path]) -> None:
    folder = folders["classifier"]
    odd = Prompt(text="hello", token_ids=(7, 8, 9), rendered_len=3, rendered_chars=5, problem_id="p")
    with pytest.raises(ConfigError, match="tokenizer"):
        asyncio.run(scorer_of(folder, "classifier").score([grow(odd, "x")], lambda u: None))


def test_a_generator_with_another_tokenizer_is_refused_when_the_scorer_is_made(
    folders: dict[str, pathlib.Path],
) -> None:
    folder = str(folders["classifier"])
    assert prm(folder)
    with pytest.raises(ConfigError, match="its tokenizer does not match the generator's"):
        prm(folder, engine=ScriptedEngine(lambda prompt, path, key: ""))


def test_a_step_tag_that_the_tokenizer_splits_is_refused(folders: dict[str, pathlib.Path]) -> None:
    with pytest.raises(ConfigError, match="step_tag"):
        prm(str(folders["classifier"]), step_tag="<nope>")


def test_a_folder_without_a_reward_head_is_refused(folders: dict[str, pathlib.Path]) -> None:
    with pytest.raises(ConfigError, match="classification head"):
        prm(str(folders["step-token"]))


def configured(folder: pathlib.Path, copy: pathlib.Path, **reading: int) -> pathlib.Path:
    """A copy of a reward model whose config states how it is read."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"ttc_prm": reading}))
    return copy


def test_the_reading_stated_in_the_config_is_used(folders: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    folder = configured(folders["classifier"], tmp_path / "copy", positive_label=0)
    prompt = grow(root(folder), STEPS[0])
    (zero,) = asyncio.run(prm(str(folder), EmbeddedCore(dtype="float32")).score([prompt], lambda u: None))
    (one,) = asyncio.run(scorer_of(folders["classifier"], "classifier").score([prompt], lambda u: None))
    assert zero.value == pytest.approx(1 - (one.value or 0.0), abs=1e-5)


def test_a_likelihood_accumulates_over_the_path_and_skips_injected_tokens(folders: dict[str, pathlib.Path]) -> None:
    from dataclasses import replace
    from math import exp

    from transformers import AutoModelForCausalLM

    folder, beta = folders["step-token"], 0.5
    scorer = prm(str(folder), EmbeddedCore(dtype="float32", device="cpu"), kind="likelihood", beta=beta)
    prompt = root(folder)
    node, injected, found = prompt, [], []
    for number, step in enumerate(STEPS):
        ids = root_ids(step)
        theirs = tuple(None if number == 1 and at < 2 else -0.1 for at in range(len(ids)))
        injected += [value is None for value in theirs]
        node = node.then(replace(Completion((*node.path, 0), step, ids, "stop", "\n\n"), logprobs=theirs))
        (score,) = asyncio.run(scorer.score([node], lambda usage: None))
        found.append(score)
    ids = [*root_ids(prompt.text), *(token for step in STEPS for token in root_ids(step))]
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    margins = (logits[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0] - logits[:-1].amax(-1)).tolist()
    total, at, expected = 0.0, 0, []
    for step in STEPS:
        for _ in root_ids(step):
            total += 0.0 if injected[at] else beta * margins[prompt.rendered_len - 1 + at]
            at += 1
        expected.append(exp(total))
    assert [score.value for score in found] == pytest.approx(expected, rel=1e-3)
    assert found[-1].steps == pytest.approx(expected, rel=1e-3)
    whole = replace(node, path=(9,))
    assert asyncio.run(scorer.score([whole], lambda usage: None))[0].steps == pytest.approx(expected, rel=1e-3)


def test_a_greedy_path_has_likelihood_one(folders: dict[str, pathlib.Path]) -> None:
    from transformers import AutoModelForCausalLM

    folder = folders["step-token"]
    scorer = prm(str(folder), EmbeddedCore(dtype="float32", device="cpu"), kind="likelihood")
    prompt = root(folder)
    ids = torch.tensor([prompt.token_ids])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chosen = []
    for _ in range(4):
        with torch.inference_mode():
            chosen.append(int(model(ids).logits[0, -1].argmax()))
        ids = torch.cat((ids, torch.tensor([[chosen[-1]]])), 1)
    path = prompt.then(Completion((0,), "?", tuple(chosen), "length"))
    (score,) = asyncio.run(scorer.score([path], lambda usage: None))
    assert score.value == pytest.approx(1.0, abs=1e-5)


def test_an_unknown_key_in_the_folders_config_is_named(
    folders: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = configured(folders["classifier"], tmp_path / "copy", positve_label=0)
    with pytest.raises(ConfigError, match="positve_label"):
        prm(str(folder))


def test_memory_at_the_end_of_a_search_is_at_most_1_3_of_the_tokens_of_its_live_leaves() -> None:
    shares = held(3, 16)
    assert len(shares) == 3 and min(shares) >= 1 and max(shares) <= 1.3
