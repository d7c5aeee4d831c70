"""Recomputing recorded updates, and judging recorded rollouts again."""
