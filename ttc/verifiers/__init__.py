"""Verifiers: what holds the target and decides whether a submission meets it.

    math            mathematics: exact and structural comparison here, numbers and `math-verify` in a killable worker
    choice, exact   a letter; a short string
    format          the form of the text: think and answer tags, boxes, length
    code            programs against tests, in a sandbox
    instructions, language, regex, countdown, game24, procedural    what their names say, by rules
    judge           a language model with a reference or a rubric, asked in both orders
    safety          refusals and prohibited phrases, by rules
    composite       several of these as one reward

Each module has one factory of its own name. A verifier is stateless, answers with a `Verdict` and never raises for any
text; a target that cannot be used raises ConfigError from `check_gold`, which tasks call when they load.
Answers count only after the thinking has ended, and a text cut by length has no answer (see `contract`).
Each declares a card (`contract`): version, limits, weaknesses, known cases. `service` runs any of them with a memory, a
wall limit, metrics and an audit log; `steps` labels the steps of a solution.
"""
