"""One file a system: it reads a job, asks its system, and writes texts and the system's own counts."""
