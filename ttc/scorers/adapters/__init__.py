"""Public reward models, one file each: the format of a conversation and its steps, and where scores are read.

A file defines one function of its own name that returns an `Adapter` (`_base.py`); another distribution adds one by the
entry-point group `ttc.adapters`, a user by `--set scorer.adapter=file.py:function`.
"""
