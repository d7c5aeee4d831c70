"""Kinds of stages, one file each; see `train.base.stage`."""
