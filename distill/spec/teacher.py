"""A teacher: a model on an engine under a strategy, checked and digested, opened only to generate.

Any strategy of the toolkit is a teacher: `direct` draws once, `majority`, `best_of_n` or `tree` search first. The
digest covers everything that may change an answer: weights, tokenizer, template and generation settings, engine and its
options (a server's address among them), strategy, scorer, their parameters and files. It leaves out what only affects
the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distill.spec.spec import JobSpec, TeacherSpec
from ttc.cli.rehearsal import refuse_early
from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.recipes import dump, parse_spec
from ttc.config.registry import ENGINES, SCORERS
from ttc.core import Engine, Sampling, Scorer, Strategy
from ttc.engines.shared.wrapped import with_markers
from ttc.errors import ConfigError
from ttc.identity.digests import digest_of, model_digests, named, part_contents, strategy_contents
from ttc.session.thinking import Thinking


def name_of(data: Any) -> str:
    """The first 16 hex digits of the digest of JSON data, or of an iterator of it."""
    return digest_of(data)[:16]


_SCHEDULE = frozenset({
    "threads", "processes", "max_batch", "kv_bytes", "max_concurrency", "max_num_seqs",
    "kv_cache_bytes", "max_requests", "gpu_memory_utilization", "mem_fraction_static", "max_total_tokens",
    "max_in_flight", "attempts", "max_attempts", "retry_s", "connect_s", "idle_s", "answer_s", "api_key_env",
    "admin_key_env",
})  # fmt: skip
"""Options of engines that affect the schedule but no results."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher that was named and checked, but not yet loaded.

    `folder` is its model folder, None where it has none (a server). `digests` are those of the folder's roles,
    `contents` those of all that it is made of, by what people call them.
    """

    name: str
    engine: PartChoice
    strategy: StrategyChoice
    scorer: PartChoice | None
    folder: Path | None
    digests: Mapping[str, str]
    contents: Mapping[str, str]
    domains: tuple[str, ...] = ()
    thinking: Thinking = field(default_factory=Thinking)

    @property
    def digest(self) -> str:
        """A digest of everything that may change an answer; 16 hex digits."""
        what = {
            "model": self.engine.model if self.folder is None else None,
            "contents": list(self.contents.values()),
            "engine": self.engine.name,
            "options": {k: dump(v) for k, v in self.engine.params.items() if k not in _SCHEDULE},
            "strategy": self.strategy.name,
            "params": self.strategy.all_params(),
            "scorer": None if self.scorer is None else self.scorer.name,
            "scorer_params": dump(self.scorer.params) if self.scorer else {},
            **({} if self.thinking.open is None else {"markers": [self.thinking.open, self.thinking.close]}),
        }
        return name_of(what)

    @property
    def is_searching(self) -> bool:
        """Whether an answer costs more than one draw."""
        return self.strategy.name != "direct"

    def teaches(self, domain: str) -> bool:
        """Whether it answers the problems of a domain: one of its own, or any where it has none."""
        return not self.domains or domain in self.domains

    def open(self) -> tuple[Engine, Strategy]:
        """Load the engine and bind the strategy; the caller closes the engine."""
        engine = with_markers(self.engine.create_engine(), self.thinking)
        scorer: Scorer | None = self.scorer.create_scorer(engine) if self.scorer else None
        return engine, self.strategy.bind(scorer)


def resolve_teacher(written: TeacherSpec, spec: JobSpec) -> Teacher:
    """Check a teacher of a spec: names, parameters, and that its folder is there. Loads nothing.

    Raises:
        ConfigError: an unknown engine, strategy, scorer or parameter, or a folder that is no model.
    """
    model = spec.student if written.model is None else written.model
    options = {**_exact(written.engine, spec), **written.options}
    engine = PartChoice.of(ENGINES, written.engine, options, model)
    name, inline = parse_spec(written.strategy)
    strategy = StrategyChoice.of(name, inline)
    scorer = _scorer(written)
    if strategy.needs_scorer and scorer is None:
        raise ConfigError(f'teacher {written.name}: strategy {name} needs a scorer: scorer = "prm:FOLDER"')
    if scorer is not None and not strategy.takes_scorer:
        raise ConfigError(f"teacher {written.name}: strategy {name} takes no scorer, so {scorer.label} has no effect")
    try:
        refuse_early([strategy], has_scorer=scorer is not None, sampling=Sampling(), thinking=spec.thinking)
    except ConfigError as exc:
        raise ConfigError(f"teacher {written.name}: {exc}") from exc
    folder = Path(model).expanduser()
    here = (folder / "config.json").is_file()
    if written.engine == "embedded" and not here:
        raise ConfigError(f"teacher {written.name}: {model} is not a model folder: it has no config.json")
    digests = model_digests(folder) if here else {}
    parts = {
        **part_contents(engine),
        **strategy_contents(strategy),
        **({} if scorer is None else part_contents(scorer)),
    }
    # the folder's roles are named without its path, so a moved teacher stays the same
    own = named(digests, after=f" of model {model}")
    beside = {name: digest for name, digest in parts.items() if name not in own}
    contents = named({**digests, **beside}, after=f" of teacher {written.name}")
    place = folder if here else None
    return Teacher(written.name, engine, strategy, scorer, place, digests, contents, written.domains, spec.thinking)


def _exact(engine: str, spec: JobSpec) -> Mapping[str, Any]:
    """The options that make the ledger exact: fp32 and, on a CPU, the embedded engine's batch-invariant mode."""
    if engine != "embedded":
        return {}
    return {"dtype": "float32", "device": spec.device, "threads": spec.threads, "batch_invariant": "auto"}


def _scorer(written: TeacherSpec) -> PartChoice | None:
    if written.scorer is not None:
        return PartChoice.of(SCORERS, written.scorer, written.scorer_options)
    if written.scorer_options:
        raise ConfigError(f"teacher {written.name}: scorer_options without a scorer")
    return None
