"""Scorers: scores of prompts without a target; one file each, named like its factory."""
