import csv
import os
import re
import subprocess
import time
import urllib.request

from openai import OpenAI

proxy = subprocess.Popen(["optillm", "--base-url", os.environ["URL"], "--port", "8139", "--log", "error"])
while True:
    try:
        urllib.request.urlopen("http://127.0.0.1:8139/health", timeout=2)
        break
    except OSError:
        time.sleep(0.2)
client = OpenAI(base_url="http://127.0.0.1:8139/v1")
rows = list(csv.DictReader(open("mine.csv")))
right = 0
for row in rows:
    reply = client.chat.completions.create(
        model="majority_voting-gpt-x",
        messages=[{"role": "user", "content": row["question"]}],
        extra_body={"k": 4},
    )
    right += (re.findall(r"-?\d+", reply.choices[0].message.content) or [""])[-1] == row["answer"]
print(f"accuracy {right / len(rows):.3f}")
proxy.terminate()
