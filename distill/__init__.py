"""Distillation jobs: from a specification to a student checkpoint that has passed its gates.

`distill.spec.spec` is the specification, `distill.spec.method` the interface of a method, `distill.job.job` runs a job:
teachers' answers go into a ledger where each is paid once, through filters whose reasons are kept, into rows that
`train` learns from; the student is measured before and after, and promoted only when every gate passes.
"""
