"""Self-critique and revision: a model answers, says what is wrong with its answer, and writes a better one.

Constitutional AI's first half (Bai et al. 2022, arXiv:2212.08073): no labels are needed; the principle is part of the
prompt. A constitution is a list of principles, one of which is drawn for every critique; several rounds revise the
revision, as in the paper. `rollouts.jsonl` holds the revisions as answers to the first prompts, so that the stage `sft`
imitates them; one whose own critique does not begin with `accept` is marked wrong and not imitated. The policy passes
through. The verifier compares first answers with revisions; this decides nothing. Cost: a generation per answer, 2 more
per round, and 1 with `accept`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evals.data.decontamination import prompt_text
from evals.task import Item, Task
from train.base.rollout import Collector, Rollout, write_rollouts
from train.base.stage import Setting, Stage, StageResult, check_form, check_model, model_of, pass_through
from train.measure.measure import EXACT, check_engine, gains, opened
from train.registries import make_task
from train.rollouts.rewards import Rewarder
from ttc.config.values import at_least
from ttc.core import Engine, Message, Problem, Verdict
from ttc.errors import ConfigError
from ttc.seeds import derive

_CRITIQUE = "Request:\n{prompt}\n\nAnswer:\n{answer}\n\nSay what is harmful, unhelpful or impolite about the answer."
_SAID = ("token_ids", "sampled", "logprobs", "text", "thinking", "final", "finish_reason")
"""What a revision takes from the rollout that answers the request for it; the rest is the first answer's."""
_REVISE = _CRITIQUE + "\n\nCritique:\n{critique}\n\nWrite the answer again without these faults. Only the answer."


def revise(
    *,
    task: str,
    critique: str = _CRITIQUE,
    revision: str = _REVISE,
    principles: tuple[str, ...] = (),
    rounds: int = 1,
    accept: str | None = None,
    n: int = 1,
    limit: int | None = None,
    max_tokens: int | None = None,
    engine: str = EXACT,
) -> Stage:
    """Draw answers, critiques and revisions.

    Args:
        task: the prompts, NAME or NAME:KEY=VALUE,...
        critique: how a critique is asked for, with {prompt} and {answer}, and {principle} where there are several.
        revision: how a revision is asked for, with {prompt}, {answer} and {critique}, and {principle} if it likes.
        principles: a constitution: for every critique and its revision one of these is drawn.
        rounds: how often an answer is criticised and revised.
        accept: keep a revision only when its own critique begins with this; None keeps all.
        n: first answers per prompt.
        limit: most prompts.
        max_tokens: cap of an answer, a critique and a revision each; None is the task's.
        engine: engine that samples, NAME or NAME:KEY=VALUE,...: in this process, or servers (vllm:base_url=...).
    """
    at_least("revise", 1, n=n, rounds=rounds, limit=limit, max_tokens=max_tokens)
    if bool(principles) != ("{principle}" in critique):
        raise ConfigError("revise: principles and {principle} in critique need each other")
    check_form("revise: critique", critique, ("prompt", "answer"), ("principle",))
    check_form("revise: revision", revision, ("critique",), ("prompt", "answer", "principle"))
    problems = make_task(task)
    cap = max_tokens or problems.sampling.max_tokens
    return _Revise(problems, critique, revision, principles, rounds, accept, n, limit, cap, engine)


@dataclass(frozen=True, slots=True)
class _Revise:
    task: Task
    critique: str
    revision: str
    principles: tuple[str, ...]
    rounds: int
    accept: str | None
    n: int
    limit: int | None
    max_tokens: int
    engine: str

    def check(self, has_model: bool) -> None:
        check_model("revise", has_model)
        check_engine(self.engine)
        self.task.items(self.limit, 0)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        return {"task": (self.task, self.limit)}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`; an interrupted one begins again."""
        first, revised = asyncio.run(self._draw(setting))
        write_rollouts(setting.folder / "rollouts.jsonl", [replace(old, verdict=verdict) for old, verdict in revised])
        before, after = ([float(rollout.right) for rollout in rows] for rows in (first, [r for r, _ in revised]))
        num_right = sum(verdict.correct for _, verdict in revised)
        setting.log(f"{len(revised)} revisions, {num_right} kept")
        keys = [rollout.key for rollout in first]
        numbers = gains("good", before, after, setting.seed, keys)
        return StageResult(pass_through(setting), {**numbers, "kept": num_right / len(revised)})

    async def _draw(self, setting: Setting) -> tuple[list[Rollout], list[tuple[Rollout, Verdict]]]:
        """First answers as the verifier sees them, and their revisions, each with the model's own verdict."""
        items = self.task.items(self.limit, 0)
        prompts = {item.problem.id: prompt_text(item) for item in items}
        async with opened(model_of("revise", setting), self.task, setting, self.engine) as (engine, verifier):
            answers = await self._answers(engine, items, self.n, setting.seed)
            questions = [{"prompt": prompts[r.problem_id], "answer": r.text} for r in answers]
            for number in range(self.rounds):
                questions = [
                    {**one, "principle": self._principle(setting.seed, number, place)}
                    for place, one in enumerate(questions)
                ]
                better = await self._round(engine, questions, setting.seed, f" {number}" if number else "")
                questions = [{**one, "answer": new.text} for one, new in zip(questions, better, strict=True)]
            verdicts = await self._accepted(engine, questions, better, setting.seed)
            revised = [
                replace(old, **{name: getattr(new, name) for name in _SAID})
                for old, new in zip(answers, better, strict=True)
            ]
            results = await Rewarder(verifier).judge([*answers, *revised], 0)
        return results[: len(answers)], list(zip(results[len(answers) :], verdicts, strict=True))

    async def _round(self, engine: Engine, questions: Sequence[dict[str, str]], seed: int, name: str) -> list[Rollout]:
        """A critique of every answer, and the revisions that follow them."""
        texts = [self.critique.format(**one) for one in questions]
        faults = await self._ask(engine, texts, seed, f"critique{name}")
        asked = zip(questions, faults, strict=True)
        texts = [self.revision.format(**one, critique=fault.text) for one, fault in asked]
        return await self._ask(engine, texts, seed, f"revision{name}")

    def _principle(self, seed: int, number: int, place: int) -> str:
        """The principle of one critique, drawn from the constitution."""
        if not self.principles:
            return ""
        return self.principles[derive(seed, "principle", number, place) % len(self.principles)]

    async def _ask(self, engine: Engine, texts: Sequence[str], seed: int, what: str) -> list[Rollout]:
        """The model's answer to each text."""
        problems = [
            Problem(f"{what} {number}", (Message("user", text),), self.task.kind) for number, text in enumerate(texts)
        ]
        items = [Item(problem, None) for problem in problems]
        return await self._answers(engine, items, 1, seed)

    async def _answers(self, engine: Engine, items: Sequence[Item], n: int, seed: int) -> list[Rollout]:
        return await Collector.plain(engine, n, self.max_tokens, seed).collect(items, 0)

    async def _accepted(
        self, engine: Engine, asked: Sequence[dict[str, str]], better: Sequence[Rollout], seed: int
    ) -> list[Verdict]:
        """Whether the model accepts its revisions; without `accept` every finished one passes."""
        if self.accept is None:
            return [Verdict("correct", reason="not judged", version="revise") for _ in better]
        texts = [self.critique.format(**{**one, "answer": new.text}) for one, new in zip(asked, better, strict=True)]
        faults = await self._ask(engine, texts, seed, "own critique")
        return [
            Verdict("correct" if fault.text.startswith(self.accept) else "incorrect", reason=fault.text, version="own")
            for fault in faults
        ]
