"""Distillation jobs: from records of a teacher with a strategy to a student checkpoint.

Nothing is here yet. Planned: rejection sampling, search distillation, on-policy distillation, specialists and
thinking-mode fusion, all starting from the records that `evals` writes.
"""
