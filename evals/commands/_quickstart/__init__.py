"""`ttc quickstart`: what is there, and what works on it."""
