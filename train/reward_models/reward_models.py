"""Learnt rewards: models with one linear output, ensembles of them, and models that criticise.

A reward model is a folder of the sequence-classifier form, which the scorer `orm` reads too. Its reward stands beside a
verifier or in its place (InstructGPT, Ouyang et al. 2022, arXiv:2203.02155). The mean of an ensemble is less noisy; the
worst case is harder to fool, since a flaw must be shared by all members (Coste et al. 2024, arXiv:2310.02743); how much
they disagree is logged as `reward_model_spread`, which grows where the policy leaves what they were trained on. A
reward model with the policy's tokenizer reads the ids that were sampled; one with a tokenizer of its own reads the
problem in its own chat template and the answer as text, without its thinking, in its own ids. A turn is read with all
that the template writes behind it: so do `orm`, servers and TRL, which render conversations, and where it is read
decides what a head gives. Positions come from lengths, never from a padding id. Cost: a forward pass per member and
rollout.

A generative verifier writes a critique of every answer, and the reward is how many approve. Zhang et al. 2024,
"Generative Verifiers" (arXiv:2408.15240), the form that reasons before its verdict (GenRM-CoT): a language model writes
several critiques, each ends in a verdict, and the score is the share of verdicts that approve; critiques as rewards
also in Bai et al. 2022 (arXiv:2212.08073). The judge may be any model: a stage of this run, the base itself, a folder.
It sees problem and answer, neither thinking nor key. A critique that was cut has no vote, and a rollout without a vote
no reward. What was written about it stays in the rollout. Cost: `critiques` generations an answer, of equal answers to
one problem once; the judge stays in memory. Left out: training the judge (the stages `sft` and `verifier_lm` do),
averaging its probability of the verdict.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

import torch

from evals.task import Item
from train.base.models import (
    load_tokenizer,
    loaded,
    save_tokenizer,
    silenced,
    speed_attention,
    tail_of_turn,
    turn_tokenizer,
    without_dropout,
    write_weights,
)
from train.base.rollout import Collector, Rollout
from train.base.stage import Setting, check_form
from train.base.weights import merged_state, save_adapter
from train.examples.examples import Example
from train.measure.measure import open_engine
from train.update.batch import micro_batches, pad, pass_tokens
from ttc.config.values import above, at_least, counted
from ttc.core import Message, Problem
from ttc.durable import replaced_folder
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.seeds import derive

How = Literal["mean", "worst"]
_ROWS = 32


def new_reward_model(policy: Path, seed: int, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """A reward model whose body is the policy's, in `dtype`, and whose head is random from `seed`, in fp32."""
    return new_head(CLASSIFIER, policy, 1, seed, device, dtype)


def new_head(kind: str, policy: Path, labels: int, seed: int, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """The policy's body with a random fp32 head of so many labels, of a `kind` of transformers; without dropout."""
    check_kind_of_head(kind, policy)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = loaded(kind, policy, new_head=True, num_labels=labels, dtype=dtype)
    _check_called_score(kind, model, policy)
    without_dropout(model)
    model.score.float()
    speed_attention(model, device)
    return model.to(device)


def _check_called_score(kind: str, model: Any, folder: Path) -> None:
    """Raise ConfigError for a head that is no plain one on the last hidden state."""
    if not hasattr(model, "score"):
        raise _without_head(kind, folder, f"the head of {type(model).__name__} is not called score, as scorers read it")


def save_scorer(model: Any, tokenizer: Any, folder: Path, task: str) -> None:
    """Write a model that scores in fp32, adapters merged; these and the head beside it, as peft's `task`."""
    with replaced_folder(folder) as fresh:
        write_weights(model, merged_state(model, "cpu"), fresh, torch.float32)
        save_tokenizer(tokenizer, fresh)
    save_adapter(model, folder, task=task)


CLASSIFIER = "AutoModelForSequenceClassification"
STEP_LABELS = "AutoModelForTokenClassification"
_INSTEAD = {STEP_LABELS: 'form = "token", with good and bad, needs none'}
"""What does without a kind of head."""


def check_kind_of_head(kind: str, policy: Path) -> None:
    """Raise ConfigError where transformers has no head of this `kind` for the family of a model folder."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(policy)
    if type(config) not in getattr(transformers, kind)._model_mapping:
        head = kind.removeprefix("AutoModelFor")
        reason = f"transformers has no head for {head} on models of the family {config.model_type}"
        raise _without_head(kind, policy, reason)


def _without_head(kind: str, policy: Path, reason: str) -> ConfigError:
    advice = ["start from a model of another family", *([_INSTEAD[kind]] if kind in _INSTEAD else [])]
    return ConfigError(f"{policy}: {reason}; {', or: '.join(advice)}")


def load_reward_model(folder: Path, device: str) -> Any:
    """Load a folder; raises ConfigError when it is no reward model."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    names = AutoConfig.from_pretrained(folder).architectures or ()
    if not any(name.endswith("ForSequenceClassification") for name in names):
        raise ConfigError(f"{folder} is not a reward model: it is {', '.join(names) or 'unnamed'}")
    model = loaded(CLASSIFIER, folder, dtype=torch.float32)
    _check_called_score(CLASSIFIER, model, folder)
    if model.config.num_labels != 1:
        number = counted(model.config.num_labels, "label")
        raise ConfigError(f"{folder}: its head gives {number}, and a reward is one number: take a model with one label")
    return silenced(model, folder).to(device).eval()  # a critic goes on training its body


def last_hidden(model: Any, rows: Sequence[Sequence[int]], pad_id: int) -> list[torch.Tensor]:
    """Last hidden states of every row, in order: (L, H) each, L its own number of ids.

    Rows of like length go through together, as in a batch of training, so that little is padded; where a gradient is
    wanted, all parts are kept for it, and else a pass takes no more than one of training.

    Args:
        model: a model of transformers with any head; its body is used alone.
        rows: token ids, each row from the start of its text.
        pad_id: fills rows up on the right.
    """
    device = next(model.parameters()).device
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(int(lengths.max()), device=device)[None] < lengths[:, None]
    states: dict[int, torch.Tensor] = {}
    most = sys.maxsize if torch.is_grad_enabled() else pass_tokens(None, device)
    for part in micro_batches(mask, torch.arange(len(rows)), most):
        numbers = part.tolist()
        ids = pad([rows[number] for number in numbers], pad_id).to(device)
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        states |= {number: own[: len(rows[number])] for number, own in zip(numbers, hidden, strict=True)}
    return [states[number] for number in range(len(rows))]


def rewards_of(model: Any, examples: Sequence[Example], pad_id: int) -> torch.Tensor:
    """The reward of each prompt with its completion, read at its last token: (R,), with the gradient."""
    rows = [(*example.prompt_ids, *example.token_ids) for example in examples]
    last = torch.stack([states[-1] for states in last_hidden(model, rows, pad_id)])
    scores: torch.Tensor = model.score(last.to(model.score.weight.dtype))
    return scores[:, 0].float()


class RewardEnsemble:
    """One or more reward models that speak with one voice."""

    def __init__(self, models: Sequence[Any], pad_id: int, how: How = "mean") -> None:
        """`how` is mean, or worst for the lowest reward of any member; raises ConfigError without a member."""
        if not models:
            raise ConfigError("a reward ensemble needs at least one model")
        self._models, self._pad_id, self._how = tuple(models), pad_id, how

    def score(self, examples: Sequence[Example]) -> torch.Tensor:
        """Rewards (R,); the scale is that of the members' training and has no zero of its own."""
        return self.joined(self.members(examples))

    def joined(self, members: torch.Tensor) -> torch.Tensor:
        """One voice of the members' rewards: (members, R) -> (R,)."""
        return joined(members, self._how)

    @torch.no_grad()
    def members(self, examples: Sequence[Example]) -> torch.Tensor:
        """Rewards by each member: (members, R)."""
        columns = []
        for model in self._models:
            model.eval()
            parts = [examples[i : i + _ROWS] for i in range(0, len(examples), _ROWS)]
            columns.append(torch.cat([rewards_of(model, part, self._pad_id) for part in parts]))
        return torch.stack(columns)


def joined(members: torch.Tensor, how: How) -> torch.Tensor:
    """One voice of the rewards by several members: (members, R) -> (R,)."""
    return members.mean(0) if how == "mean" else members.amin(0)


def whole_turns(folder: Path) -> Callable[[Example], Example]:
    """Completes an example that ends its turn by what the template of `folder` writes behind that, if anything."""
    tail = tail_of_turn(load_tokenizer(folder))

    def whole(example: Example) -> Example:
        ends = example.token_ids[-1:] == tail[:1]
        return replace(example, token_ids=(*example.token_ids, *tail[1:])) if ends else example

    return whole


Read: TypeAlias = Callable[[Rollout], Example]
"""What a reward model reads of a rollout, in its own ids."""


class LearntReward:
    """Scores rollouts by an ensemble; see `train.rollouts.rewards.Learnt`."""

    total = "reward_model"

    def __init__(self, members: Sequence[tuple[RewardEnsemble, Read]], weight: float) -> None:
        """Join `members`, ensembles of models that read alike, by the first one's rule."""
        self._members, self._weight = tuple(members), weight

    def __call__(self, rollouts: Sequence[Rollout]) -> Mapping[str, Sequence[float]]:
        """Weighted rewards, and the members' spread where there are several."""
        rewards = [ensemble.members([read(rollout) for rollout in rollouts]) for ensemble, read in self._members]
        members = torch.cat(rewards)  # (members, R)
        scores = {self.total: (self._weight * self._members[0][0].joined(members)).tolist()}
        if len(members) > 1:
            scores["reward_model_spread"] = members.std(0).tolist()
        return scores


def as_sampled(rollout: Rollout) -> Example:
    """The policy's own ids."""
    return Example(rollout.key, rollout.prompt_ids, rollout.token_ids)


def in_own_words(folder: Path, messages: Mapping[str, Sequence[Message]]) -> Read:
    """Reads a rollout by the tokenizer and template of `folder`; `messages` are what problems say, by id."""
    text, stop = Text(folder), int(turn_tokenizer(folder).eos_token_id)

    def read(rollout: Rollout) -> Example:
        prompt = text.render(messages[rollout.problem_id], None).token_ids or ()
        end = () if rollout.truncated else (stop,)
        return Example(rollout.key, prompt, (*text.encode_turn(rollout.text), *end))

    return read


@dataclass(frozen=True, slots=True)
class RewardSource:
    """Which reward models, how they are joined, and their weight."""

    names: tuple[str, ...]
    how: How
    weight: float

    def __post_init__(self) -> None:
        """Refuse no name, or a weight that adds nothing or rewards what the models like least."""
        if not self.names:
            raise ConfigError("reward_model: needs a name")
        above("reward_model", 0, reward_weight=self.weight)

    def load(
        self, setting: Setting, source: Path, messages: Mapping[str, Sequence[Message]] | None = None
    ) -> LearntReward:
        """Load the models; `source` is the policy's folder, `messages` what problems say, by id.

        Raises:
            ConfigError: a name that is no reward model, or one with another tokenizer where messages are not known.
        """
        folders = [folder for name in self.names for folder in reward_folders(name, setting)]
        if messages is None:
            for folder in folders:
                same_tokenizer("reward_model", folder, source)
        return LearntReward([self._member(folder, source, messages or {}, setting) for folder in folders], self.weight)

    def _member(
        self, folder: Path, source: Path, messages: Mapping[str, Sequence[Message]], setting: Setting
    ) -> tuple[RewardEnsemble, Read]:
        model, pad_id = load_reward_model(folder, setting.device), int(load_tokenizer(folder).pad_token_id or 0)
        read = as_sampled if reads_alike(folder, source) else in_own_words(folder, messages)
        whole = whole_turns(folder)
        return RewardEnsemble([model], pad_id, self.how), lambda rollout: whole(read(rollout))


def reward_folders(name: str, setting: Setting) -> list[Path]:
    """The reward models that `name` means: all of a stage of this run, such as 2-reward_model, or a folder.

    Raises:
        ConfigError: there is none.
    """
    place = beside(name, setting)
    if (place / "config.json").is_file():
        return [place]
    members = [path for path in place.glob("reward_model*") if (path / "config.json").is_file()]
    if not members:
        raise ConfigError(f"reward_model {name!r}: {place} has none; name a stage of that kind, or a folder")
    return sorted(members, key=lambda path: int(path.name.rpartition("-")[2]) if "-" in path.name else 0)


def model_folder(field: str, name: str, setting: Setting) -> Path:
    """The model that `name` means: the one a stage of this run made, such as 1-sft, or a folder."""
    place = beside(name, setting)
    folder = place if (place / "config.json").is_file() else place / "model"
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{field} {name!r}: {place} holds no model; name a stage of this run, or a model folder")
    return folder


def same_tokenizer(field: str, folder: Path, source: Path) -> None:
    """Raise ConfigError unless the model in `folder` reads the ids of the model in `source`."""
    if not reads_alike(folder, source):
        raise ConfigError(f"{field} {folder}: its tokenizer is not the one of {source}; both must read the same ids")


def reads_alike(folder: Path, source: Path) -> bool:
    """Whether two model folders have one vocabulary."""
    same: bool = load_tokenizer(folder).get_vocab() == load_tokenizer(source).get_vocab()
    return same


def beside(name: str, setting: Setting) -> Path:
    """The folder of the stage of this run that is called `name`, or a folder of that name."""
    stage = setting.folder.parent / name
    return stage if stage.is_dir() else Path(name).expanduser()


ASK = """Request:
{prompt}

Answer:
{answer}

Criticise the answer step by step. End with one line: "Verdict: right" or "Verdict: wrong"."""


APPROVES = r"Verdict: right\W*$"


@dataclass(frozen=True, slots=True)
class CritiqueSource:
    """Which model criticises, how it is asked, what approves, how many critiques of how many tokens, their weight."""

    name: str
    ask: str
    approves: str
    critiques: int
    max_tokens: int
    weight: float

    def __post_init__(self) -> None:
        """Refuse a question without its parts, a pattern that is none, and a weight that adds nothing or turns it."""
        at_least("verifier_lm", 1, critiques=self.critiques, critique_tokens=self.max_tokens)
        check_form("verifier_lm: critique_ask", self.ask, ("prompt", "answer"))
        try:
            re.compile(self.approves)
        except re.error as exc:
            raise ConfigError(f"verifier_lm: critique_approves is not a valid pattern: {exc}") from exc
        above("verifier_lm", 0, critique_weight=self.weight)

    def load(self, setting: Setting, prompts: Mapping[str, str]) -> GenerativeReward:
        """Open the model; `prompts` are what problems say, by id. Raises ConfigError where there is no model."""
        engine = open_engine(model_folder("verifier_lm", self.name, setting), setting)
        seed = derive(setting.seed, "critique")
        return GenerativeReward(Collector.plain(engine, self.critiques, self.max_tokens, seed), self, prompts)


class GenerativeReward:
    """Criticises rollouts; see `train.rollouts.rewards.Reviewer`."""

    def __init__(self, collector: Collector, source: CritiqueSource, prompts: Mapping[str, str]) -> None:
        self._collector, self._source, self._prompts = collector, source, prompts

    async def add(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """The rollouts with a critique each, its share of approval among the parts, and that in the reward."""
        questions = [self._question(rollout) for rollout in rollouts]
        distinct = list(dict.fromkeys(questions))
        items = [Item(Problem(text, (Message("user", text),), "exact"), None) for text in distinct]
        critiques: dict[str, list[Rollout]] = {text: [] for text in distinct}
        for critique in await self._collector.collect(items, step):
            critiques[critique.problem_id].append(critique)
        pairs = zip(rollouts, questions, strict=True)
        return [self._with(rollout, critiques[question]) for rollout, question in pairs]

    async def close(self) -> None:
        """Close the judge's engine."""
        await self._collector.engine.close()

    def _question(self, rollout: Rollout) -> str:
        return self._source.ask.format(prompt=self._prompts[rollout.problem_id], answer=rollout.text)

    def _with(self, rollout: Rollout, critiques: Sequence[Rollout]) -> Rollout:
        votes = [bool(re.search(self._source.approves, one.text)) for one in critiques if not one.truncated]
        row = replace(rollout, critique="\n---\n".join(one.text for one in critiques))
        if rollout.reward is None or not votes:
            return replace(row, reward=None)
        share = fmean(votes)
        reward = rollout.reward + self._source.weight * share
        return replace(row, reward=reward, parts={**rollout.parts, "verifier_lm": share})
