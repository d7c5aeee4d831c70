"""A request: its fields and what they mean, its errors and keys."""
