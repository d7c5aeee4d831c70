"""Toy worlds: generators of problems with known answers, and their families."""
