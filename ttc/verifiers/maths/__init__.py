"""Equality of mathematical answers: comparing, deciding, symbols, and the verdict."""
