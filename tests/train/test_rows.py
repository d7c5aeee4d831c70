"""Rows in the forms that people have: turns as TRL keeps them, columns of other names, tables of other programs."""

import json
from pathlib import Path

import pytest

from tests import qwen_like
from train.base.stage import check_file
from train.examples.examples import read_examples
from train.examples.pairs import read_pairs
from train.offline.labels import read_marked
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError

END = 1


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = qwen_like.model(tmp_path_factory.mktemp("base"))
    config = json.loads((folder / "config.json").read_text())
    thinking = {"open": "<think>", "close": "</think>"}
    (folder / "config.json").write_text(json.dumps({**config, "ttc": {"thinking": thinking}}))
    return Text(folder)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def written(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


PLAIN = {"messages": [user("a")], "chosen": "b", "rejected": "c"}
PAIRS = {
    "prompt and answers as turns": {
        "prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("c")]
    },
    "whole conversations": {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
    "a prompt, and whole conversations": {
        "prompt": "a", "chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]
    },
}  # fmt: skip


@pytest.mark.parametrize("form", PAIRS)
def test_pairs_as_turns_are_those_of_plain_texts(text, tmp_path, form):
    pairs = [read_pairs(written(tmp_path, [row]), text, END) for row in (PLAIN, PAIRS[form])]
    assert pairs[0] == pairs[1]


def test_a_completion_as_a_turn_is_a_plain_one_and_its_thought_stands_apart(text, tmp_path):
    turns = {"prompt": [user("a")], "completion": [assistant("<think>so</think>b")], "mode": "on"}
    plain = {"prompt": "a", "completion": "b", "thinking": "so", "mode": "on"}
    examples = [read_examples(written(tmp_path, [row]), text, END) for row in (turns, plain)]
    assert examples[0] == examples[1]
    bad = {"prompt": "a", "completion": "c", "label": False}
    marked = read_marked(written(tmp_path, [{**turns, "label": True}, bad]), text, END)
    assert marked[0].example.token_ids == examples[1][0].token_ids


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "chosen": [user("x"), assistant("b")], "rejected": "c"}, "of chosen before .* not the prompt"),
        ({"chosen": [user("a"), assistant("b")], "rejected": [user("x"), assistant("c")]}, "of rejected before"),
        ({"prompt": "a", "chosen": [assistant("b"), user("x")], "rejected": "c"}, "of chosen before"),
        ({"prompt": "a", "chosen": [user("x")], "rejected": "c"}, "last turn of chosen must be the assistant's"),
    ],
)
def test_turns_that_are_no_answer_to_the_prompt_are_refused(text, tmp_path, row, message):
    with pytest.raises(RecordError, match=f"line 1: .*{message}"):
        read_pairs(written(tmp_path, [row]), text, END)


def test_columns_of_a_file_are_named_behind_it(text, tmp_path):
    plain = read_examples(written(tmp_path, [{"prompt": "a", "completion": "b"}], "plain.jsonl"), text, END)
    others = written(tmp_path, [{"instruction": "a", "input": "", "output": "b"}])
    assert read_examples(Path(f"{others}:prompt=instruction,completion=output"), text, END) == plain
    conversation = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    others = written(tmp_path, [{"conversations": conversation, "source": "x"}])
    assert read_examples(Path(f"{others}:messages=conversations"), text, END) == plain
    (tmp_path / "rows.csv").write_text("q,a\na,b\n")
    assert read_examples(Path(f"{tmp_path}/rows.csv:prompt=q,completion=a,limit=1"), text, END) == plain


def test_a_file_with_named_columns_is_looked_for_and_tried_as_any_other(tmp_path):
    spec = f"{tmp_path}/rows.jsonl:prompt=q,completion=a"
    with pytest.raises(ConfigError, match=r"sft: data .*rows.jsonl .*; name a file of JSON lines"):
        check_file("sft", Path(spec))
    with pytest.raises(RecordError, match="leave it out, or name the columns to read after the file"):
        read_examples(written(tmp_path, [{"q": "a", "a": "b"}]), None, END)
    check_file("sft", Path(spec))
    with pytest.raises(RecordError, match=r"line 1: no column z \(known: q, a\)"):
        check_file("sft", Path(spec.replace("=a", "=z")))
