"""One file per system: it reads a job, runs the system, and writes texts and the system's own counts."""
