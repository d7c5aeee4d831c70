"""search-and-learn's loops, unchanged, over the server: `Served` replaces `vllm.LLM`, which they call.

Its system prompt and its Llama template are replaced by those of the server's model. Beam search processes one problem
at a time, as its configuration requires; DVTS processes `search_batch_size` problems in lock-step.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.peers.clients import kit

ROOM = 1024
"""Its DVTS asks for 2,048 tokens a step, which the server refuses beside a prompt."""


class Served:
    """`vllm.LLM` as the loops use it: one request with all prompts of a step."""

    def __init__(self, job: dict[str, Any]) -> None:
        from transformers import AutoTokenizer

        self._job, self._tokenizer = job, AutoTokenizer.from_pretrained(job["folder"])
        if job["template"]:
            self._tokenizer.chat_template = Path(job["template"]).read_text(encoding="utf-8")

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._tokenizer

    def generate(self, prompts: Sequence[str], sampling_params: Any, **_: Any) -> list[Any]:
        """A text, its ids and its stop for each prompt."""
        body = {**vars(sampling_params), "model": self._job["model"], "prompt": list(prompts), "return_token_ids": True}
        body |= {"max_tokens": min(body["max_tokens"], ROOM), "add_special_tokens": False}
        request = urllib.request.Request(
            self._job["url"] + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        choices = json.load(urllib.request.urlopen(request, timeout=1200))["choices"]
        return [SimpleNamespace(outputs=[SimpleNamespace(**choice)]) for choice in choices]


def reward_model(job: dict[str, Any], tally: kit.Tally) -> Any:
    """The job's scorer as search-and-learn's: scores of steps for every text of every question."""
    if job["scorer"] == "constant":
        return SimpleNamespace(score=lambda questions, texts: [[[0.5] for _ in row] for row in texts])
    from ttc.config.registry import SCORERS
    from ttc.core import Message
    from ttc.engines.shared.text import Text

    # user's code
    class RewardModel:
        def __init__(self) -> None:
            self.scorer, self.text, self.calls = SCORERS.load("prm")(), Text(Path(job["folder"])), 0

        def score(self, questions: Sequence[str], texts: Sequence[Sequence[str]]) -> list[list[list[float]]]:
            prompts, self.calls = [], self.calls + 1
            for i, (question, row) in enumerate(zip(questions, texts, strict=True)):
                root = self.text.render([Message("user", question)], None)
                for j, text in enumerate(row):
                    ids = root.token_ids + self.text.encode(text)
                    place = {"path": (i, j), "problem_id": f"call {self.calls}"}
                    more = {"text": root.text + text, "token_ids": ids, "logprobs": None, **place}
                    prompts.append(dataclasses.replace(root, **more))
            scores = iter(asyncio.run(self.scorer.score(prompts, lambda usage: tally.add(scored=usage.scored))))
            self.scorer.release(f"call {self.calls}")
            return [
                [list(score.steps or (score.value or 0.0,)) for _, score in zip(row, scores, strict=False)]
                for row in texts
            ]

    # end of user's code

    return RewardModel()


def prepare(job: dict[str, Any], tally: kit.Tally) -> Callable[[], list[str]]:
    """Configure the loops."""
    sys.path.insert(0, str(Path(job["sources"]) / "src"))
    from sal import search
    from sal.config import Config

    logging.disable(logging.WARNING)
    # user's code
    approach = {"beam": "beam_search"}.get(job["algorithm"], job["algorithm"])
    batch = 1 if approach == "beam_search" else job["concurrency"]
    config = Config(
        approach=approach, n=job["n"], temperature=job["temperature"], max_tokens=job["max_tokens"], system_prompt="",
        custom_chat_template=None, search_batch_size=batch,
    )  # fmt: skip
    llm, prm, loop = Served(job), reward_model(job, tally), getattr(search, approach)
    # end of user's code
    questions = [row["question"] for row in job["problems"]]

    def run() -> list[str]:
        texts: list[str] = []
        for at in range(0, len(questions), batch):
            part = questions[at : at + batch]
            try:
                results = loop({"problem": part}, config, llm, prm)
            except Exception as exc:  # whatever a system raises is a failed problem in its row
                texts += [tally.fail(exc) for _ in part]
                continue
            texts += results["pred"]
            tally.add(generated=sum(sum(row) if isinstance(row, list) else 0 for row in results["completion_tokens"]))
        return texts

    return run


if __name__ == "__main__":
    kit.main(prepare)
