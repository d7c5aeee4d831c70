"""Corpora of small made-up languages to pretrain on: one file each, see `train.examples.examples`."""
