"""Training and use of reward models: outcome, steps, Monte Carlo labels, learnt rewards."""
