"""Allocation policies: one file each, named like its factory; the file name is the registration."""
