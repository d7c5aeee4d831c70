"""The table of peers: its rows, what it counts, what it shows of a system that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers import environments, server
from benchmarks.peers.answers import is_right
from benchmarks.peers.rows import SYSTEMS, rows, user_lines
from benchmarks.peers.table import COLUMNS, keep, tables

SERVER = {
    "generation_tokens_total": 2000,
    "prompt_tokens_total": 900,
    "prefix_cache_hits_total": 30,
    "prefix_cache_queries_total": 120,
    "http_2xx": 8,
}


def saved(folder: Path, system: str, draw: int, **fields: Any) -> None:
    client, algorithms = SYSTEMS[system]
    row = {"model": "packaged", "system": system, "client": client, "algorithm": algorithms[0], "n": 8, "draw": draw}
    (folder / f"{system}{draw}.json").write_text(json.dumps({**row, "limit": 4, "server": SERVER, **fields}))


def result(seconds: float, right: list[bool], **tally: Any) -> dict[str, Any]:
    return {"seconds": seconds, "cpu_s": 0.5, "right": right, "texts": [], "tally": {"errors": [], **tally}}


def test_a_line_has_medians_over_draws_and_says_nothing_where_a_system_says_nothing(tmp_path: Path) -> None:
    for draw, seconds in enumerate((9.0, 1.0, 2.0)):
        counts = {"generated": None, "prompt": None, "scored": 7, "retries": 1, "reasons": {"gone": 1}}
        saved(tmp_path, "its_hub", draw, **result(seconds, [True, True, False, False], **counts))
    line = next(line for line in tables(tmp_path) if line.startswith("| its_hub"))
    cells = dict(zip(COLUMNS, [cell.strip() for cell in line.strip("|").split("|")], strict=True))
    assert cells["seconds"] == "2.0" and cells["s / 1,000 tokens"] == "1.000" and cells["prefix hits"] == "25 %"
    assert cells["the system's own count"] == "–" and cells["requests"] == "8" and cells["retries"] == "1; 3: gone"
    assert cells["accuracy % (95 %)"].startswith("50.0 (0.0 to ")


def test_saved_rows_give_the_tables_that_the_folder_gave_and_hold_no_texts(tmp_path: Path) -> None:
    for draw, seconds in enumerate((2.0, 4.0, 9.0)):
        saved(tmp_path, "ttc", draw, **result(seconds, [True, False, False, True], generated=1, scored=0, retries=0))
        saved(tmp_path, "lm_eval", draw, **result(4.0, [True, True, False, True], generated=1, scored=0, retries=0))
    file = tmp_path.with_suffix(".json")
    keep(tmp_path, file, {"commit": "abc"})
    assert list(tables(file)) == list(tables(tmp_path))
    assert "| majority | lm_eval | 3 | 1.00 (0.50 to 2.25) |" in list(tables(file))
    assert "texts" not in file.read_text() and json.loads(file.read_text())["commit"] == "abc"


def test_a_group_of_fewer_draws_than_another_shows_its_ratios_alone(tmp_path: Path) -> None:
    for n, draws in ((4, 1), (8, 2)):
        for draw in range(draws):
            for system in ("ttc", "bare"):
                saved(tmp_path, system, 10 * n + draw, **result(2.0, [True], generated=1, scored=0, retries=0), n=n)
    lines = list(tables(tmp_path))
    assert sum(line.startswith("| ttc") for line in lines) == 1 and sum("| bare | " in line for line in lines) == 2


def test_a_system_that_fails_has_a_line_with_its_error(tmp_path: Path) -> None:
    saved(tmp_path, "optillm", 0, status=1, error="ModuleNotFoundError: No module named 'x'")
    assert any(
        "fails: ModuleNotFoundError" in line and line.count("|") == len(COLUMNS) + 1 for line in tables(tmp_path)
    )


def test_dvts_is_compared_with_the_beam_of_a_system_that_has_none(tmp_path: Path) -> None:
    saved(tmp_path, "ttc", 0, **result(2.0, [True], generated=1, scored=0, retries=0), algorithm="dvts")
    saved(tmp_path, "its_hub", 0, **result(8.0, [True], generated=1, scored=0, retries=0), algorithm="beam")
    assert "| dvts | its_hub's beam, since it has no DVTS | 1 | 0.25 (0.25 to 0.25) |" in list(tables(tmp_path))


def test_best_of_n_is_compared_with_bare_requests_for_as_many_choices(tmp_path: Path) -> None:
    saved(tmp_path, "ttc", 0, **result(3.0, [True], generated=1, scored=0, retries=0), algorithm="best_of_n")
    saved(tmp_path, "bare", 0, **result(2.0, [True], generated=1, scored=0, retries=0))
    assert "| best_of_n | bare requests, which score nothing | 1 | 1.50 (1.50 to 1.50) |" in list(tables(tmp_path))


def test_a_system_that_was_not_done_in_time_is_shown_up_to_there(tmp_path: Path) -> None:
    saved(tmp_path, "ttc", 0, **result(2.0, [True], generated=1, scored=0, retries=0))
    saved(tmp_path, "its_hub", 0, status=-9, total_s=8.0, error="too late")
    lines = list(tables(tmp_path))
    line = next(line for line in lines if line.startswith("| its_hub"))
    cells = dict(zip(COLUMNS, [cell.strip() for cell in line.strip("|").split("|")], strict=True))
    assert cells["accuracy % (95 %)"] == "not done after 8 s" and cells["s / 1,000 tokens"] == "4.000"
    assert "| majority | its_hub, up to where it was stopped | 1 | 0.25 (0.25 to 0.25) |" in lines


def test_every_system_has_its_turn_within_every_draw() -> None:
    names = [row.name for row in rows("packaged", 4, {8: 2}, ["ttc", "bare"])]
    assert len(names) == len(set(names)) == 2 * 6
    assert [name.endswith("draw0") for name in names] == [True] * 6 + [False] * 6


def test_the_lines_that_a_user_writes_are_those_between_the_marks() -> None:
    assert all(3 <= user_lines(client) <= 60 for client, _ in SYSTEMS.values())
    assert user_lines("bare") < user_lines("its_hub")


def test_a_thought_that_was_never_closed_answers_nothing_where_the_model_thinks() -> None:
    assert not is_right("so 3+4=7", "7", True) and is_right("so it is 7", "7", False)
    assert is_right("3+4=7</think>\n\nThe answer is \\boxed{7}.", "7", True)


def test_every_client_that_needs_one_has_an_environment_with_pinned_versions() -> None:
    assert set(environments.ENVIRONMENTS) == set(SYSTEMS) - {"ttc", "bare"}
    for entry in environments.ENVIRONMENTS.values():
        assert entry.constrained or all("==" in package for package in (*entry.packages, *entry.bare))


def test_what_was_counted_between_two_looks_leaves_out_what_goes_up_and_down() -> None:
    before, after = {"generation_tokens_total": 5.0, "num_requests_running": 3.0}, {"generation_tokens_total": 9.0}
    assert server.difference(before, after) == {"generation_tokens_total": 4}
