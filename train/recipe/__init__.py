"""Recipes: reading one, running its stages, what a run remembers."""
