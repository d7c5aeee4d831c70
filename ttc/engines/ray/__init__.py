"""Several engines in processes of Ray, on one node or many."""
