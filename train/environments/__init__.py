"""Environments: one short file each; the file's name is the environment's (`train.rollouts.environment`)."""
