"""`report.html`: its numbers are the summary's, model text is inert, and it needs no network."""

import base64
import hashlib
import html.parser
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from evals.report import write_report
from evals.report.kit import text_table
from ttc.core import Answer, Candidate, Event, Message, Problem, Record, Usage, Verdict
from ttc.errors import ConfigError

ATTACK = "</script><img src=x onerror=alert(1)>{{data}}\u2028"


def answered(pid, final, right, trace=()):
    return Record(
        Problem(pid, (Message("user", f"{pid}: 2+2? {ATTACK}"),)),
        "4",
        Answer(
            f"{final} {ATTACK}",
            final,
            candidates=(Candidate((0,), ATTACK, "", final, "stop", 3),),
            usage=Usage(generated=30),
            trace=trace,
        ),
        Verdict("correct" if right else "incorrect", reason=ATTACK),
        (Verdict("correct" if right else "incorrect"),),
    )


def summary(strategy, accuracy, tokens, n=1):
    return {
        "strategy": strategy, "params": {"n": n}, "task": "toy", "level": None, "n": n, "problems": 2,
        "accuracy": accuracy, "low": accuracy - 0.1, "high": accuracy + 0.1, "tokens_per_problem": tokens,
        "flops_per_problem": 1e6 * tokens, "usage": {"generated": 2 * tokens, "scored": tokens}, "curve": [
            {"kind": kind, "k": k, "accuracy": 0.3, "low": 0.2, "high": 0.5, "tokens": 9.0 * k, "flops": 1e6 * k}
            for kind in ("pass", "majority") for k in (1, 2, 4)
        ] if n > 1 else [],
    }  # fmt: skip


SEARCH = (
    Event("generate", (0,), {"text": f"<think>{ATTACK}</think>4", "num_tokens": 3, "finish_reason": "stop"}),
    Event("generate", (1,), {"text": "bad step", "num_tokens": 3, "finish_reason": "stop"}),
    Event("prune", (1,)),
    Event("select", (0,)),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    summaries = [summary("direct", 0.482, 95), summary("tree", 0.713, 1450, 16)]
    records = [
        [answered("p1", "5", False), answered("p2", "4", True)],
        [answered("p1", "4", True, SEARCH), Record(Problem("p2", ()), "4", error=f"EngineTimeout {ATTACK}")],
    ]
    return write_report(tmp_path_factory.mktemp("page") / "out", summaries, records)


def data_of(path):
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    return json.loads(block.group(1))


class Tags(html.parser.HTMLParser):
    """Collects the start tags that a browser would see."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def tags_of(path):
    parser = Tags()
    parser.feed(path.read_text())
    return parser.found


def test_report_writes_page_curve_and_figure(page):
    assert sorted(p.name for p in page.parent.iterdir()) == [
        "curve.csv", "figure.pdf", "figure.png", "figure.svg", "report.html",
    ]  # fmt: skip


def test_page_prints_the_numbers_of_the_summary(page):
    text = page.read_text()
    for number in ("71.3 %", "61.3–81.3", "1,450", "48.2 %", "38.2–58.2", "95"):
        assert number in text
    headline = re.sub(r"<[^>]+>", "", re.search(r"<h1>(.*?)</h1>", text).group(1)).replace("&nbsp;", " ")
    assert headline == (
        "tree N=16 answers 71.3 % (61.3–81.3) of toy for 1,450 tokens a problem; "
        "direct answers 48.2 % (38.2–58.2) for 95."
    )


def test_text_of_a_model_is_inert(page):
    tags = tags_of(page)
    assert not [tag for tag, _ in tags if tag == "img"]
    assert not [name for _, attrs in tags for name in attrs if name.startswith("on")]
    assert [tag for tag, _ in tags].count("script") == 2
    assert "alert(1)" in json.dumps(data_of(page))


def test_a_placeholder_in_model_text_is_not_filled_in(page):
    assert data_of(page)["groups"][0]["rows"][0]["q"] == f"p1: 2+2? {ATTACK}"


def test_page_refers_to_no_network(page):
    for _, attrs in tags_of(page):
        assert not {"src", "href", "action", "srcset"} & attrs.keys()
    assert not re.search(r"@import|url\(", page.read_text())
    policy = next(attrs["content"] for _, attrs in tags_of(page) if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_content_policy_admits_exactly_the_script_of_the_page(page):
    text = page.read_text()
    script = re.findall(r"<script>(.*?)</script>", text, re.S)[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_viewer_data_has_pruned_and_chosen_marks_and_thinking_apart(page):
    (group,) = data_of(page)["groups"]
    nodes = group["trees"]["p1"][1]["nodes"]
    assert [(node["id"], node.get("chosen"), node.get("pruned")) for node in nodes] == [("0", 1, None), ("1", None, 1)]
    assert nodes[0]["parts"] == [[1, ATTACK], [0, "4"]]
    assert [row["t"] for row in group["rows"]] == ["4", "4"]


def test_failed_problems_are_shown_with_their_error(page):
    (group,) = data_of(page)["groups"]
    assert group["trees"]["p2"][1] == {"status": "failed", "error": f"EngineTimeout {ATTACK}"}
    assert group["rows"][1]["c"] == [["correct", "4"], ["failed", ""]]


def test_the_same_records_give_the_same_bytes(page, tmp_path):
    summaries, records = [summary("direct", 0.5, 95)], [[answered("p1", "4", True)]]
    once, again = (write_report(tmp_path / name, summaries, records).read_bytes() for name in "ab")
    assert once == again


def test_lone_surrogates_do_not_break_the_page(tmp_path):
    record = answered("p", "4", True)
    record = replace(record, problem=replace(record.problem, id="p\ud800"))
    path = write_report(tmp_path, [summary("direct", 0.5, 95)], [[record]])
    assert data_of(path)["groups"][0]["rows"][0]["id"] == "p?"


def test_nothing_to_report_and_mismatched_records_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no finished run"):
        write_report(tmp_path, [], [])
    with pytest.raises(ConfigError, match="1 summary entries but 2 lists"):
        write_report(tmp_path, [summary("direct", 0.5, 95)], [[], []])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_viewer_draws_the_tree_in_a_browser(page, tmp_path):
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --disable-sync"
    command = ["chromium", *flags.split(), f"--user-data-dir={tmp_path}/profile", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert dom.count('class="node') == 2 and 'class="edge pick"' in dom and 'class="edge cut"' in dom
    assert "<img" not in re.sub(r"<script.*?</script>", "", dom, flags=re.S)


def test_columns_of_words_stand_left_and_those_of_numbers_right() -> None:
    page = text_table(("who", "rows", "why"), [("a", "12", "gone"), ("b", "–", "")])
    assert '<th scope="col">rows</th><th scope="col" class="words">why</th>' in page
    assert '<td>12</td><td class="words">gone</td>' in page and '<td>–</td><td class="words"></td>' in page
    assert '<th scope="col">why</th>' in text_table(("who", "rows", "why"), [])


def test_the_foot_of_the_page_says_which_intervals_and_what_counts_as_right(page):
    foot = " ".join(page.read_text().partition("<footer>")[2].split())
    assert (
        "exact (Clopper and Pearson) where problems are right or wrong, each for itself, else Gaffke's over clusters"
        in foot
    )
    assert "is not right in accuracies and curves; the small figures leave such candidates out" in foot


def test_the_page_says_when_its_runs_are_not_of_the_same_problems(page: Path, tmp_path: Path) -> None:
    summaries = [summary("direct", 0.5, 95), summary("tree", 0.5, 1450)]
    first = [answered("p1", "5", False), answered("p2", "4", True)]
    told = "not the same problems: {} of {} are in all runs"
    for second, shared, every in ((["p2", "p3"], 1, 3), (["p3", "p4"], 0, 4)):
        records = [first, [answered(pid, "4", True) for pid in second]]
        assert told.format(shared, every) in write_report(tmp_path, summaries, records).read_text()
    for records in ([first, first], [first, []]):
        assert "not the same problems" not in write_report(tmp_path, summaries, records).read_text()
    assert "not the same problems" not in page.read_text()
