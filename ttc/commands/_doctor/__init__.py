"""The checks behind `ttc doctor`; what is installed, and parts that are tried."""
