"""KTO from thumbs up and thumbs down, several turns in a row, rows of published data sets, PRM800K."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evals.data.sources import DATA, NamedRows
from evals.data.steps import read_labelled
from tests import qwen_like
from tests.train.stages import make_stage, write_rows
from tests.ttc import tiny_model
from train.base.models import load_tokenizer, tail_of_turn, turn_tokenizer
from train.base.rollout import Rollout, RolloutFile
from train.base.stage import Setting
from train.examples.examples import Example, read_examples
from train.examples.imitation import imitation_batch
from train.offline.labels import read_marked
from train.registries import make_task
from train.reward_models.reward_models import in_own_words
from train.stages import verifier_lm
from ttc.core import Message, Verdict
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, PluginError, RecordError

TURNS = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "<think>so 1</think>one"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "two"},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_like.model(tmp_path_factory.mktemp("base"), pad=None)


def place(folder: Path, base: Path) -> Setting:
    folder.mkdir(parents=True, exist_ok=True)
    return Setting(folder, base, 1, "cpu", 1, lambda text: None)


def test_a_row_of_several_turns_teaches_every_turn_of_the_assistant(base: Path, tmp_path: Path) -> None:
    rows = [{"messages": [{**turn, "content": turn["content"].replace("<think>so 1</think>", "")} for turn in TURNS]}]
    text = Text(base)
    first, second = read_examples(write_rows(tmp_path / "rows.jsonl", rows), text, 1)
    assert first.key == second.key
    assert text.decode(first.token_ids[:-1]) == "one" and text.decode(second.token_ids[:-1]) == "two"
    assert text.decode(second.prompt_ids).startswith(text.decode(first.prompt_ids) + "one")
    assert first.token_ids[-1] == second.token_ids[-1] == 1


def test_a_thought_at_the_head_of_a_turn_needs_markers_and_says_how_to_get_them(base: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": TURNS}])
    with pytest.raises(RecordError, match=r"no thinking markers.*ttc train adapt"):
        read_examples(path, Text(base), 1)


CALL = {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"x": "0*2"}'}}
TOOL_TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "0"}, {"type": "text", "text": "*2?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "0"},
    {"role": "assistant", "content": [{"type": "text", "text": "It is 0."}]},
]
TOOL = {"type": "function", "function": {"name": "calc", "parameters": {}}}


def test_the_last_row_of_a_file_counts_though_no_newline_ends_it_and_half_a_row_is_refused(
    base: Path, tmp_path: Path
) -> None:
    path, row = tmp_path / "rows.jsonl", '{"prompt": "1", "completion": "2"}'
    path.write_text(f"{row}\n{row}")
    assert len(read_examples(path, Text(base), 1)) == 2
    path.write_text(f"{row}\n{row[:-9]}")
    with pytest.raises(RecordError, match=r"rows\.jsonl, line 2: not JSON"):
        read_examples(path, Text(base), 1)


def test_calls_are_learnt_as_the_template_shows_them_and_text_parts_are_joined(base: Path, tmp_path: Path) -> None:
    text = Text(base)
    rows = [{"messages": TOOL_TURNS, "tools": [TOOL]}]
    first, second = read_examples(write_rows(tmp_path / "rows.jsonl", rows), text, 1)
    call = '<tool_call>\n{"name": "calc", "arguments": {"x": "0*2"}}\n</tool_call>'
    assert text.decode(first.token_ids[:-1]) == call and text.decode(second.token_ids[:-1]) == "It is 0."
    asked = text.decode(first.prompt_ids)
    assert "0*2?<|im_end|>" in asked and json.dumps(TOOL) in asked
    assert text.decode(second.prompt_ids).startswith(asked + call)


def test_calls_that_the_template_shows_in_other_words_are_refused_by_line_and_field(base: Path, tmp_path: Path) -> None:
    text = Text(base)
    text.tokenizer.chat_template = (
        "{{ tools | tojson }}{% for m in messages %}{% for call in m.tool_calls or [] %}"
        "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(
        RecordError, match=r"line 1: messages\[1\]: tool_calls: the chat template .* does not show them"
    ):
        read_examples(write_rows(tmp_path / "rows.jsonl", [{"messages": TOOL_TURNS}]), text, 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": 0}, "prompt must be a text"),
        ({"prompt": "a\ud83d"}, "prompt contains half of a character"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]: .*content must be a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "parts of type text"),
        ({"messages": [{"role": "user", "content": "a", "function_call": {}}]}, "unknown field 'function_call'"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]}, "tool_calls are the assistant's"),
        ({"messages": [{**TOOL_TURNS[1], "tool_calls": [{"name": "calc"}]}]}, r"tool_calls\[0\]: needs function.name"),
        (
            {"messages": [{"role": "usr", "content": "a"}]},
            r"messages\[0\]: role must be one of system, user, "
            r"assistant, tool, developer, got 'usr'; did you mean 'user'\?",
        ),
        ({"messages": [*TURNS[:1], {"role": "narrator", "content": "a"}]}, r"messages\[1\]: .*, got 'narrator'$"),
        ({"messages": [{"role": "", "content": "a"}]}, r"messages\[0\]: role must be one of .*, got ''"),
        ({"messages": "hello"}, "messages must be a list"),
        ({"prompt": "a", "weight": float("inf")}, "weight must be a number above 0 and finite, got inf"),
        ({"prompt": "a", "tools": {"calc": 1}}, "tools must be a list"),
        ({"prompt": "a", "mode": ["on"]}, "mode must be one of"),
    ],
)
def test_what_is_no_text_is_refused_by_line_and_field(base: Path, tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(RecordError, match=f"line 1: .*{message}"):
        read_examples(write_rows(tmp_path / "rows.jsonl", [{**row, "completion": "x"}]), Text(base), 1)


def test_what_a_developer_says_is_learnt_as_what_the_system_says(base: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": role, "content": "be brief"}, *TURNS[:1]], "completion": "x"}
        for role in ("developer", "system")
    ]
    first, second = read_examples(write_rows(tmp_path / "rows.jsonl", rows), Text(base), 1)
    assert first.prompt_ids == second.prompt_ids and "be brief" in Text(base).decode(first.prompt_ids)


def test_rows_of_one_prompt_are_held_out_together_whatever_their_id_and_mode(base: Path, tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "prompt": "same", "completion": "x", "mode": mode} for n, mode in enumerate(("on", "auto"))]
    first, second = read_examples(write_rows(tmp_path / "rows.jsonl", rows), Text(base), 1)
    assert first.key == second.key


def test_rows_of_one_cluster_are_held_out_together(base: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"p{number}", "completion": "x", "cluster": number // 2} for number in range(4)]
    keys = [example.key for example in read_examples(write_rows(tmp_path / "rows.jsonl", rows), Text(base), 1)]
    assert keys[0] == keys[1] != keys[2] == keys[3]


HELD_OUT = """data = "held_out.jsonl"
prompt = "How much is {q}? Reply with a number."
target = "a"
verifier = {name = "exact"}
max_tokens = 8
"""


@pytest.mark.parametrize(
    ("kind", "own"), [("sft", {"completion": "3"}), ("preference", {"chosen": "3", "rejected": "4"})]
)
def test_rows_that_are_held_out_problems_are_refused_before_a_model_is_loaded(
    tmp_path: Path, kind: str, own: dict[str, str]
) -> None:
    problems = [{"q": f"{number} plus {number + 7}", "a": str(2 * number + 7)} for number in range(100, 108)]
    write_rows(tmp_path / "held_out.jsonl", problems)
    (tmp_path / "held_out.toml").write_text(HELD_OUT)
    asked = [f"How much is {problem['q']}? Reply with a number." for problem in problems[:2]]
    others = [f"How much is {number} plus {number + 7}? Reply with a number." for number in range(9)]
    fields = {"held_out": str(tmp_path / "held_out.toml"), "steps": 1, "lr": 1e-3}
    good = write_rows(tmp_path / "good.jsonl", [{"prompt": prompt, **own} for prompt in others])
    make_stage(kind, data=str(good), **fields).check(True)
    bad = write_rows(tmp_path / "bad.jsonl", [{"prompt": prompt, **own} for prompt in (*others, *asked)])
    with pytest.raises(ConfigError, match=r"2 rows are held-out problems too, such as .*line 10: 'How much is 100"):
        make_stage(kind, data=str(bad), **fields).check(True)


@pytest.mark.parametrize("kind", ["sft", "preference", "reward_model"])
def test_a_row_that_is_longer_than_the_model_reads_is_refused_by_line_and_length(
    base: Path, tmp_path: Path, kind: str
) -> None:
    long = {"completion": "a " * 3000} if kind == "sft" else {"chosen": "a", "rejected": "a " * 3000}
    short = {name: value[:9] for name, value in long.items()}
    rows = [{"prompt": "one", **short}, {"prompt": "two", **long}, {"prompt": "three", **long}]
    stage = make_stage(kind, data=str(write_rows(tmp_path / "rows.jsonl", rows)), steps=1, lr=1e-3)
    said = rf"line 2.*: \d{{4}} tokens, but the model of {kind} reads at most 2048 \(1 row more too long\); shorten it"
    with pytest.raises(RecordError, match=said):
        stage.run(place(tmp_path / "1", base))


def test_the_end_of_a_turn_is_the_templates_where_engines_stop_at_it(base: Path, tmp_path: Path) -> None:
    assert turn_tokenizer(base).eos_token == "<|im_end|>"
    copy = tmp_path / "base"
    shutil.copytree(base, copy)
    config = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|endoftext|>"}))
    assert turn_tokenizer(copy).eos_token == "<|im_end|>"
    rows = [{"prompt": f"question {number}?", "completion": "yes"} for number in range(6)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    result = make_stage("sft", data=str(data), steps=1, lr=1e-3).run(place(tmp_path / "1-sft", copy))
    text = Text(Path(result.model))
    assert text.decode([text.tokenizer.eos_token_id]) == "<|im_end|>"
    for name in ("generation_config.json", "config.json"):
        values = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**values, "eos_token_id": Text(copy).tokenizer.eos_token_id}))
    assert turn_tokenizer(copy).eos_token == "<|endoftext|>"  # nothing would stop at the template's


def test_the_end_of_a_turn_is_known_where_a_template_reads_contents_in_parts(tmp_path: Path) -> None:
    tiny_model.write_tokenizer(tmp_path, tiny_model.TEMPLATE.replace("m.content", "m.content[0].text"))
    tail = tail_of_turn(load_tokenizer(tmp_path))
    assert Text(tmp_path).decode(tail) == "<|im_end|>\n"


def test_a_row_without_a_turn_to_learn_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="neither a completion nor a turn of the assistant"):
        read_examples(write_rows(tmp_path / "rows.jsonl", [{"messages": TURNS[:1]}]), Text(base), 1)


def test_columns_of_a_published_data_set_become_rows(base: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(DATA, str(tmp_path))
    rows = [{"q": "1+1?", "a": {"text": "2"}}, {"q": "2+1?", "a": {"text": "3"}}, {"q": "3+1?", "a": {"text": "4"}}]
    write_rows(tmp_path / "sums.jsonl", rows)
    spec = "someone/Sums:split=train,limit=2,prompt=question|q,completion=a.text"
    examples = read_examples(Path(spec), Text(base), 1)
    assert [Text(base).decode(example.token_ids[:-1]) for example in examples] == ["2", "3"]
    with pytest.raises(RecordError, match=r"line 1: no column b \(known: q, a\)"):
        read_examples(Path("someone/Sums:prompt=q,completion=b"), Text(base), 1)
    with pytest.raises(ConfigError, match="name the column of the prompt"):
        NamedRows.of("someone/Sums:completion=a")
    assert NamedRows.of("runs/rows.jsonl") is None and NamedRows.of("data:rows.jsonl") is None


def test_kto_learns_from_thumbs_without_pairs(base: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"question {number}?", "completion": "yes" if number % 3 else "no", "label": bool(number % 3)}
        for number in range(36)
    ]
    path = write_rows(tmp_path / "thumbs.jsonl", rows)
    marked = read_marked(path, Text(base), 1)
    assert sum(row.good for row in marked) == 24
    fields = {"data": str(path), "loss": "kto", "steps": 12, "lr": 5e-3, "rows": 8, "held_out_share": 0.3}
    setting = place(tmp_path / "1-preference", base)
    result = make_stage("preference", **fields, eval_every=6, save_every=6).run(setting)
    assert result.metrics["moved_after"] > 0.9
    assert result.metrics["good_ratio"] > 0 > result.metrics["bad_ratio"]
    with pytest.raises(ConfigError, match='set loss = "kto"'):
        make_stage("preference", **{**fields, "loss": "dpo"}).run(place(tmp_path / "2-preference", base))


def test_thumbs_that_all_say_the_same_are_refused(base: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b", "label": True}]
    with pytest.raises(ConfigError, match="all 1 are of one kind"):
        read_marked(write_rows(tmp_path / "thumbs.jsonl", rows), Text(base), 1)
    with pytest.raises(RecordError, match="line 1: label must be true"):
        read_marked(write_rows(tmp_path / "thumbs.jsonl", [{**rows[0], "label": -1}]), Text(base), 1)


@pytest.mark.parametrize(("good", "bad"), [(True, False), (1, 0), (1.0, 0.0), ("desirable", "undesirable"), ("1", "0")])
def test_a_label_is_read_in_each_form_that_data_sets_write(base: Path, tmp_path: Path, good: Any, bad: Any) -> None:
    rows = [{"prompt": "a", "completion": "b", "label": label} for label in (bad, good)]
    assert [row.good for row in read_marked(write_rows(tmp_path / "thumbs.jsonl", rows), Text(base), 1)] == [
        False,
        True,
    ]


def test_a_line_of_prm800k_is_read_as_it_was_published(tmp_path: Path) -> None:
    def step(*offers: tuple[str, int], chosen: int | None = 0, human: str | None = None) -> dict[str, Any]:
        completions = [{"text": text, "rating": rating, "flagged": None} for text, rating in offers]
        return {
            "completions": completions,
            "human_completion": None if human is None else {"text": human, "rating": None},
            "chosen_completion": chosen,
        }

    steps = [
        step(("good", 1)),
        step(("bad", -1), ("neutral", 0), chosen=1),
        step(("worse", -1), chosen=None, human="by hand"),
        step(("wrong", -1), chosen=None),
    ]
    line = {"question": {"problem": "1+1?"}, "label": {"steps": steps, "finish_reason": "found_error"}}
    (row,) = read_labelled(write_rows(tmp_path / "prm800k.jsonl", [line]))
    assert row.steps == ("good", "neutral", "by hand", "wrong") and row.labels == (1.0, 1.0, 1.0, 0.0)
    with pytest.raises(RecordError, match=r"line 1: not a line of PRM800K"):
        read_labelled(write_rows(tmp_path / "broken.jsonl", [{"question": {}, "label": {"steps": steps}}]))


def test_a_line_of_processbench_is_read_as_it_was_published(tmp_path: Path) -> None:
    line = {"id": "gsm8k-0", "problem": "1+1?", "steps": ["a", "b", "c"], "label": 1, "generator": "x"}
    (row,) = read_labelled(write_rows(tmp_path / "processbench.jsonl", [line][:1]))
    assert row.labels == (1.0, 0.0, None)


@pytest.fixture
def two_ends(base: Path, tmp_path: Path) -> Path:
    """A model whose tokenizer ends texts otherwise than its template ends turns; engines stop at both."""
    copy = tmp_path / "two-ends"
    shutil.copytree(base, copy)
    config = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|endoftext|>"}))
    return copy


def drawn(folder: Path, question: str, answer: str, *, right: bool = True, number: int = 0) -> Rollout:
    """What the model of `folder` said to a question, in a finished turn."""
    text = Text(folder)
    prompt = text.render((Message("user", question),), None).token_ids or ()
    ids = (*text.encode(answer), *text.encode("<|im_end|>"))
    verdict = Verdict("correct" if right else "incorrect")
    return Rollout(
        0, number, f"p{number}", "", "4", (int(right),), prompt, ids, (True,) * len(ids), (0.0,) * len(ids), answer,
        "", None, "stop", 0, 1, verdict, float(right),
    )  # fmt: skip


def recorded(path: Path, rollouts: list[Rollout]) -> Path:
    with RolloutFile(path) as file:
        file.append(rollouts)
    return path


def test_a_verifier_reads_and_imitates_turns_as_the_template_ends_them(
    two_ends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [drawn(two_ends, f"{n} plus 1?", "12", right=bool(n % 2), number=n) for n in range(8)]
    path = recorded(tmp_path / "rollouts.jsonl", rows)
    learnt: list[Example] = []

    def batch(examples: list[Example], *rest: Any) -> Any:
        learnt.extend(examples)
        return imitation_batch(examples, *rest)

    monkeypatch.setattr(verifier_lm, "imitation_batch", batch)
    words = {"ask": "?", "good": "1", "bad": "2"}
    stage = make_stage("verifier_lm", rollouts=str(path), **words, imitation=0.5, steps=1, lr=1e-3)
    stage.run(place(tmp_path / "2-verifier_lm", two_ends))
    spelt = [Text(two_ends).decode((*one.prompt_ids, *one.token_ids)).rpartition("12")[2] for one in learnt]
    assert set(spelt) == {"?1", "?2", "<|im_end|>"}


def test_a_reward_model_reads_a_foreign_answer_with_the_end_that_it_was_trained_with(two_ends: Path) -> None:
    messages = {"p0": (Message("user", "1 plus 1?"),)}
    read = in_own_words(two_ends, messages)(drawn(two_ends, "1 plus 1?", "12"))
    assert Text(two_ends).decode(read.token_ids) == "12<|im_end|>"


def test_rows_of_ptx_end_as_the_template_ends_turns(two_ends: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{n}?", "completion": "12"} for n in range(3)])
    write_rows(tmp_path / "train.jsonl", [{"question": f"{n} plus {n}?", "answer": str(2 * n)} for n in range(4)])
    write_rows(tmp_path / "held_out.jsonl", [{"question": f"{n} plus {n}?", "answer": str(2 * n)} for n in range(5, 9)])
    stage = make_stage(
        "grpo", task=str(tmp_path / "train.jsonl"), held_out=str(tmp_path / "held_out.jsonl"), steps=1, lr=1e-3,
        ptx=f"data:{rows}", ptx_rows=2,
    )  # fmt: skip
    batch = stage.learner(two_ends, place(tmp_path / "1-grpo", two_ends))._replayed(0)
    assert {Text(two_ends).decode(ids.tolist()).rpartition("12")[2] for ids in batch.ids} == {"<|im_end|>"}


def test_rows_of_ptx_that_are_held_out_problems_are_refused_before_a_model_is_there(base: Path, tmp_path: Path) -> None:
    sums = [f"{n} plus {n}?" for n in range(8)]
    for name, part in (("train", range(4)), ("held_out", range(4, 8))):
        write_rows(tmp_path / f"{name}.jsonl", [{"question": sums[n], "answer": str(2 * n)} for n in part])
    asked = make_task(str(tmp_path / "held_out.jsonl")).items(1, 0)[0].problem.messages[-1].content

    def stage(ptx: str) -> Any:
        return make_stage(
            "grpo", task=str(tmp_path / "train.jsonl"), held_out=str(tmp_path / "held_out.jsonl"), steps=1, lr=1e-3,
            ptx=ptx, ptx_rows=1,
        )  # fmt: skip

    stage(f"data:{write_rows(tmp_path / 'rows.jsonl', [{'prompt': sums[0], 'completion': '12'}])}").check(True)
    leak = write_rows(tmp_path / "leak.jsonl", [{"prompt": asked, "completion": "12"}])
    with pytest.raises(ConfigError, match="ptx: 1 row is a held-out problem too"):
        stage(f"data:{leak}").check(True)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sft", "preference"])
def test_rollouts_of_held_out_problems_are_refused_before_they_are_learnt(
    base: Path, tmp_path: Path, kind: str
) -> None:
    write_rows(tmp_path / "held_out.jsonl", [{"question": f"{n} plus {n}?", "answer": str(2 * n)} for n in range(8)])
    task = 'data = "held_out.jsonl"\nprompt = "{question}"\ntarget = "answer"\nverifier = "exact"\nmax_tokens = 8\n'
    (tmp_path / "held_out.toml").write_text(task)  # the model, which nobody trained, would not end by itself
    fields = {"held_out": str(tmp_path / "held_out.toml"), "held_out_limit": 2, "steps": 1, "lr": 1e-3}
    items = make_task(fields["held_out"]).items(3, 0)
    asked = [item.problem.messages[-1].content for item in items]
    measured, _, other = asked

    def stage(name: str, questions: list[str]) -> Any:
        answers = [
            drawn(base, question, word, right=word == "12", number=number)
            for number, question in enumerate(questions)
            for word in ("12", "7")
        ]
        return make_stage(kind, rollouts=str(recorded(tmp_path / f"{name}.jsonl", answers)), **fields)

    with pytest.raises(
        ConfigError, match=r"1 of the 4 problems that .*bad.jsonl answers are held-out problems too, su"
    ):
        stage("bad", ["20?", measured, "21?", "22?"]).run(place(tmp_path / "1", base))
    assert not (tmp_path / "1" / "metrics.jsonl").exists()
    assert stage("good", ["20?", other, "21?", "22?"]).run(place(tmp_path / "2", base)).metrics


AVERAGED = """
from train.examples.pairs import LabelledLoss, PairLoss

def pairs() -> PairLoss:
    return lambda pairs: (pairs.rejected - pairs.chosen).mean()

def labels() -> LabelledLoss:
    return lambda labelled: labelled.logprob.mean()
"""


@pytest.mark.parametrize("kind", ["pairs", "labels", "labels of pairs"])
def test_a_preference_loss_that_averages_is_refused_by_its_shape_instead_of_counting_less(
    base: Path, tmp_path: Path, kind: str
) -> None:
    own = [{"completion": "yes", "label": True}, {"completion": "no", "label": False}]
    rows = own if kind == "labels" else [{"chosen": "yes", "rejected": "no"}]
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{n}?", **row} for n in range(9) for row in rows])
    (tmp_path / "mine.py").write_text(AVERAGED)
    loss = f"{tmp_path / 'mine.py'}:{kind.partition(' ')[0]}"
    stage = make_stage("preference", data=str(data), loss=loss, steps=1, lr=1e-3, rows=8)
    with pytest.raises(
        PluginError, match=rf"preference loss {loss} returned a tensor of shape \(\); return one of \(8"
    ):
        stage.run(place(tmp_path / "1-preference", base))
