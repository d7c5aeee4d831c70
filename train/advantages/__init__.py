"""Advantages: from rewards to one weight per token. One file each; see `train.outcome` for shapes."""
