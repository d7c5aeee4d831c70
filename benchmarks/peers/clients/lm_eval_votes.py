"""lm-eval's self-consistency: `repeats` of a generation task, a filter for the number, `majority_vote`.

One request per repeat. The task is a file of a few lines, like its own `gsm8k-cot-self-consistency`. lm-eval 0.4.13
sends the seed 1234 with every request, so that a server that uses seeds samples the same text for every repeat: that is
the algorithm `majority_as_shipped`. `majority` removes the seed by a line of the task.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.clients import kit

# user's code
TASK = """
task: votes
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{id}}}}"
repeats: {n}
generation_kwargs: {{until: [], do_sample: true, temperature: {temperature}, max_gen_toks: {max_tokens}{seed}}}
filter_list:
  - name: vote
    filter:
      - {{function: regex, group_select: -1, regex_pattern: '(-?[0-9]+)[^0-9]*$', fallback: "[invalid]"}}
      - {{function: majority_vote}}
      - {{function: take_first}}
metric_list: [{{metric: exact_match}}]
"""
# end of user's code


def prepare(job: dict[str, Any], tally: kit.Tally) -> Callable[[], list[str]]:
    """Write the task."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder = Path(tempfile.mkdtemp())
    data = folder / "problems.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in job["problems"]), encoding="utf-8")
    fields = {name: job[name] for name in ("n", "temperature", "max_tokens")}
    fields["seed"] = "" if job["algorithm"] == "majority_as_shipped" else ", seed: null"
    (folder / "votes.yaml").write_text(TASK.format(data=data, **fields), encoding="utf-8")
    tasks = TaskManager(include_path=str(folder), include_defaults=False)

    def run() -> list[str]:
        # user's code
        args = f"model={job['model']},base_url={job['url']}/v1/chat/completions,num_concurrent=256,max_retries=3"
        results = lm_eval.simple_evaluate(
            "local-chat-completions", model_args=args, tasks=["votes"], task_manager=tasks, apply_chat_template=True,
            log_samples=True, bootstrap_iters=0,
        )  # fmt: skip
        # end of user's code
        samples = sorted(results["samples"]["votes"], key=lambda sample: sample["doc_id"])
        finals = [str(sample["filtered_resps"][0]) for sample in samples]
        return [f"</think>{final}" for final in finals]

    return run


if __name__ == "__main__":
    kit.main(prepare)
