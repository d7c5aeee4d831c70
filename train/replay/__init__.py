"""Computing recorded updates again, and judging recorded rollouts again."""
