import os

import lm_eval
from lm_eval.tasks import TaskManager

TASK = """
task: votes
dataset_path: csv
dataset_kwargs: {data_files: {test: mine.csv}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
repeats: 4
generation_kwargs: {until: [], do_sample: true, temperature: 0.8, seed: null}
filter_list:
  - name: vote
    filter:
      - {function: regex, group_select: -1, regex_pattern: '(-?[0-9]+)[^0-9]*$', fallback: "[invalid]"}
      - {function: majority_vote}
      - {function: take_first}
metric_list: [{metric: exact_match}]
"""
open("votes.yaml", "w").write(TASK)
results = lm_eval.simple_evaluate(
    "local-chat-completions",
    model_args=f"model=gpt-x,base_url={os.environ['URL']}/chat/completions",
    tasks=["votes"],
    task_manager=TaskManager(include_path=".", include_defaults=False),
    apply_chat_template=True,
)
print(results["results"])
