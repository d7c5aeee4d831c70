"""The numbers of a run: metrics, intervals, summaries, comparisons."""
