"""One update of a policy: batches, packing, normalisation, losses, the critic."""
