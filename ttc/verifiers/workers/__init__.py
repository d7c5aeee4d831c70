"""Processes that verify, so that a hang or a crash costs one verdict."""
