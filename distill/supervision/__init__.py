"""Teachers that supervise what a student says, token by token: on a model folder here, or on an engine or server."""
