"""Gates that a model must pass before it is promoted."""
