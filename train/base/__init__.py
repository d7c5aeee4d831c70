"""What every stage stands on: settings, models, processes, checkpoints, optimiser, rollouts, health."""
