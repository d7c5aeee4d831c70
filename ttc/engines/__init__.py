"""Engines: one module each, named like its factory; the module name is the registration."""
