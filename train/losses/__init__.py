"""Policy-gradient terms, one file each: a factory with the recipe fields as keywords; see `train.terms` for shapes."""
