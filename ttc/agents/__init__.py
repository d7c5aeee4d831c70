"""Agents: a model that observes, thinks and acts, turn by turn, until it answers.

    tool      what a tool is, and how one is chosen by name (`ttc/tools/`)
    markup    how a call and its result are written in a model's text
    episode   the loop: sample up to a call, run it, append what it returned, go on

Token ids go in and come out: what a tool returned is appended to the prompt as ids and never tokenised again, so the
context stays cached and training sees exactly what was sampled and what was not. The strategy `tools` and the rollouts
of training run the same loop.
"""
