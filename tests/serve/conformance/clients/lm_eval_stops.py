"""lm-eval: its default stop strings, a blank line among them, and temperature 0; a model, and a preset of it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

URL, MODEL = os.environ["TTC_SERVE_URL"], os.environ["TTC_SERVE_MODEL"]
TASK = """\
task: additions
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
filter_list:
  - name: last
    filter:
      - {function: regex, regex_pattern: "boxed\\\\{(-?\\\\d+)"}
      - {function: take_first}
"""


def score(folder: pathlib.Path, name: str, model: str) -> float:
    """The part of ten additions that the harness finds right."""
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-chat-completions"]
    command += ["--model_args", f"model={model},base_url={URL}/v1/chat/completions,num_concurrent=4,max_retries=1"]
    command += ["--tasks", "additions", "--include_path", str(folder), "--apply_chat_template"]
    command += ["--output_path", str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = (folder / name).rglob("results_*.json")
    return float(json.loads(result.read_text())["results"]["additions"]["exact_match,last"])


def main() -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        data = folder / "additions.jsonl"
        rows = [{"question": f"{a}+{a + 7}", "answer": str(2 * a + 7)} for a in range(3, 13)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "additions.yaml").write_text(TASK.replace("DATA", str(data)))
        assert score(folder, "plain", MODEL) == 1
        assert score(folder, "preset", f"{MODEL}:majority-8") == 1


main()
