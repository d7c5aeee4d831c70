"""Tree search: the runtime, its pace under a budget, and allocation policies (`policies/`, one file each)."""
