"""What every stage builds on: settings, models, processes, checkpoints, optimiser, rollouts, health."""
