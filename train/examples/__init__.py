"""Examples to learn from: sources, pairs, steps, corpora, the reference."""
