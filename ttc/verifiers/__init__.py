"""Verifiers: what holds the target and decides whether a submission meets it.

    math      mathematics: exact and structural comparison here, numbers and `math-verify` in a killable worker
    choice    a letter
    exact     a short string
    format    the form of the text: think and answer tags, boxes, length

Each module has one factory of its own name. A verifier is stateless, answers with a `Verdict` and never raises for any
text; a target that cannot be used raises ConfigError from `check_gold`, which tasks call when they load.
Answers count only after the thinking has ended, and a text cut by length has no answer (see `reading`).
"""
