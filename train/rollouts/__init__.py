"""Rollouts: groups, rewards, metrics, held-out problems, samplers of problems, weights for the engine."""
