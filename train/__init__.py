"""Training.

So far `train.nano` makes the packaged model family from seeds. Planned: SFT, GRPO and the preference family, reward
and process-reward models, curricula and diagnostics.
"""
