"""The mistakes of a first plug-in, one function each: what `ttc` must tell as the user's own, with file and line."""

from __future__ import annotations

from ttc.core import Score


async def good(problem, session, *, n: int = 1):
    """Draw once."""
    prompt = session.render()
    candidates = [session.candidate(prompt, one) for one in await session.generate(prompt, n)]
    return session.answer(candidates[0], candidates)


async def raises(problem, session):
    raise RuntimeError("boom")


async def returns_none(problem, session):
    return None


async def returns_text(problem, session):
    return "42"


async def forgets_await(problem, session):
    return good(problem, session)


async def raises_after_drawing(problem, session):
    completions = await session.generate(session.render(), 1)
    return completions[1]


async def raises_at_once_and_in_parts(problem, session):
    from ttc.concurrent import gather

    return await gather(_part(at) for at in range(2))


async def _part(at):
    return [][at]


def not_async(problem, session):
    return None


async def no_arguments():
    return None


async def one_too_many(problem, session, extra):
    return None


def yields(problem, session):
    yield None


a_number = 7


class Constant:
    """The same score for everything."""

    def __init__(self, value):
        self.value = value

    async def score(self, prompts, on_usage):
        return [Score(self.value) for _ in prompts]

    def release(self, problem_id):
        pass


class Short(Constant):
    """One score too few."""

    async def score(self, prompts, on_usage):
        return [Score(0.5) for _ in prompts][1:]


class Broken(Constant):
    """Divides by zero."""

    async def score(self, prompts, on_usage):
        return [Score(1 / self.value) for _ in prompts]


class Unreleased:
    """Has no release, and a score that is not async."""

    def score(self, prompts, on_usage):
        return [Score(0.5) for _ in prompts]


def nan(model=None):
    return Constant(float("nan"))


def inf(model=None):
    return Constant(float("inf"))


def text(model=None):
    return Constant("high")


def steps(model=None, *, value: float = 0.5):
    return Constant(value)


def short(model=None):
    return Short(0)


def broken(model=None):
    return Broken(0)


def unreleased(model=None):
    return Unreleased()


def raising(model=None):
    raise OSError("no such model")


def nothing(model=None):
    pass


def plain(text):
    return 1.0


async def asynchronous(model=None):
    return Constant(0.5)


class Half:
    """A policy without `allocate`."""

    def subtrees(self, n):
        return (n,)


class Greedy(Half):
    """A policy that raises."""

    def allocate(self, scores, width):
        return scores[99]


def half():
    return Half()


def greedy():
    return Greedy()
