"""The checks behind `ttc doctor`; one file per subject."""
