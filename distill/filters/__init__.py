"""Filters of generated answers: one file each, `samples -> a reason or None for each`."""
