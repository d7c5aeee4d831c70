"""How one answer is chosen among candidates: votes, rules of selection, aggregation of step scores."""
