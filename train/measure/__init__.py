"""What a stage bought: held-out measures, retention, gates."""
