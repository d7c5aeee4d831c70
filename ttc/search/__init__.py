"""Tree search: one runtime (`runtime.py`) and allocation policies (`policies/`, one file each)."""
