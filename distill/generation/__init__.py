"""Getting teachers' answers: units, the ledger that pays for each once, shards, judging."""
