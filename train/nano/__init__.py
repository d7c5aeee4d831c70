"""The packaged model family: a tiny thinking teacher, its reward model and a base student.

`python -m train.nano --out DIR` makes all three from seeds; see `ttc/nano/README.md` for what they reach.
"""
