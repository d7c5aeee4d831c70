"""The parts that read reward models: layouts and readers of families, incremental scoring, servers, batching."""
