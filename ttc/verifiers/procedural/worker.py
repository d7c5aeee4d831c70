"""The worker that holds reasoning-gym: `python -m ttc.verifiers.procedural.worker MEMORY_MB`.

It makes problems and scores answers; the pool fixes its hash seed, on which some tasks depend, and ends it at its
limits. While a scorer of the package sees an answer, an audit hook refuses to run code, start processes, connect or
write files: should a scorer turn out to evaluate answers after all, that is the verdict `error`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from ttc.verifiers.procedural.methods import REFUSED, SCORERS, THEIRS, needs_worker
from ttc.verifiers.workers.worker import serve

SIZE = 10_000
"""Problems of one dataset. Some tasks depend on it, so it is the same for every request."""
_FORBIDDEN = ("exec", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.remove", "os.rename", "os.kill")
_FORBIDDEN_GROUPS = ("subprocess.", "socket.", "ctypes.", "shutil.")


class Guard:
    """Refuses dangerous events while it is armed; `caught` names the first."""

    def __init__(self) -> None:
        self.armed, self.caught = False, ""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        writes = event == "open" and isinstance(args[1], str) and any(mode in args[1] for mode in "wax+")
        if writes or event in _FORBIDDEN or event.startswith(_FORBIDDEN_GROUPS):
            self.caught = self.caught or event
            raise RuntimeError(f"a scorer may not cause {event}")


class Gym:
    """Problems by task, seed, configuration and index, and the scores of answers to them."""

    def __init__(self) -> None:
        from reasoning_gym.factory import DATASETS

        self._known = DATASETS
        self._guard = Guard()
        self._dataset = functools.lru_cache(maxsize=8)(self._make)
        self._entry = functools.lru_cache(maxsize=512)(self._draw)

    def generate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The problems request["first"] to first + count - 1, each with its answer and the digest of its question."""
        task, seed, config = request["task"], request["seed"], json.dumps(request["config"], sort_keys=True)
        if task not in self._known or task in REFUSED:
            return {"unknown": sorted(set(self._known) - set(REFUSED))}
        try:
            self._dataset(task, seed, config)
        except (AssertionError, TypeError, ValueError) as exc:
            return {"bad_config": f"{type(exc).__name__}: {exc}"[:300]}
        entries = [self._entry(task, seed, config, request["first"] + i) for i in range(request["count"])]
        return {
            "problems": [
                {"question": entry["question"], "answer": entry["answer"], "digest": digest(entry["question"])}
                for entry in entries
            ]
        }

    def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Whether request["answer"] is right; `drifted` when this version makes another problem of that address."""
        task, seed, config = request["task"], request["seed"], json.dumps(request["config"], sort_keys=True)
        entry = self._entry(task, seed, config, request["index"])
        if digest(entry["question"]) != request["digest"]:
            return {"drifted": True}
        return self._judge(task, seed, config, entry, request["answer"])

    def _judge(self, task: str, seed: int, config: str, entry: Any, answer: str) -> dict[str, Any]:
        if task in SCORERS:
            return {"right": SCORERS[task](answer, entry["metadata"], entry["answer"])}
        if not THEIRS[task].fullmatch(answer.strip()):
            return {"right": False, "reason": "not in the form of an answer"}
        self._guard.armed, self._guard.caught = True, ""
        try:
            score = float(self._dataset(task, seed, config).score_answer(answer, entry))
        except Exception as exc:
            # The package's scorers fail in many ways on odd text; the text is then no answer to the question.
            score, failed = 0.0, f"{type(exc).__name__} in its scorer"
        else:
            failed = ""
        finally:
            self._guard.armed = False
        if self._guard.caught:
            return {"status": "error", "reason": f"the scorer of {task} tried to cause {self._guard.caught}"}
        return {"right": score >= 1.0, "reason": failed}

    def _make(self, task: str, seed: int, config: str) -> Any:
        import reasoning_gym

        return reasoning_gym.create_dataset(task, seed=seed, size=SIZE, **json.loads(config))

    def _draw(self, task: str, seed: int, config: str, index: int) -> Any:
        """One problem; its own answer must be right, which also loads whatever its scorer needs."""
        entry = self._dataset(task, seed, config)[index]
        if not needs_worker(task):
            return entry
        if task in THEIRS:
            self._dataset(task, seed, config).score_answer(entry["answer"], entry)
        if not self._judge(task, seed, config, entry, entry["answer"]).get("right"):
            raise ValueError(f"{task}: the stored answer of problem {index} does not verify against itself")
        return entry


def digest(question: str) -> str:
    """What tells a question from another one."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]


if __name__ == "__main__":
    gym = Gym()
    serve({"generate": gym.generate, "score": gym.score}, int(sys.argv[1]))
