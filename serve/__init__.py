"""An OpenAI-compatible endpoint with thinking budgets and strategies.

Nothing is here yet. Planned: `ttc serve`, in front of any engine, and its playground page.
"""
