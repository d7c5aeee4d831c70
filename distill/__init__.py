"""Distillation jobs: from a specification to a student checkpoint that has passed its gates.

`distill.spec.spec` is what is asked, `distill.spec.method` what a method has to say, `distill.job.job` runs it:
teachers' answers go into a ledger where each is paid once, through filters whose reasons are kept, into rows that
`train` learns from; the student is measured against where it started, and promoted only when every gate passes.
"""
