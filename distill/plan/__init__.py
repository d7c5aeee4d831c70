"""What a job will do and cost: resolved parts, the lock, gates."""
