"""KTO from thumbs up and thumbs down, several turns in a row, rows of published data sets, PRM800K."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.data.sources import DATA, NamedRows
from evals.data.steps import read_labelled
from tests import qwen_like
from tests.train.stages import make_stage
from train.base.stage import Setting
from train.examples.examples import read_examples
from train.offline.labels import read_marked
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError

TURNS = [
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "<think>so 1</think>one"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "two"},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_like.model(tmp_path_factory.mktemp("base"), pad=None)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def place(folder: Path, base: Path) -> Setting:
    folder.mkdir(parents=True, exist_ok=True)
    return Setting(folder, base, 1, "cpu", 1, lambda text: None)


def test_a_row_of_several_turns_teaches_every_turn_of_the_assistant(base: Path, tmp_path: Path) -> None:
    rows = [{"messages": [{**turn, "content": turn["content"].replace("<think>so 1</think>", "")} for turn in TURNS]}]
    text = Text(base)
    first, second = read_examples(write(tmp_path / "rows.jsonl", rows), text, 1)
    assert first.key == second.key
    assert text.decode(first.token_ids[:-1]) == "one" and text.decode(second.token_ids[:-1]) == "two"
    assert text.decode(second.prompt_ids).startswith(text.decode(first.prompt_ids) + "one")
    assert first.token_ids[-1] == second.token_ids[-1] == 1


def test_a_thought_at_the_head_of_a_turn_needs_markers_and_says_how_to_get_them(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"messages": TURNS}])
    with pytest.raises(RecordError, match=r"no thinking markers.*ttc train adapt"):
        read_examples(path, Text(base), 1)


def test_a_row_without_a_turn_to_learn_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="neither a completion nor a turn of the assistant"):
        read_examples(write(tmp_path / "rows.jsonl", [{"messages": TURNS[:1]}]), Text(base), 1)


def test_columns_of_a_published_data_set_become_rows(base: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(DATA, str(tmp_path))
    rows = [{"q": "1+1?", "a": {"text": "2"}}, {"q": "2+1?", "a": {"text": "3"}}, {"q": "3+1?", "a": {"text": "4"}}]
    write(tmp_path / "sums.jsonl", rows)
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
    path = write(tmp_path / "thumbs.jsonl", rows)
    marked = read_marked(path, Text(base), 1)
    assert sum(row.good for row in marked) == 24
    fields = {"data": str(path), "loss": "kto", "steps": 12, "lr": 5e-3, "rows": 8, "held_out_share": 0.3}
    setting = place(tmp_path / "1-preference", base)
    result = make_stage("preference", **fields, eval_every=6, save_every=6).run(setting)
    assert result.metrics["moved_after"] > 0.9
    assert result.metrics["good_ratio"] > 0 > result.metrics["bad_ratio"]
    with pytest.raises(ConfigError, match='take loss = "kto"'):
        make_stage("preference", **{**fields, "loss": "dpo"}).run(place(tmp_path / "2-preference", base))


def test_thumbs_that_all_say_the_same_are_refused(base: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b", "label": True}]
    with pytest.raises(ConfigError, match="all 1 are of one kind"):
        read_marked(write(tmp_path / "thumbs.jsonl", rows), Text(base), 1)
    with pytest.raises(RecordError, match="line 1: label must be true"):
        read_marked(write(tmp_path / "thumbs.jsonl", [{**rows[0], "label": 1}]), Text(base), 1)


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
    (row,) = read_labelled(write(tmp_path / "prm800k.jsonl", [line]))
    assert row.steps == ("good", "neutral", "by hand", "wrong") and row.labels == (1.0, 1.0, 1.0, 0.0)
    with pytest.raises(RecordError, match=r"line 1: not a line of PRM800K"):
        read_labelled(write(tmp_path / "broken.jsonl", [{"question": {}, "label": {"steps": steps}}]))


def test_a_line_of_processbench_is_read_as_it_was_published(tmp_path: Path) -> None:
    line = {"id": "gsm8k-0", "problem": "1+1?", "steps": ["a", "b", "c"], "label": 1, "generator": "x"}
    (row,) = read_labelled(
        write(
            tmp_path / "processbench.jsonl",
            [
                line,
            ][:1],
        )
    )
    assert row.labels == (1.0, 0.0, None)
