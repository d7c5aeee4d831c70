"""What an operator sets and sees: configuration, defaults, metrics, traces."""
