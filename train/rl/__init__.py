"""Reinforcement learning: the loop, its step and its parts."""
