"""A request under way: admission, fairness, routing, the engine, the stream of events."""
