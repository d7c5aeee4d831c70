import asyncio
import csv
import os
import re

from its_hub import OpenAICompatibleLanguageModel, SelfConsistency

lm = OpenAICompatibleLanguageModel(endpoint=os.environ["URL"], api_key=os.environ["OPENAI_API_KEY"], model_name="gpt-x")
algorithm = SelfConsistency(lambda text: (re.findall(r"-?\d+", text) or [""])[-1])
rows = list(csv.DictReader(open("mine.csv")))
right = 0
for row in rows:
    result = algorithm.infer(lm, row["question"], budget=4)
    right += (re.findall(r"-?\d+", result["content"]) or [""])[-1] == row["answer"]
print(f"accuracy {right / len(rows):.3f}")
asyncio.run(lm.close())
