"""What a run was made from, by content: digests of models, files and user code, and their differences."""
