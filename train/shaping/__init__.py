"""Shaping: extra parts of a reward, one file each; a factory returning a `train.rewards.Shaping`."""
