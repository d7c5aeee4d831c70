"""Kinds of stages, one file each; see `train.stage`."""
