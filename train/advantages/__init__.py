"""Advantages: from rewards to one weight per token. One file each; see `train.update.terms` for shapes."""
