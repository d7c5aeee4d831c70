"""EleutherAI's lm-eval, `local-chat-completions`, on a task of ten additions; our fields go in by --gen_kwargs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("lm_eval")
TASK = """\
task: additions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["</s>"], max_gen_toks: 200, do_sample: false, temperature: 0.0}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
filter_list:
  - name: last
    filter:
      - {{function: regex, regex_pattern: "boxed\\\\{{(-?\\\\d+)"}}
      - {{function: take_first}}
"""


@pytest.mark.parametrize(
    ("kwargs", "least"),
    # Without thought the packaged model is a poor calculator: only that it runs is asked.
    [("seed=1", 0.7), ("thinking_budget=40,seed=1", 0.7), ("reasoning_effort=none,seed=1", 0.0)],
)
def test_a_task_runs_and_its_score_is_the_models(url: str, tmp_path: pathlib.Path, kwargs: str, least: float) -> None:
    rows = [{"question": f"{a}+{a + 7}", "answer": str(2 * a + 7)} for a in range(3, 13)]
    data = tmp_path / "additions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "additions.yaml").write_text(TASK.format(data=data))
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-chat-completions"]
    command += ["--model_args", f"model=nano-teacher,base_url={url}/v1/chat/completions,num_concurrent=4,max_retries=1"]
    command += ["--tasks", "additions", "--include_path", str(tmp_path), "--apply_chat_template"]
    command += ["--gen_kwargs", kwargs, "--output_path", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = (tmp_path / "out").rglob("results_*.json")
    score = json.loads(result.read_text())["results"]["additions"]["exact_match,last"]
    assert score >= least


CHOICES = """\
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
GREEDY = """\
task: greedy
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


def test_tasks_by_log_likelihood_score_what_the_model_itself_would_say(
    url: str, tokenizer: str, tmp_path: pathlib.Path
) -> None:
    """Multiple choice, and whether a continuation is the greedy one, against what the endpoint draws."""

    def drawn(prompt: str) -> str:
        body = {"model": "nano-teacher", "prompt": prompt, "max_tokens": 4, "temperature": 0, "seed": 1}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            text: str = json.load(reply)["choices"][0]["text"]
        return text

    questions = [f"{a}+{a + 7}=" for a in range(3, 13)]
    greedy = {question: drawn(question) for question in questions}
    data = tmp_path / "rows.jsonl"
    rows = [
        {
            "question": question,
            "answer": greedy[question] if number % 2 else "zq",
            "choices": ["zqzq", greedy[question]],
            "label": 1,
        }
        for number, question in enumerate(questions)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "choices.yaml").write_text(CHOICES.format(data=data))
    (tmp_path / "greedy.yaml").write_text(GREEDY.format(data=data))
    places = f"base_url={url}/v1/completions,tokenizer_backend=huggingface,tokenizer={tokenizer}"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", f"model=nano-teacher,{places},num_concurrent=2,max_retries=1"]
    command += ["--tasks", "choices,greedy", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = (tmp_path / "out").rglob("results_*.json")
    scores = json.loads(result.read_text())["results"]
    assert scores["choices"]["acc,none"] == 1.0
    assert scores["greedy"]["acc,none"] == 0.5
