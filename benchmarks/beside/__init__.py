"""First contact beside other tools: what is installed, what is typed, and what the first result says."""
