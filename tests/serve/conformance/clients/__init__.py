"""Programs of other people's clients, each of which asks a server and ends with status 0 when it got what it needs."""
