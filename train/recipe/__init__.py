"""Recipes: reading one, running its stages, and the record of a run."""
