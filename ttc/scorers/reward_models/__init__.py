"""Parts for reading reward models: layouts and readers of families, incremental scoring, servers, batching."""
