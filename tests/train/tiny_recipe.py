"""Stages of a recipe that runs in seconds: a base model of a small cipher, and a few updates of it."""

PRETRAIN = """[[stage]]
kind = "pretrain"
corpus = "cipher:symbols=8,max_steps=2"
steps = 4
rows = 4
hidden = 16
heads = 2
kv_heads = 1
mlp = 16
"""

GRPO = """[[stage]]
kind = "grpo"
task = "cipher:symbols=8,max_steps=2,split=train"
held_out = "cipher:symbols=8,max_steps=2"
steps = 2
prompts = 2
n = 2
lr = 1e-3
"""


def write(folder, text):
    """The path of a recipe of this text."""
    path = folder / "recipe.toml"
    path.write_text(text)
    return str(path)
