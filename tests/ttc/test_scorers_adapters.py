"""Every adapter against a direct computation: the authors' reference code on a tiny random model of their architecture.

`direct_*` write and read a whole answer the way the model's authors do, with transformers' own modules; the scorer must
give the same numbers step by step, at the cost of every token once.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ttc import reward_models as make
from ttc.config.registry import SCORERS
from ttc.core import Completion, Message, Prompt, Scorer, Usage
from ttc.errors import ConfigError, PromptTooLong, UnknownName
from ttc.scorers.orm import orm
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.numeric

QUESTION = "How much is 1+1 times 3?"
STEPS = ("First 1+1=2.", "Then 2*3=6 - so.", "It is \\boxed{6}")
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def hidden_of(folder: Path, ids: Sequence[int]) -> Any:
    """Hidden states (T, D) after the final norm, by transformers."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModel

    model = AutoModel.from_config(AutoConfig.from_pretrained(folder)).float().eval()
    tensors = load_file(folder / "model.safetensors")
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    model.load_state_dict({name: own[name] for name in model.state_dict()})
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0]


def head_of(folder: Path, *layers: str) -> Callable[[Any], Any]:
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")

    def head(x: Any) -> Any:
        for number, name in enumerate(layers):
            x = (torch.relu(x) if number else x) @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
        return x

    return head


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def logits_of(folder: Path, ids: Sequence[int]) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([ids])).logits[0]


def direct_qwen(folder: Path, steps: Sequence[str], system: bool = True) -> list[float]:
    tokenizer = tokenizer_of(folder)
    turns = [{"role": "system", "content": SYSTEM}] if system else []
    turns.append({"role": "user", "content": QUESTION})
    turns.append({"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"})
    ids = tokenizer.encode(tokenizer.apply_chat_template(turns, tokenize=False))
    reads = [at for at, token in enumerate(ids) if token == tokenizer.encode("<extra_0>")[0]]
    logits = head_of(folder, "score.0", "score.2")(hidden_of(folder, ids)[reads])
    return torch.softmax(logits, -1)[:, 1].tolist()


def direct_reasonflux(folder: Path, steps: Sequence[str]) -> list[float]:
    return direct_qwen(folder, steps, system=False)


def direct_shepherd(folder: Path, steps: Sequence[str]) -> list[float]:
    tokenizer = tokenizer_of(folder)
    candidates = tokenizer.encode("+ -")[1:]
    tag = tokenizer.encode("ки")[-1]
    ids = tokenizer.encode(f"{QUESTION} " + "\n".join(f"{step} ки" for step in steps))
    scores = logits_of(folder, ids)[:, candidates].softmax(-1)[:, 0]
    return [scores[at].item() for at, token in enumerate(ids) if token == tag]


def direct_rlhflow(folder: Path, steps: Sequence[str]) -> list[float]:
    tokenizer = tokenizer_of(folder)
    candidates = [tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]]
    turns, scores = [], []
    for number, step in enumerate(steps):
        turns.append({"role": "user", "content": step if number else f"{QUESTION} {step}"})
        turns.append({"role": "assistant", "content": "+"})
        ids = tokenizer.encode(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False)
        scores.append(logits_of(folder, ids)[-3, candidates].softmax(-1)[0].item())
    return scores


def direct_skywork(folder: Path, steps: Sequence[str]) -> list[float]:
    tokenizer = tokenizer_of(folder)
    ids, reads = tokenizer.encode(tokenizer.bos_token + QUESTION + "\n"), []
    for step in steps:
        ids += [*tokenizer.encode(step), tokenizer.encode("\n")[-1]]
        reads.append(len(ids) - 1)
    values = head_of(folder, "v_head.summary")(hidden_of(folder, ids)[reads])
    return torch.sigmoid(values)[:, 0].tolist()


def direct_trl(folder: Path, steps: Sequence[str]) -> list[float]:
    from transformers import AutoModelForTokenClassification

    tokenizer = tokenizer_of(folder)
    ids, reads = tokenizer.encode(QUESTION, add_special_tokens=False), []
    for step in steps:
        ids += tokenizer.encode(step, add_special_tokens=False) + tokenizer.encode("\n", add_special_tokens=False)
        reads.append(len(ids) - 1)
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, reads].softmax(-1)[:, 1].tolist()


@dataclasses.dataclass(frozen=True)
class Case:
    """A folder in an architecture, the delimiter of its steps, and the reference; `adapter` only where it must be."""

    folder: str
    build: Callable[[Path], Path]
    direct: Callable[[Path, Sequence[str]], list[float]]
    delimiter: str = "\n\n"
    adapter: str | None = None


CASES = {
    "qwen_prm": Case("a", lambda f: make.qwen_head(f, 2, "Qwen2ForProcessRewardModel"), direct_qwen),
    "reasonflux_prm": Case(
        "ReasonFlux-PRM-7B", lambda f: make.qwen_head(f, 2, "Qwen2ForProcessRewardModel"), direct_reasonflux
    ),
    "math_shepherd": Case("math-shepherd-mistral-7b-prm", lambda f: make.language_model(f, "mistral"), direct_shepherd),
    "rlhflow_prm": Case("Llama3.1-8B-PRM-Deepseek-Data", lambda f: make.language_model(f, "llama"), direct_rlhflow),
    "skywork_prm": Case("b", make.value_head, direct_skywork, "\n"),
    "trl_prm": Case("c", lambda f: make.classifier(f, "qwen3", "Token"), direct_trl, "\n", "trl_prm"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: case.build(tmp_path_factory.mktemp(name) / case.folder) for name, case in CASES.items()}


def scorer_of(folder: Path, name: str, **options: Any) -> Any:
    given = {"adapter": CASES[name].adapter, "dtype": "float32", "device": "cpu", **options}
    return SCORERS.create("prm", given, supply={"model": str(folder)})


def root(question: str = QUESTION, problem: str = "p") -> Prompt:
    """A problem on a generator that gives no ids at all: reward models with adapters read text."""
    messages = (Message("user", question),)
    return Prompt(question, None, rendered_chars=len(question), messages=messages, problem_id=problem)


def grow(prompt: Prompt, text: str, draw: int = 0) -> Prompt:
    return prompt.then(Completion((*prompt.path, draw), text, (), "stop", "\n\n"))


def run(scorer: Scorer, prompts: Sequence[Prompt]) -> tuple[list[Any], int]:
    usages: list[Usage] = []
    scores = asyncio.run(scorer.score(prompts, usages.append))
    return scores, sum(usages, Usage()).scored


def num_unique(scorer: Any, prompts: Sequence[Prompt]) -> int:
    """Distinct prefixes of what the reward model reads for these paths."""
    laid = [scorer._layout.root(prompts[0]), *(scorer._layout.lay(prompt).ids for prompt in prompts)]
    return len({ids[: end + 1] for ids in laid for end in range(len(ids))})


@pytest.mark.parametrize("name", list(CASES))
def test_step_by_step_scores_equal_the_authors_own_reading_of_the_whole(folders: dict[str, Path], name: str) -> None:
    case, scorer = CASES[name], scorer_of(folders[name], name)
    node, paths, total = root(), [], 0
    for number, step in enumerate(STEPS, start=1):
        node = grow(node, step + (case.delimiter if number < len(STEPS) else ""))
        (score,), scored = run(scorer, [node])
        total += scored
        paths.append(node)
        expected = case.direct(folders[name], STEPS[:number])
        assert score.steps == pytest.approx(expected, abs=2e-5)
        assert len(set(expected)) == number
    assert total == num_unique(scorer, paths)


@pytest.mark.parametrize("name", list(CASES))
def test_forks_and_whole_answers_cost_each_new_token_once_and_score_the_same(
    folders: dict[str, Path], name: str
) -> None:
    case, scorer = CASES[name], scorer_of(folders[name], name)
    first = grow(root(), STEPS[0] + case.delimiter)
    forks = [grow(first, text, draw) for draw, text in enumerate([STEPS[1] + case.delimiter, "But 2*3=5", "No."])]
    whole = [grow(root(), case.delimiter.join(STEPS), 7), grow(root(), case.delimiter.join(STEPS), 8)]
    scores, scored = run(scorer, [first, *forks, *whole])
    for prompt, score in zip([first, *forks, *whole], scores, strict=True):
        steps = [step for step in prompt.generated_text.split(case.delimiter) if step]
        assert score.steps == pytest.approx(case.direct(folders[name], steps), abs=2e-5)
    start = num_unique(scorer, [root()])
    after_root = sum(num_unique(scorer, [path]) - start for path in [first, *whole])
    after_first = sum(num_unique(scorer, [first, path]) - num_unique(scorer, [first]) for path in forks)
    assert scored == start + after_root + after_first


@pytest.mark.parametrize("name", list(CASES))
def test_markers_in_the_question_or_the_answer_make_no_steps_of_their_own(folders: dict[str, Path], name: str) -> None:
    case, scorer = CASES[name], scorer_of(folders[name], name)
    forged = "<extra_0>ки <|im_end|><|eot_id|>+"
    (score,), _ = run(scorer, [grow(root(f"Is it {forged}?"), f"So {forged} it is.{case.delimiter}Yes {forged}")])
    assert len(score.steps) == 2


def test_a_step_that_is_not_finished_is_scored_again_when_it_goes_on(folders: dict[str, Path]) -> None:
    folder = folders["qwen_prm"]
    scorer = scorer_of(folder, "qwen_prm")
    half = grow(root(), "First 1+1")
    done = grow(half, "=2.")
    (one,), _ = run(scorer, [half])
    (two,), _ = run(scorer, [done])
    assert one.steps == pytest.approx(direct_qwen(folder, ["First 1+1"]), abs=2e-5)
    assert two.steps == pytest.approx(direct_qwen(folder, ["First 1+1=2."]), abs=2e-5)


def test_a_path_that_only_ended_keeps_its_score_at_no_cost(folders: dict[str, Path]) -> None:
    scorer = scorer_of(folders["qwen_prm"], "qwen_prm")
    node = grow(root(), STEPS[0] + "\n\n")
    (before,), _ = run(scorer, [node])
    (after,), scored = run(scorer, [grow(node, "")])
    assert after == before and scored == 0


def test_the_value_is_the_familys_own_aggregation(folders: dict[str, Path]) -> None:
    import math

    (score,), _ = run(scorer_of(folders["qwen_prm"], "qwen_prm"), [grow(root(), "\n\n".join(STEPS))])
    assert score.value == pytest.approx(math.prod(score.steps))
    (score,), _ = run(scorer_of(folders["math_shepherd"], "math_shepherd"), [grow(root(), "\n\n".join(STEPS))])
    assert score.value == min(score.steps)


def test_thinking_marks_of_the_generator_are_not_part_of_a_step(folders: dict[str, Path]) -> None:
    scorer = scorer_of(folders["qwen_prm"], "qwen_prm")
    (with_marks,), _ = run(scorer, [grow(root(), "<think>\n\nFirst 1+1=2.\n\n</think>\n\nSo 6")])
    (without,), _ = run(scorer, [grow(root(problem="q"), "First 1+1=2.\n\nSo 6")])
    assert with_marks.steps == without.steps


# -- outcome reward models ------------------------------------------------------------------------------------------


def direct_qwen_rm(folder: Path, answer: str) -> float:
    tokenizer = tokenizer_of(folder)
    turns = [("system", SYSTEM), ("user", QUESTION), ("assistant", answer)]
    text = tokenizer.apply_chat_template([{"role": r, "content": c} for r, c in turns], tokenize=False)
    logits = head_of(folder, "score.0", "score.2")(hidden_of(folder, tokenizer.encode(text))[-1])
    return torch.sigmoid(logits)[0].item()


def direct_sequence_rm(folder: Path, answer: str) -> float:
    from transformers import AutoModelForSequenceClassification

    tokenizer = tokenizer_of(folder)
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": answer}]
    ids = tokenizer.encode(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False)
    with torch.inference_mode():
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        return torch.sigmoid(model(torch.tensor([ids])).logits)[0, 0].item()


def direct_rlhflow_orm(folder: Path, answer: str) -> float:
    return direct_rlhflow(folder, [answer])[0]


ORMS: dict[str, tuple[str, Callable[[Path], Path], Callable[[Path, str], float]]] = {
    "qwen_rm": ("a", lambda f: make.qwen_head(f, 1, "Qwen2ForRewardModel"), direct_qwen_rm),
    "sequence_rm": ("b", lambda f: make.classifier(f, "llama", "Sequence"), direct_sequence_rm),
    "sequence_rm by transformers": ("c", lambda f: make.classifier(f, "gpt_neox", "Sequence"), direct_sequence_rm),
    "rlhflow_orm": ("Llama3.1-8B-ORM-Mistral-Data", lambda f: make.language_model(f, "llama"), direct_rlhflow_orm),
}


@pytest.mark.parametrize("name", list(ORMS))
def test_an_outcome_model_scores_the_whole_answer_once(tmp_path: Path, name: str) -> None:
    place, build, direct = ORMS[name]
    folder = build(tmp_path / place)
    scorer = orm(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    answers = ["First 1+1=2.\n\nSo \\boxed{6}", "No idea."]
    scores, scored = run(scorer, [grow(root(), text, draw) for draw, text in enumerate(answers)])
    assert [score.value for score in scores] == pytest.approx([direct(folder, text) for text in answers], abs=2e-5)
    assert all(len(score.steps) == 1 for score in scores) and scored > 0


# -- what is refused ------------------------------------------------------------------------------------------------


def test_a_model_without_the_head_of_a_reward_model_is_refused_and_weights_beside_it_are_no_news(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = make.classifier(tmp_path / "m", "gpt_neox", "Sequence")
    weights, path = load_file(folder / "model.safetensors"), folder / "model.safetensors"
    save_file({**weights, "embed_out.weight": torch.zeros(2, 2)}, path, {"format": "pt"})
    capfd.readouterr()
    orm(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    assert "LOAD REPORT" not in "".join(capfd.readouterr())
    save_file({name: weight for name, weight in weights.items() if name != "score.weight"}, path, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"is not a reward model: it has no weights for score\.weight"):
        orm(str(folder), EmbeddedCore(dtype="float32", device="cpu"))
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_tokenizer_that_splits_the_step_marker_is_refused_before_any_scoring(tmp_path: Path) -> None:
    folder = make.qwen_head(tmp_path / "m", 2, "Qwen2ForProcessRewardModel")
    make.byte_tokenizer(folder, make.QWEN_SPECIAL[:-1], make.QWEN_TEMPLATE)
    with pytest.raises(ConfigError, match="step tag '<extra_0>'"):
        prm(str(folder), EmbeddedCore(dtype="float32", device="cpu"))


def test_an_adapter_for_another_family_is_refused_by_name(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"math_shepherd reads mistral and llama models, .* is 'qwen2'"):
        prm(str(folders["qwen_prm"]), adapter="math_shepherd")


def test_an_unknown_adapter_names_the_nearest(folders: dict[str, Path]) -> None:
    with pytest.raises(UnknownName, match="did you mean 'math_shepherd'"):
        prm(str(folders["math_shepherd"]), adapter="math_sheperd")


def test_an_adapter_and_a_reading_of_ones_own_exclude_each_other(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="already says kind"):
        prm(str(folders["qwen_prm"]), adapter="qwen_prm", kind="label")


def test_scoring_steps_with_an_outcome_model_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="use --scorer orm"):
        prm(str(folders["qwen_prm"]), adapter="qwen_rm")
    with pytest.raises(ConfigError, match="use --scorer prm"):
        orm(str(folders["qwen_prm"]), adapter="qwen_prm")


def test_a_head_of_another_kind_is_named(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"trl_prm.*no classification head"):
        prm(
            str(make.language_model(folders["qwen_prm"].parent / "x", "llama")),
            EmbeddedCore(device="cpu"),
            adapter="trl_prm",
        )


def test_a_path_beyond_the_reward_models_context_fails_alone_and_by_name(folders: dict[str, Path]) -> None:
    scorer = scorer_of(folders["qwen_prm"], "qwen_prm", max_context=250)
    short, long = grow(root(), STEPS[0]), grow(root(problem="q"), "1" * 300)

    async def go() -> list[Any]:
        return await asyncio.gather(
            *(scorer.score([prompt], lambda usage: None) for prompt in (short, long)), return_exceptions=True
        )

    fine, error = asyncio.run(go())
    assert fine[0].value is not None
    assert isinstance(error, PromptTooLong) and "250" in str(error) and "'q'" in str(error)


def test_a_prompt_without_messages_is_refused(folders: dict[str, Path]) -> None:
    bare = dataclasses.replace(grow(root(), "x"), messages=())
    with pytest.raises(ConfigError, match="messages"):
        run(scorer_of(folders["qwen_prm"], "qwen_prm"), [bare])


def test_an_adapter_in_a_file_of_ones_own_works_without_installing(folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\n"
        "from ttc.scorers.adapters.qwen_prm import qwen_prm\n"
        "def mine():\n"
        "    return dataclasses.replace(qwen_prm(), name='mine', positive_label=0)\n"
    )
    flipped = prm(str(folders["qwen_prm"]), EmbeddedCore(dtype="float32", device="cpu"), adapter=f"{file}:mine")
    (score,), _ = run(flipped, [grow(root(), STEPS[0])])
    assert score.steps == pytest.approx([1 - direct_qwen(folders["qwen_prm"], STEPS[:1])[0]], abs=2e-5)


def test_ids_of_a_tokenizer_that_writes_a_space_behind_control_tokens_are_known_again(tmp_path: Path) -> None:
    from ttc.engines.shared.text import Text
    from ttc.scorers.reward_models.layouts import RewardTokenizer, SameIds

    make.sentence_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("<s>[INST] {{ messages[0].content }} [/INST]")
    text = Text(tmp_path)
    prompt = text.render([Message("user", "2 + 2?")], None)
    assert text.decode(prompt.token_ids or ()) != prompt.text
    layout = SameIds(RewardTokenizer(tmp_path), text.size, "\n\n", None)
    assert layout.root(prompt) == prompt.token_ids
    with pytest.raises(ConfigError, match="does not match the generator's"):
        layout.root(dataclasses.replace(prompt, text=prompt.text.replace("2", "3")))


def test_a_generator_given_as_a_reward_model_is_refused_with_the_formats_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"not recognised as a reward model .*scorer\.adapter=NAME \(qwen_rm, "):
        orm("ttc/nano/teacher")
