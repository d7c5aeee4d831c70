"""What opens a job's teachers in tests: ones that die as by a kill, and none; and a log that says nothing."""

from distill.generation.generate import open_local


def quiet(text):
    """Say nothing."""


def never(teacher, concurrency):
    """Open a teacher that nothing may be asked of."""
    raise AssertionError("opened a teacher")


class DyingTeacher:
    """Opens teachers whose generators end after so many answers, as a kill would."""

    def __init__(self, after, concurrency=4):
        self._left, self._concurrency = after, concurrency

    def __call__(self, teacher, concurrency):
        """The generator of a teacher."""
        inner, opener = open_local(teacher, self._concurrency), self

        class Torn:
            async def answer(self, units):
                async for outcome in inner.answer(units):
                    yield outcome
                    opener._left -= 1
                    if opener._left == 0:
                        opener.end()

            async def close(self):
                await inner.close()

        return Torn()

    def end(self):
        """What happens then."""
        raise KeyboardInterrupt
