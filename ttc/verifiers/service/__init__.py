"""Verifiers as a service: deadlines and lanes, audits, metrics, disagreement of two."""
