"""What a strategy uses: the session, its meter and budget, thinking control, solving."""

from ttc.session.session import Session

__all__ = ["Session"]
