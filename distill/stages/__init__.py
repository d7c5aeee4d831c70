"""Kinds of training stages that distillation adds to `train`."""
