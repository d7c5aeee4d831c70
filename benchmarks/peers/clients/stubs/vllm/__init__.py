"""The two names that search-and-learn imports from vLLM; its loops get another object instead of `LLM`."""


class LLM:
    """A name for annotations."""


class SamplingParams:
    """Keeps what it is given."""

    def __init__(self, **fields: object) -> None:
        """`fields` are those of the server's API."""
        self.__dict__.update(fields)
