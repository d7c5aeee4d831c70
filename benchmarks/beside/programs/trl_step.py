import csv
import re

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

rows = [
    {"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]}
    for row in csv.DictReader(open("mine.csv"))
]


def right(completions, answer, **_):
    finals = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [float(bool(final) and final[-1] == gold) for final, gold in zip(finals, answer, strict=True)]


trainer = GRPOTrainer(
    model="SmolLM2-135M-Instruct",
    reward_funcs=right,
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        "out",
        max_steps=1,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=64,
        report_to=[],
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
    ),
)
trainer.train()
print(trainer.state.log_history)
