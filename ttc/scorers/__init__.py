"""Scorers: blind opinions on prompts; one file each, named like its factory."""
