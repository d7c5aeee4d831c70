"""A job: its stages, manifest, status, spending, data set and trace."""
