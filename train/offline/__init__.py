"""Training on data: epochs, the course of a stage, preference updates."""
