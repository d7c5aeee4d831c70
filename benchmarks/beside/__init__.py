"""The first minutes with this toolkit and with others: installation, first program, first result."""
