import os

from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import FieldSpec, csv_dataset
from inspect_ai.model import get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate

model = get_model("openai-api/mine/gpt-x", base_url=os.environ["URL"], api_key=os.environ["OPENAI_API_KEY"])
task = Task(
    dataset=csv_dataset("mine.csv", FieldSpec(input="question", target="answer")),
    solver=generate(),
    scorer=match(numeric=True),
    epochs=Epochs(4, "mode"),
)
print(eval(task, model=model, display="plain")[0].results.scores[0].metrics)
