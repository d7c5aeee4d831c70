"""Preference losses. One file each: a factory whose keywords are the recipe's fields; see `train.pairs` for shapes."""
