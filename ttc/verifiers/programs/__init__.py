"""Parts of the verifier of programs: reading targets, putting a program together, running and judging it."""
