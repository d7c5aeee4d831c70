"""Training: recipes of stages, from pretraining to reinforcement learning and reward models."""
