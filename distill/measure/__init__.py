"""Measuring teacher and student: evaluation, comparison, obedience."""
