"""Public reward models, one file each: how a conversation and its steps are written for it, and where it is read.

A file defines one function of its own name that returns an `Adapter` (`_base.py`); another distribution adds one by the
entry-point group `ttc.adapters`, a user by `--set scorer.adapter=file.py:function`.
"""
