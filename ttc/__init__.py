"""Test-time compute: spend it, measure it, distil it."""
