"""Tasks, resumable runs, metrics with intervals, accuracy-against-compute reports."""
