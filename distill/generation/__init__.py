"""Buying answers of teachers: units, the ledger that pays once, shards, judging."""
