"""Problems of reasoning-gym: the verifier, which scorer a task gets, our own scorers, and the worker with theirs."""

from ttc.verifiers.procedural.verifier import procedural

__all__ = ["procedural"]
