"""The specification of a job: fields, registries, methods, teachers."""
