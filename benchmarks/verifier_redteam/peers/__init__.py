"""Other judges, each a program that imports nothing of this tree by itself."""
