"""Summary entries as the report reads them: labels, frontier, headline, tables, figure and PNG."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.report.chart import NUM_BINS, accuracy_chart, histogram, log_ticks, role_tokens, share_ticks
from evals.report.kit import count, interval, percent, points, quantity
from evals.report.page import curve_csv, html_table, render_table
from evals.report.runs import Curve, Point, RunSummary, drawn_curves, facts, frontier, groups, headline, read_runs
from ttc.errors import RecordError


def entry(strategy, accuracy, tokens, n=1, **more):
    return {
        "strategy": strategy,
        "params": {"n": n} if n > 1 else {},
        "engine": "scripted",
        "model": "toy",
        "task": "arithmetic",
        "level": 4,
        "n": n,
        "problems": 100,
        "accuracy": accuracy,
        "low": accuracy - 0.03,
        "high": accuracy + 0.03,
        "tokens_per_problem": tokens,
        "flops_per_problem": 1e6 * tokens,
        "usage": {"generated": 100 * tokens, "thinking": 80 * tokens, "prompt": 500, "cached": 200},
        "seed": 7,
        "curve": [],
        **more,
    }


def run_at(accuracy, tokens, *curves):
    return RunSummary("x", Point(1, accuracy, None, None, tokens, None), curves, {"strategy": "x", "problems": 1})


def test_label_carries_n_only_when_there_are_several_samples():
    assert [run.label for run in read_runs([entry("direct", 0.4, 90), entry("tree", 0.7, 1450, 16)])] == [
        "direct",
        "tree N=16",
    ]


def test_labels_of_one_strategy_say_what_differs():
    runs = read_runs(
        [
            entry("tree", 0.6, 90, 4, params={"n": 4, "beam_width": 2}),
            entry("tree", 0.7, 90, 4, params={"n": 4, "beam_width": 4}),
        ]
    )
    assert [run.label for run in runs] == ["tree N=4, beam_width=2", "tree N=4, beam_width=4"]


def test_labels_of_identical_runs_are_numbered():
    assert [run.label for run in read_runs([entry("direct", 0.4, 90)] * 2)] == ["direct #1", "direct #2"]


def test_keys_of_a_report_are_unique_across_levels():
    runs = read_runs([entry("direct", 0.4, 90), entry("direct", 0.3, 90, level=5)])
    assert len({run.key for run in runs}) == 2
    assert list(groups(runs)) == ["arithmetic level 4", "arithmetic level 5"]


def test_a_missing_field_is_named():
    broken = entry("direct", 0.4, 90)
    del broken["tokens_per_problem"]
    with pytest.raises(RecordError, match="'tokens_per_problem' is missing"):
        read_runs([broken])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), min_size=1, max_size=20))
def test_frontier_is_exactly_the_choices_that_no_other_dominates(pairs):
    runs = [run_at(a / 20, float(t)) for a, t in pairs]
    expected = {
        (a / 20, float(t)) for a, t in pairs if not any((b >= a and u < t) or (b > a and u <= t) for b, u in pairs)
    }
    assert {(p.accuracy, p.tokens) for p in frontier(runs, "tokens")} == expected


def test_a_figure_has_room_for_its_axes_beside_long_names_and_failures(tmp_path):
    from evals.report.chart import write_figures

    name = "/home/someone/projects/reasoning/experiments/2026-11-27/strategies/picky/mine.py:picky"
    write_figures(tmp_path, groups(read_runs([entry(name, 0.4, 90, errors=1)])))


def test_pass_at_k_never_stands_on_the_frontier():
    ceiling = Curve("pass", (Point(16, 0.99, None, None, 5.0, None),))
    assert [p.accuracy for p in frontier([run_at(0.5, 10.0, ceiling)], "tokens")] == [0.5]


def test_the_same_pool_is_drawn_once():
    curve = Curve("majority", (Point(1, 0.4, None, None, 9.0, None), Point(2, 0.5, None, None, 18.0, None)))
    drawn = drawn_curves([run_at(0.5, 18.0, curve), run_at(0.6, 36.0, curve)], "tokens")
    assert [index for index, _ in drawn] == [0]
    assert drawn_curves([run_at(0.5, 18.0, curve)], "flops") == []


def test_runs_over_other_numbers_of_problems_say_theirs():
    runs = [entry("direct", 0.4, 90), entry("tree", 0.7, 1450, 16, problems=30)]
    title, _, head, _, *rows = render_table(runs).splitlines()
    assert title == "arithmetic level 4, 30 or 100 problems, toy" and head.split()[:2] == ["strategy", "problems"]
    assert [re.split(" {2,}", row)[1] for row in rows[:2]] == ["100", "30"]
    assert "problems that were run" in html_table(read_runs(runs))
    assert "problems that were run" not in html_table(read_runs(runs[:1]))


@pytest.mark.parametrize(
    ("model", "named"),
    [(None, ""), ("Qwen/Qwen3-0.6B", ", Qwen/Qwen3-0.6B"), ("/data/models/smollm2", ", smollm2"), ("gpt-x", ", gpt-x")],
)
def test_the_table_is_headed_by_the_model(model, named):
    title = render_table([entry("direct", 0.4, 90, model=model)]).splitlines()[0]
    assert title == f"arithmetic level 4, 100 problems{named}"
    both = render_table([entry("direct", 0.4, 90, model=model), entry("direct", 0.4, 90, model="a")]).splitlines()[0]
    assert both == f"arithmetic level 4, 100 problems, {', '.join(sorted(filter(None, [named[2:], 'a'])))}"


def test_headline_names_the_best_and_the_cheapest_with_intervals_and_prices():
    runs = read_runs([entry("direct", 0.482, 95), entry("majority", 0.6, 900, 16), entry("tree", 0.713, 1449.6, 16)])
    assert headline(runs) == (
        "tree N=16 answers 71.3 % (68.3–74.3) of arithmetic level 4 for 1,450 tokens a problem; "
        "direct answers 48.2 % (45.2–51.2) for 95."
    )


def test_headline_says_when_spending_more_did_not_help():
    runs = read_runs([entry("direct", 0.5, 95), entry("majority", 0.45, 900, 16)])
    assert "Spending more did not help: majority N=16 answers 45.0 %" in headline(runs)


def test_headline_claims_no_comparison_of_other_problems():
    for first, second in (({"problems": 20}, {"problems": 40}), ({"problems_seed": 0}, {"problems_seed": 1})):
        runs = read_runs([entry("direct", 0.5, 95, **first), entry("majority", 0.45, 900, 16, **second)])
        assert "did not help" not in headline(runs) and "majority N=16" in headline(runs)


def test_headline_claims_nothing_of_problems_that_failed():
    none = read_runs([entry(name, 0.0, 0, errors=100) for name in ("direct", "majority")])
    assert headline(none) == "Nothing was measured: all 100 problems of arithmetic level 4 failed."
    some = headline(read_runs([entry("direct", 0.5, 95, errors=7), entry("majority", 0.45, 900, 16)]))
    assert "did not help" not in some
    assert some.endswith(
        "majority N=16 answers 45.0 % (42.0–48.0) for 900. Failed, and counted as wrong: 7 problems of direct."
    )


def test_headline_says_that_nothing_is_left_to_gain():
    runs = read_runs([entry("direct", 1.0, 95, problems=2), entry("majority", 1.0, 900, 8, problems=2)])
    assert headline(runs) == (
        "direct answers all 2 problems of arithmetic level 4 for 95 tokens each: more has nothing to gain there."
    )


def test_headline_of_one_pool_compares_with_its_single_sample():
    curve = [{"kind": "majority", "k": 1, "accuracy": 0.3, "low": 0.28, "high": 0.32, "tokens": 60, "flops": 1}]
    (run,) = read_runs([entry("majority", 0.6, 900, 16, curve=curve)])
    assert headline([run]).endswith("one sample of the same pool answers 30.0 % (28.0–32.0) for 60.")


def test_overlapping_intervals_are_admitted():
    near = read_runs([entry("direct", 0.50, 95), entry("majority", 0.52, 900, 16)])
    far = read_runs([entry("direct", 0.50, 95), entry("majority", 0.72, 900, 16)])
    assert any("overlap" in fact for fact in facts(near))
    assert not any("overlap" in fact for fact in facts(far))


def test_plain_table_is_aligned_and_leaves_out_empty_columns():
    table = render_table([entry("direct", 0.482, 95), entry("tree", 0.713, 1450, 16, coverage=0.9)])
    lines = table.splitlines()
    head = next(line for line in lines if line.startswith("strategy"))
    assert len({len(line) for line in lines[lines.index(head) :]}) == 1
    assert "71.3 %" in table and "1,450" in table and "90.0 %" in table
    assert "seconds" not in head


def test_page_table_prints_the_summary_and_marks_the_best():
    markup = html_table(read_runs([entry("direct", 0.482, 95), entry("tree", 0.713, 1450, 16)]))
    best = re.search(r'<tr class="best">.*?</tr>', markup).group()
    assert "tree N=16" in best and "71.3 %" in best and "68.3–74.3" in best


def test_curve_csv_holds_every_point_unrounded():
    curve = [{"kind": "majority", "k": 2, "accuracy": 1 / 3, "low": 0.3, "high": 0.4, "tokens": 60, "flops": None}]
    rows = list(csv.DictReader(io.StringIO(curve_csv([entry("majority", 0.6, 900, 16, curve=curve)]))))
    assert [row["kind"] for row in rows] == ["run", "majority"]
    assert float(rows[1]["accuracy"]) == 1 / 3 and rows[1]["flops"] == ""


def test_chart_draws_an_error_bar_and_a_label_for_each_run():
    chart = accuracy_chart(read_runs([entry("direct", 0.482, 95), entry("tree", 0.713, 1450, 16)]), "tokens")
    assert chart.count('class="error"') == 2
    assert "tree N=16 · 71.3 %" in chart and 'class="frontier"' in chart
    assert "tree N=16: 71.3 % (68.3–74.3), 1,450 tokens" in chart


def test_chart_places_more_tokens_to_the_right_and_more_accuracy_higher():
    chart = accuracy_chart(read_runs([entry("direct", 0.482, 95), entry("tree", 0.713, 1450, 16)]), "tokens")
    xs = [float(x) for x in re.findall(r'<path class="error" d="M([\d.]+)', chart)]
    corners = re.search(r'class="frontier" points="([^"]+)"', chart).group(1).split()
    ys = [float(corner.split(",")[1]) for corner in corners]
    assert xs[0] < xs[1] and ys[0] > ys[-1]


def test_chart_without_costs_is_none():
    free = entry("direct", 0.4, 0, flops_per_problem=None)
    assert accuracy_chart(read_runs([free]), "tokens") is None
    assert accuracy_chart(read_runs([free]), "flops") is None


@given(st.floats(1e-3, 1e15), st.floats(1.01, 1e6))
def test_log_ticks_stay_inside_and_few(low, factor):
    ticks = log_ticks(low, low * factor, most=8)
    assert len(ticks) <= 8 and all(low <= tick <= low * factor for tick in ticks)


@given(st.floats(0, 0.9), st.floats(0.01, 1))
def test_share_ticks_stay_inside(low, span):
    ticks = share_ticks(low, min(low + span, 1.0))
    assert len(ticks) <= 8 and all(low - 1e-6 <= tick <= low + span + 1e-6 for tick in ticks)


@given(st.lists(st.integers(0, 16), max_size=50))
def test_histogram_counts_every_problem_once_and_keeps_the_ends_apart(rights):
    counts = histogram([right / 16 for right in rights])
    assert len(counts) == NUM_BINS + 1 and sum(counts) == len(rights)
    assert counts[0] == rights.count(0)


def test_roles_split_generated_into_thinking_and_answer_and_leave_cached_out():
    (run,) = read_runs([entry("direct", 0.4, 90)])
    assert role_tokens(run) == {
        "thinking": 72.0,
        "answer": 18.0,
        "scored": 0.0,
        "judged": 0.0,
        "prefilled": 3.0,
        "overrun": 0.0,
    }


def test_numbers_print_missing_values_as_missing():
    assert [show(None) for show in (percent, count, quantity, points)] == ["–"] * 4
    assert interval(0.1, None) == "–"
    assert (percent(0.7134), count(1449.6), quantity(3.2e12), points(-0.05)) == ("71.3 %", "1,450", "3.2 T", "−5.0")


def test_a_figure_of_several_groups_is_written_for_slides_and_papers_with_the_same_bytes_again(tmp_path):
    from evals.report.chart import write_figures

    sections = groups(read_runs([entry("direct", 0.4, 90), entry("tree", 0.7, 900, 16, level=5)]))
    first = {path.suffix: path.read_bytes() for path in write_figures(tmp_path, sections)}
    assert {name: content[:4] for name, content in first.items()} == {
        ".png": b"\x89PNG", ".svg": b"<?xm", ".pdf": b"%PDF",
    }  # fmt: skip
    assert b"accuracy, with 95 % interval" in first[".svg"]
    assert {path.suffix: path.read_bytes() for path in write_figures(tmp_path, sections)} == first


@pytest.mark.parametrize(("value", "text"), [(999_600, "1 M"), (999.7, "1 k"), (999_400, "999 k"), (9.996e14, "1 P")])
def test_a_quantity_that_rounds_up_to_the_next_unit_is_told_in_it(value, text):
    assert quantity(value) == text


def test_answers_without_a_verdict_are_told_beside_the_accuracy_that_they_lower():
    verdicts = {"correct": 40, "incorrect": 30, "timeout": 20, "error": 10}
    runs = [entry("direct", 0.4, 90, verdicts=verdicts), entry("tree", 0.3, 1450, 16, verdicts={"correct": 100})]
    _, _, head, _, *rows = render_table(runs).splitlines()
    assert head.endswith("  no verdict") and [row.split()[-1] for row in rows[:2]] == ["30", "0"]
    text = headline(read_runs(runs))
    assert text.endswith("No verdict, and counted as wrong: 30 problems of direct.") and "did not help" not in text
    assert "no verdict" not in render_table(runs[1:]) and "verdict" not in headline(read_runs(runs[1:]))
    none = [entry("direct", 0.0, 90, errors=40, verdicts={"limit": 60})]
    assert headline(read_runs(none)) == (
        "Nothing was measured: all 100 problems of arithmetic level 4 failed or got no verdict."
    )


def test_long_names_and_those_in_wide_signs_fit_into_table_and_figure(tmp_path):
    from evals.report.chart import write_figures

    runs = [entry("戦略", 0.4, 90), entry("mine.py:" + "very_" * 30 + "long", 0.6, 900), entry("tree", 0.5, 300)]
    _, _, head, _, wide, long, plain = render_table(runs).splitlines()
    assert len(wide) + 2 == len(long) == len(plain) == len(head)
    for width in (420, 1090):
        chart = accuracy_chart(read_runs(runs), "tokens", width=width)
        labels = re.findall(r'<text class="name [^>]*>([^<]+)</text>', chart)
        assert len(labels) == 3 and max(map(len, labels)) * 7.4 <= width - 66 - 22
        assert any(label.startswith("mine.py:very_") and label.endswith("long · 60.0 %") for label in labels)
    write_figures(tmp_path, groups(read_runs(runs)))
