"""Where rows come from: sources, JSON lines, labelled steps, and what must not be trained on."""
