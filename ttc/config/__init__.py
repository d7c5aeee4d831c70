"""From text to checked arguments: registries of what has a name, signatures, values, ranges, the shapes of plug-ins."""
