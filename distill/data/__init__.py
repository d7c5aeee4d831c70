"""From answers to a data set: filters, selection, prompts, vocabulary."""
