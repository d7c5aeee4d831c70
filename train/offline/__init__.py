"""Training on fixed data: epochs, the loop of a stage, preference updates."""
