import csv
import os

import ttc

engine = ttc.ENGINES.load("openai")("gpt-x", base_url=os.environ["URL"])
rows = list(csv.DictReader(open("mine.csv")))
print(ttc.evaluate(rows, engine=engine, strategy="majority", n=4, prices=ttc.Prices(0.15, 0.60)))
