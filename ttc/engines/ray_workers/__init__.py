"""Several engines in processes of Ray, on one node or many."""

from ttc.engines.ray_workers.engine import ray_workers

__all__ = ["ray_workers"]
