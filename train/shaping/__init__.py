"""Shaping: extra parts of a reward, one file each; a factory returning a `train.rollouts.rewards.Shaping`."""
