"""The tree of one record: parents, scores, pruned and chosen marks, thinking apart from the answer."""

import json

from evals.report.chart import success_by_score, success_shares
from evals.report.problems import (
    MAX_TREE_BYTES,
    build_tree,
    group_data,
    kinds_of,
    sample,
    shorten,
    traits_of,
    tree_data,
)
from evals.report.runs import read_runs
from ttc.core import Answer, Candidate, Event, Message, Problem, Record, Verdict


def generate(path, text, thinking=False, **data):
    return Event(
        "generate", path, {"text": text, "num_tokens": 3, "finish_reason": "stop", "thinking": thinking, **data}
    )


def candidate(path, text, final, **more):
    return Candidate(path, text, "", final, "stop", 3, **more)


def record(trace=(), candidates=(), statuses=(), status="correct", pid="p1", **answer):
    return Record(
        Problem(pid, (Message("user", "2+2?"),)),
        "4",
        Answer("4", "4", trace=tuple(trace), candidates=tuple(candidates), **answer),
        Verdict(status),
        tuple(Verdict(s) for s in statuses),
    )


BRANCHED = record(
    trace=[
        generate((0,), "<think>1+1=2\n", thinking=True),
        generate((0, 0), "2+2=4</think>", thinking=True),
        generate((0, 0, 0), "4"),
        generate((1,), "<think>1+1=3\n", thinking=True),
        Event("score", (0,), {"value": 0.9, "steps": [0.9]}),
        Event("score", (1,), {"value": 0.1, "steps": [0.1]}),
        Event("prune", (1,)),
        Event("select", (0, 0, 0)),
    ],
    candidates=[candidate((0, 0, 0), "4", "4")],
    statuses=["correct"],
)


def test_tree_links_each_node_to_its_parent():
    data = tree_data(BRANCHED, 1000)
    assert [(node["id"], node["up"]) for node in data] == [("0", -1), ("0.0", 0), ("0.0.0", 1), ("1", -1)]


def test_a_missing_parent_is_bridged_to_the_nearest_ancestor():
    data = tree_data(record([generate((0,), "a"), generate((0, 3, 1), "b"), generate((5, 0), "c")]), 1000)
    assert [(node["id"], node["up"]) for node in data] == [("0", -1), ("0.3.1", 0), ("5.0", -1)]


def test_select_marks_the_whole_path_and_prune_only_its_branch():
    nodes = {node.path: node for node in build_tree(BRANCHED)}
    assert [nodes[path].chosen for path in ((0,), (0, 0), (0, 0, 0), (1,))] == [True, True, True, False]
    assert [path for path, node in nodes.items() if node.pruned] == [(1,)]
    assert (nodes[(0,)].score, nodes[(1,)].score, nodes[(0, 0)].score) == (0.9, 0.1, None)


def test_a_think_block_over_several_steps_stays_thinking():
    nodes = {node.path: node for node in build_tree(BRANCHED)}
    assert nodes[(0,)].parts == [(True, "1+1=2\n")]
    assert nodes[(0, 0)].parts == [(True, "2+2=4")]
    assert nodes[(0, 0, 0)].parts == [(False, "4")]


def test_a_block_opened_by_the_prompt_ends_at_its_marker():
    (node,) = build_tree(record([generate((0,), "let me see</think>4", thinking=True)]))
    assert node.parts == [(True, "let me see"), (False, "4")]


def test_an_answer_without_markers_is_no_thinking():
    (node,) = build_tree(record([generate((0,), "4")]))
    assert node.parts == [(False, "4")]


def test_verdicts_hang_on_the_leaves_of_their_candidates():
    leaf = next(node for node in tree_data(BRANCHED, 1000) if node.get("leaf"))
    assert (leaf["id"], leaf["final"], leaf["status"]) == ("0.0.0", "4", "correct")


def test_an_answer_without_a_trace_still_has_a_tree():
    both = [Candidate((0,), "4", "hm", "4", "stop", 9), Candidate((1,), "5", "", "5", "length", 7, score=0.25)]
    data = tree_data(record(candidates=both, statuses=["correct", "incorrect"]), 1000)
    assert data[0]["parts"] == [[1, "hm"], [0, "4"]] and data[0]["chosen"] == 1
    assert data[1]["end"] == "length" and data[1]["score"] == 0.25


def test_segments_of_one_draw_are_one_node():
    twice = [generate((0,), "<think>a", injected=[[1, 3]]), generate((0,), "b</think>c")]
    (node,) = build_tree(record(twice))
    assert (node.num_tokens, node.injected) == (6, 2)
    assert node.parts == [(True, "a"), (True, "b"), (False, "c")]


def test_scores_that_json_cannot_hold_are_no_verdict():
    odd = [generate((0,), "a"), Event("score", (0,), {"value": float("nan"), "steps": [float("inf"), 0.5]})]
    (node,) = tree_data(record(odd), 1000)
    assert "score" not in node and node["steps"] == [0.5]


def test_a_failed_problem_has_no_tree():
    assert build_tree(Record(Problem("p", ()), error="EngineTimeout")) == []


def test_shorten_says_how_much_is_missing():
    cut = shorten("a" * 50 + "b" * 50, 20)
    assert cut.startswith("a" * 10) and cut.endswith("b" * 10) and "80 characters left out" in cut


def test_success_leaves_out_candidates_without_a_verdict():
    pool = [candidate((i,), "4", "4") for i in range(6)]
    one = record(candidates=pool, statuses=["correct", "incorrect", "incorrect", "incorrect", "timeout", "error"])
    assert success_shares([one]) == [0.25]
    assert success_shares([record(candidates=pool[:3], statuses=["correct"] * 3)]) == []


def test_success_by_score_puts_right_candidates_of_a_perfect_scorer_on_top():
    pool = [candidate((i,), "4", "4", score=i / 100) for i in range(100)]
    one = record(candidates=pool, statuses=["incorrect"] * 60 + ["correct"] * 40)
    ranks = success_by_score([one])
    assert [share for _, _, share, _ in ranks] == [0, 0, 0, 1, 1]
    assert [size for *_, size in ranks] == [20] * 5


def test_success_by_score_is_flat_where_all_scores_are_equal():
    pool = [candidate((i,), "4", "4", score=0.5) for i in range(100)]
    ranks = success_by_score([record(candidates=pool, statuses=["incorrect", "correct"] * 50)])
    assert ranks == [(0.5, 0.5, 0.5, 20)] * 5
    coarse = [candidate((i,), "4", "4", score=float(i % 2)) for i in range(100)]
    ranks = success_by_score([record(candidates=coarse, statuses=["incorrect", "correct", "correct", "correct"] * 25)])
    assert [share for _, _, share, _ in ranks] == [0.5, 0.5, 0.75, 1.0, 1.0]


def test_kinds_of_a_problem():
    right, wrong = record(), record(status="incorrect", candidates=[candidate((0,), "4", "4")], statuses=["correct"])
    cut = record(status="no_answer", finish_reason="length")
    assert kinds_of(traits_of(right) | traits_of(wrong)) == ("disagree", "missed")
    assert kinds_of(traits_of(cut)) == ("cut", "wrong")
    assert kinds_of(traits_of(right)) == ("right",)
    assert kinds_of(traits_of(record(status="timeout"))) == ("unjudged", "wrong")


def test_sample_takes_turns_between_kinds_and_never_repeats():
    kinds = {f"right{i}": ["right"] for i in range(50)} | {"odd": ["disagree", "cut"], "bad": ["wrong"]}
    chosen = sample(kinds, 5)
    assert chosen[0] == "odd" and "bad" in chosen and len(set(chosen)) == 5


def test_page_data_stays_bounded_however_long_the_texts():
    text = "<&>" * 20_000
    many = [record([generate((i,), text) for i in range(16)], pid=f"p{n}") for n in range(200)]
    summary = {"strategy": "majority", "n": 16, "problems": 200, "accuracy": 1, "tokens_per_problem": 9}
    (run,) = read_runs([summary])
    data = group_data([run], {run.key: many})
    assert 10 <= len(data["trees"]) <= 40 and len(data["rows"]) == 200
    assert len(json.dumps(data["trees"])) < MAX_TREE_BYTES
    assert "characters left out" in json.dumps(data["trees"])
