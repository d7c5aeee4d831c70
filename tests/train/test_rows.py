"""Rows in the forms that people have: turns as TRL keeps them, columns of other names, tables of other programs."""

import json
from pathlib import Path

import pandas
import pytest
from transformers import AutoTokenizer

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


ASKED = {"system": "Be brief.", "instruction": "Add.", "input": "2 and 3"}
TALK = [{"from": "human", "value": "Add.\n2 and 3"}, {"from": "gpt", "value": "5"}]
FOREIGN = {
    "Alpaca": {**ASKED, "output": "5"},
    "ShareGPT with its system apart": {"system": "Be brief.", "conversations": TALK},
    "ShareGPT": {"conversations": [{"from": "system", "value": "Be brief."}, *TALK]},
}


@pytest.mark.parametrize("form", FOREIGN)
def test_rows_of_alpaca_and_sharegpt_are_read_whole_without_naming_columns(text, tmp_path, form):
    plain = {"messages": [{"role": "system", "content": "Be brief."}, user("Add.\n2 and 3"), assistant("5")]}
    ours, theirs = (read_examples(written(tmp_path, [row]), text, END) for row in (plain, FOREIGN[form]))
    assert theirs == ours


def test_an_instruction_takes_its_input_with_it_unless_that_is_empty_or_another_field(text, tmp_path):
    def prompt(row, columns=""):
        rows = written(tmp_path, [{"output": "5", **row}])
        (example,) = read_examples(Path(f"{rows}{columns}"), text, END)
        return text.decode(example.prompt_ids)

    whole, named = {"instruction": "Add.", "input": "2 and 3"}, ":prompt=instruction,completion=output"
    assert "Add.\n2 and 3<" in prompt(whole) == prompt({**whole, "text": "x"}, named)
    assert "Add.<" in prompt({"instruction": "Add.", "input": ""}) == prompt({"instruction": "Add."})
    assert "Add.<" in prompt(whole, ":prompt=instruction,completion=input")
    pair = written(tmp_path, [{**whole, "chosen": "5", "rejected": "6"}])
    assert "Add.\n2 and 3<" in text.decode(read_pairs(pair, text, END)[0].chosen.prompt_ids)


def record(**candidates):
    """A record of `ttc eval`: candidates by text, with their verdict and how they ended."""
    said = [{"text": text, "thinking": "", "finish_reason": end} for text, (_, end) in candidates.items()]
    return {
        "problem": {"id": "1", "messages": [user("a")], "kind": "math"},
        "answer": {"text": "", "candidates": said},
        "verdicts": [None if status is None else {"status": status} for status, _ in candidates.values()],
    }


def test_records_of_a_measurement_give_pairs_and_right_completions_but_no_cut_ones(text, tmp_path):
    whole = {
        "b": ("correct", "stop"), "c": ("incorrect", "stop"), "d": ("correct", "length"), "e": ("correct", "stop"),
        "f": ("no_answer", "stop"), "g": (None, "stop"), "h": ("incorrect", "length"),
    }  # fmt: skip
    failed = {**record(), "answer": None, "verdicts": None}
    path = written(tmp_path, [failed, record(**whole)])
    assert read_pairs(path, text, END) == read_pairs(written(tmp_path, [PLAIN], "plain.jsonl"), text, END)
    right = [{"messages": [user("a")], "completion": answer} for answer in "be"]
    assert read_examples(path, text, END) == read_examples(written(tmp_path, right, "right.jsonl"), text, END)


@pytest.mark.parametrize("column", ["instruction", "input", "system"])
def test_a_foreign_column_beside_ours_is_refused_by_its_name(text, tmp_path, column):
    with pytest.raises(RecordError, match=f"unknown field '{column}'"):
        read_examples(written(tmp_path, [{"prompt": "a", "completion": "5", column: "b"}]), text, END)


def test_a_file_with_named_columns_is_looked_for_and_tried_as_any_other(tmp_path):
    spec = f"{tmp_path}/rows.jsonl:prompt=q,completion=a"
    with pytest.raises(ConfigError, match=r"sft: data .*rows.jsonl .*; name a file of JSON lines"):
        check_file("sft", Path(spec))
    with pytest.raises(RecordError, match="leave it out, or name the columns to read after the file"):
        read_examples(written(tmp_path, [{"q": "a", "a": "b"}]), None, END)
    check_file("sft", Path(spec))
    with pytest.raises(RecordError, match=r"line 1: no column z \(known: q, a\)"):
        check_file("sft", Path(spec.replace("=a", "=z")))


def _with_template(folder: Path, template: str) -> Text:
    base = qwen_like.model(folder)
    words = AutoTokenizer.from_pretrained(base)
    words.chat_template = template
    words.save_pretrained(base)
    return Text(base)


_ASKED = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}LEAD{{ m.content }}"
_SAID = "<|im_end|>{% endif %}{% endfor %}"


@pytest.mark.parametrize("lead", ["", " ", "\n", "<|im_start|>final:"])
def test_an_answer_begins_with_what_the_template_writes_before_it(tmp_path: Path, lead: str) -> None:
    text = _with_template(tmp_path, _ASKED.replace("LEAD", repr(lead).join(("{{ ", " }}"))) + _SAID)
    turns = [("user", "How many?"), ("assistant", "She sold 24."), ("user", "And in May?"), ("assistant", "72")]
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    first, second = read_examples(tmp_path / "rows.jsonl", text, text.eos_ids[0])
    shown = text.tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert text.decode((*second.prompt_ids, *second.token_ids)) == shown
    assert text.encode(shown) == (*second.prompt_ids, *second.token_ids)
    assert text.decode(first.token_ids) == f"{lead}She sold 24.<|im_end|>"


def test_nothing_is_put_before_an_answer_where_the_template_shows_no_turn_behind_what_asks_for_one(tmp_path) -> None:
    text = _with_template(tmp_path, _ASKED.replace("LEAD", " ") + _SAID + "{% if add_generation_prompt %}->{% endif %}")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "How many?", "completion": "24"}) + "\n")
    (example,) = read_examples(tmp_path / "rows.jsonl", text, text.eos_ids[0])
    assert text.decode((*example.prompt_ids, *example.token_ids)) == "[INST] How many? [/INST]->24<|im_end|>"


_OPENS = "{% if add_generation_prompt %}<think>\n{% endif %}"


def test_a_thought_goes_on_behind_what_the_template_wrote_of_it(tmp_path: Path) -> None:
    text = _with_template(tmp_path, _ASKED.replace("LEAD", "") + _SAID + _OPENS + "{# </think> #}")
    whole = {"role": "assistant", "content": "<think>\nso it is 7.\n</think>\n\nShe sold 24."}
    apart = {"prompt": "How many?", "thinking": "so it is 7.\n", "completion": "\n\nShe sold 24."}
    rows = [{"messages": [{"role": "user", "content": "How many?"}, whole]}, apart]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_examples(tmp_path / "rows.jsonl", text, text.eos_ids[0])
    assert first.token_ids == second.token_ids
    assert text.decode((*first.prompt_ids, *first.token_ids)).endswith(
        "[/INST]<think>\nso it is 7.\n</think>\n\nShe sold 24.<|im_end|>"
    )


def test_an_answer_that_spells_the_token_that_ends_a_turn_ends_once(tmp_path: Path) -> None:
    text = Text(qwen_like.model(tmp_path))
    said = "write <|im_end|> at the end"
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "How?", "completion": said}) + "\n")
    (example,) = read_examples(tmp_path / "rows.jsonl", text, text.eos_ids[0])
    assert text.decode(example.token_ids) == said + "<|im_end|>"
    assert [place for place, token in enumerate(example.token_ids) if token in text.eos_ids] == [
        len(example.token_ids) - 1
    ]


def test_a_turn_of_another_name_is_said_to_be_one_where_none_is_the_assistants(tmp_path: Path, text) -> None:
    for answer, reason in [
        ({"role": "model", "content": "yo"}, r"messages\[1\]: role must be one of"),
        ({"from": "gpt", "value": "yo"}, r"messages\[1\]: a message needs role and content"),
    ]:
        with pytest.raises(RecordError, match=reason):
            read_examples(written(tmp_path, [{"messages": [user("hi"), answer]}]), text, END)


def test_a_turn_of_weight_zero_is_read_and_not_learnt(tmp_path: Path, text) -> None:
    masked = {**assistant("She sold 12."), "weight": 0}
    row = {"messages": [user("How many?"), masked, user("No."), {**assistant("24"), "weight": 2}], "weight": 1.5}
    (example,) = read_examples(written(tmp_path, [row]), text, END)
    assert "She sold 12." in text.decode(example.prompt_ids) and text.decode(example.token_ids[:-1]) == "24"
    assert example.weight == 3.0
    named = written(tmp_path, [{"talk": row["messages"]}], "named.jsonl")
    (other,) = read_examples(Path(f"{named}:messages=talk"), text, END)
    assert (other.token_ids, other.weight) == (example.token_ids, 2.0)


@pytest.mark.parametrize("field", ["reasoning_content", "thinking"])
def test_a_thought_that_stands_apart_in_a_turn_is_learnt_as_one_at_its_head(tmp_path: Path, text, field) -> None:
    inside = assistant("<think>\nso it is 7.\n</think>\n\n7")
    apart = {**assistant("7"), field: "so it is 7."}
    rows = [{"messages": [user("How many?"), turn]} for turn in (inside, apart)]
    rows.append({"prompt": [user("How many?")], "completion": [apart]})
    first, second, third = read_examples(written(tmp_path, rows), text, END)
    assert first.token_ids == second.token_ids == third.token_ids
    assert "so it is 7." in text.decode(first.token_ids)
    named = written(tmp_path, [{"talk": rows[1]["messages"]}], "named.jsonl")
    (other,) = read_examples(Path(f"{named}:messages=talk"), text, END)
    assert other.token_ids == first.token_ids


def test_a_file_that_is_one_json_list_is_said_to_be_one(tmp_path: Path, text) -> None:
    path = written(tmp_path, [[{"prompt": "a", "completion": "b"}]])
    with pytest.raises(RecordError, match="line 1: a JSON list, not an object; write one row a line"):
        read_examples(path, text, END)


def test_a_json_list_over_several_lines_is_said_to_be_one(tmp_path: Path, text) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps([{"prompt": "a", "completion": "b"}], indent=1))
    with pytest.raises(RecordError, match=r"rows\.jsonl, line 1: a JSON list, not an object; write one row a line"):
        read_examples(path, text, END)


@pytest.mark.parametrize("ending", ["json", "csv", "tsv", "parquet"])
def test_a_table_is_read_as_the_same_rows_in_json_lines(tmp_path: Path, text, ending) -> None:
    table = pandas.DataFrame([{"instruction": "a", "output": "b"}, {"instruction": "c", "output": "d"}])
    path = tmp_path / f"rows.{ending}"
    ways = {"json": table.to_json, "parquet": table.to_parquet, "csv": table.to_csv, "tsv": table.to_csv}
    options = {"json": {"orient": "records", "indent": 1}, "parquet": {}, "csv": {"index": False}}
    ways[ending](path, **options.get(ending, {"index": False, "sep": "\t"}))
    plain = written(tmp_path, [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}], "plain.jsonl")
    assert read_examples(path, text, END) == read_examples(plain, text, END)


@pytest.mark.parametrize("column", ["image", "images", "videos"])
def test_rows_with_images_are_refused_as_such_unless_the_column_is_empty(tmp_path: Path, text, column) -> None:
    row = {"prompt": "a", "completion": "b"}
    with pytest.raises(RecordError, match=f"line 1: {column}: only text is learnt, no images"):
        read_examples(written(tmp_path, [{**row, column: ["a.png"]}]), text, END)
    assert len(read_examples(written(tmp_path, [{**row, column: None}], "empty.jsonl"), text, END)) == 1


def test_a_field_that_is_null_is_as_if_it_were_not_there(tmp_path: Path, text) -> None:
    row = {"prompt": "a", "completion": "b"}
    turns = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    nulls = dict.fromkeys(("mode", "weight", "thinking", "id", "cluster", "tools", "messages"))
    plain, null = (read_examples(written(tmp_path, [one]), text, END) for one in (row, {**nulls, **row}))
    assert null == plain
    told = read_examples(written(tmp_path, [turns, {**turns, "prompt": None, "completion": None}]), text, END)
    assert told[0].token_ids == told[1].token_ids


def test_a_number_as_the_completion_is_refused_with_its_value(tmp_path: Path, text) -> None:
    with pytest.raises(RecordError, match="line 1: completion must be a text, got 12"):
        read_examples(written(tmp_path, [{"prompt": "a", "completion": 12}]), text, END)
