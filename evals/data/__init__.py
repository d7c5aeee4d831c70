"""Where rows come from: sources, JSON lines, labelled and worked steps, and what must not be trained on."""
