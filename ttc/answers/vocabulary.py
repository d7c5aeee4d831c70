"""The words and commands that the grammar of answers knows."""

from __future__ import annotations

RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "~", r"\in": "in"}
"""Spelling of a relation to its operator."""
GREEK = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "kappa", "lambda",
    "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda",
    "Sigma", "Phi", "Psi", "Omega", "ell", "hbar",
})  # fmt: skip
FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "ln": "ln", "log": "log", "lg": "lg", "exp": "exp", "arcsin": "arcsin",
    "arccos": "arccos", "arctan": "arctan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "min": "min",
    "max": "max", "gcd": "gcd", "lcm": "lcm", "det": "det", "abs": "abs", "floor": "floor", "ceil": "ceil",
}  # fmt: skip
"""Spelling of a function to its name."""
SEVERAL = frozenset({"min", "max", "gcd", "lcm"})
"""Functions of several arguments."""
DECORATIONS = frozenset({"vec", "hat", "bar", "overline", "tilde", "overrightarrow", "triangle", "angle"})
"""Commands that make a name out of what follows."""
LABELS = frozenset({r"\odot", r"\oplus", r"\perp", r"\parallel", r"\infty"})
"""Signs that stand as the subscript of a letter."""
WORDS = {"pi": "pi", "theta": "theta", "alpha": "alpha", "beta": "beta", "lambda": "lambda", "phi": "phi"}
"""Words that are symbols."""
INFINITY = frozenset({"inf", "infinity", "infty", "oo", "Infinity"})
CURRENCIES = frozenset({"USD", "EUR", "GBP", "JPY", "INR"})
SETS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}
"""Opening bracket to closing one."""
FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
"""Opening fence to the closing one and the function that both mean."""
MATRICES = frozenset({"matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "array", "smallmatrix"})
VALUES = frozenset({"frac", "sqrt", "pi", "infty", "binom", "dbinom", "tbinom", "mathbb", "{", "langle", "varnothing"})
"""Further commands that begin a value."""
NEVER_UNITS = frozenset({"e", "i", "x", "y", "z", "n"})
"""Letters that are variables even after a number and a space."""
