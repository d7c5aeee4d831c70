"""An OpenAI-compatible endpoint where thinking and search are request parameters: `ttc serve`.

A request comes in one of several dialects (`serve.dialects`), becomes a `ServeRequest`, is checked and bound to a
model, a strategy and limits (`serve.running.plan`), admitted (`serve.running.admission`), run (`serve.running.run`) as
a stream of events (`serve.running.events`), and leaves in its dialect. Imports `ttc` only.
"""
