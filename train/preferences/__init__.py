"""Preference losses, one file each: a factory of the recipe's fields; shapes: `train.examples.pairs`."""
