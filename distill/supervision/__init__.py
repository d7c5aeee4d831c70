"""Teachers that supervise a student's tokens one by one: from a model folder here, or on an engine or server."""
