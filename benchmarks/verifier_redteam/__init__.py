"""The red team of the answer verifiers: pairs whose truth is known by construction, and an attacker that searches."""
