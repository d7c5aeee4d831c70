"""What the training package can be extended with: one file, one function of its name.

train/advantages/NAME.py     from the rewards of a batch to a weight per token
train/losses/NAME.py         the policy-gradient term per token
train/preferences/NAME.py    a loss over pairs or labelled completions
train/shaping/NAME.py        one more part of the reward
train/stages/NAME.py         one kind of step of a recipe
train/environments/NAME.py   a task to be done with tools, and what it is rewarded for
"""

from __future__ import annotations

from ttc.config.plugin_shape import PluginShape
from ttc.config.registry import Registry

__all__ = ["ADVANTAGES", "ENVIRONMENTS", "LOSSES", "PREFERENCES", "SHAPING", "STAGES"]

ADVANTAGES = Registry(
    "advantage", "train.advantages", "ttc.advantages", PluginShape(("train.update.advantage:Advantage",))
)
ENVIRONMENTS = Registry(
    "environment", "train.environments", "ttc.environments", PluginShape(("train.rollouts.environment:Environment",))
)
LOSSES = Registry("loss", "train.losses", "ttc.losses", PluginShape(("train.update.terms:Loss",)))
PREFERENCES = Registry(
    "preference loss",
    "train.preferences",
    "ttc.preferences",
    PluginShape(("train.examples.pairs:PairLoss", "train.examples.pairs:LabelledLoss")),
)
SHAPING = Registry("shaping", "train.shaping", "ttc.shaping", PluginShape(("train.rollouts.rewards:Shaping",)))
STAGES = Registry("stage", "train.stages", "ttc.stages", PluginShape(("train.base.stage:Stage",), supplied=("health",)))
