"""From text to checked arguments: registries of named parts, signatures, values, ranges, the shapes of plug-ins."""
