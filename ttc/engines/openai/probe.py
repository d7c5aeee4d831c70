"""Determine what an endpoint supports, once before the run, by a few short requests.

Only observed behaviour counts, since servers silently accept and ignore unknown fields. Token ids are supported if ids
are returned and the server's count of the prompt equals ours; continued messages if the prompt grows by exactly the
text that had been generated; stop strings if the answer reports that one was met. A refused request is repeated once in
other forms. Cost: 9 tokens per start with ids, at most some 50 otherwise, `ENOUGH` for a model that must not be cut
while it thinks; not charged and not part of `counters()`.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import combinations
from typing import Any
from urllib.parse import quote

from ttc.core import Prices, Sampling, ThinkState
from ttc.engines.openai.chat import PREFILL, STATES, switch_fields
from ttc.engines.openai.client import Chunk
from ttc.engines.openai.ids import ids_of, logprobs_of, num_logprobs, prompt_logprobs, scoring_body
from ttc.engines.openai.refusals import Busy, NoCredit, NotFound
from ttc.engines.openai.sync_client import SyncClient
from ttc.engines.openai.wire import FEWER_SEED_BITS, Features, Tail, as_mapping, first_choice, shared_fields, texts_of
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, EngineError
from ttc.session.thinking import OPEN

COUNTING = "1 2 3 4 5 6"
NUM_TOKENS = 4
ENOUGH = 1024
"""Tokens for a model that must finish thinking before it may be cut, such as OpenAI's."""
VLLM_VERSION = "vLLM version"
"""Present in `served` if the server is vLLM."""
LLAMA_VERSION = "llama.cpp version"
"""Present in `served` if the server is llama.cpp's own."""
NUM_MARKER = 16
"""Number of tokens at the end of a prompt that can hold a marker and the white space after it."""
_TOO_FEW = re.compile(r"higher max_tokens|output limit|below minimum", re.I)
_OF_THE_SERVER = (Busy, NoCredit)
"""Errors that say nothing about the server's features."""
_GREEDY = Sampling(temperature=0.0, max_tokens=NUM_TOKENS)
_SPREAD = Sampling(temperature=1.0, max_tokens=NUM_TOKENS)  # some models refuse any other temperature
_HELD = "true"
_GRAMMAR = f'%llguidance {{}}\nstart: answer\nanswer: %json {{"const": {_HELD}}}'
"""Sent to every server that accepts ids: a grammar in the form of answers with functions, which allows one text."""


class Unreachable(ConfigError):
    """No server answers at the URL."""


def served_model(client: SyncClient, url: str, model: str | None) -> Features:
    """Read the server's entry of `model` (None: its only one): name, context and origin.

    Raises:
        ConfigError: nothing answers (Unreachable), the model is not served, or several are and none was named.
    """
    try:
        cards = client.cards()
    except Busy as exc:
        raise Unreachable(
            f"no OpenAI-compatible server answers at {url} ({exc}): start one there (for example "
            "`vllm serve MODEL --port 8000` for http://127.0.0.1:8000/v1), or give another address "
            "(--base-url, --upstream of serve, base_url in a file)"
        ) from exc
    except NoCredit:
        raise
    except (NotFound, EngineError):  # the server exists but lists nothing
        cards = []
    models = {str(card["id"]): card for card in cards if isinstance(card, Mapping) and "id" in card}
    if model is None:
        if len(models) != 1:
            listed = f"serves {', '.join(sorted(models)[:8])}" if models else "lists none"
            hint = "" if models or url.endswith("/v1") else "; an address ends in /v1 as a rule"
            raise ConfigError(f"say which model with --model: {url} {listed}{hint}")
        model = next(iter(models))
    if f"models/{model}" in models:  # Gemini lists what its own documentation names without the folder
        model = f"models/{model}"
    # Azure lists the models that can be deployed, and takes the names of deployments
    if models and model not in models and not AZURE.search(url):
        near = get_close_matches(model, models, 8, 0.3) or sorted(models)[:8]
        raise ConfigError(f"{url} does not serve {model!r}; it serves {', '.join(near)}")
    card = models.get(model, {})
    served = {name: str(card[key]) for name, key in (("model id", "id"), ("model root", "root")) if card.get(key)}
    features = Features(
        model,
        next((card[name] for name in _CONTEXTS if isinstance(card.get(name), int) and card[name] > 1), None),
        served=served | _version(client, url, card),
        prices=_prices(card.get("pricing")),
    )
    return _of_llama(client, url, features) if card.get("owned_by") == "llamacpp" else features


_CONTEXTS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""Field names of a model's context: vLLM's, OpenRouter's and Together's, Groq's, Mistral's."""
AZURE = re.compile(r"^https://[^/]*\.azure\.")
_PER_MILLION = ("input", "output")
_PER_TOKEN = ("prompt", "completion")
"""Field names of price lists: Together's, and OpenRouter's."""


def _prices(listed: object) -> Prices | None:
    """The prices in a model's entry; None for an unknown form or an invalid price."""
    if not isinstance(listed, Mapping):
        return None
    for names, factor in ((_PER_MILLION, 1.0), (_PER_TOKEN, 1e6)):
        try:
            numbers = [factor * float(listed[name]) for name in names]
        except (KeyError, TypeError, ValueError):  # the other form, or no price
            continue
        if all(math.isfinite(price) and price >= 0 for price in numbers) and any(numbers):
            return Prices(*numbers)
    return None


def _version(client: SyncClient, url: str, card: Mapping[str, Any]) -> dict[str, str]:
    """The version of a server that identifies itself as vLLM; its route is outside the API."""
    if card.get("owned_by") != "vllm":
        return {}
    try:
        version = client.get(f"{url.removesuffix('/v1')}/version").get("version")
    except (ConfigError, EngineError):  # a server may not report it
        return {}
    return {VLLM_VERSION: str(version)} if version else {}


def _of_llama(client: SyncClient, url: str, features: Features) -> Features:
    """Add what llama.cpp's own server reports outside its API; an older one, or one behind a proxy, reports less.

    Raises:
        ConfigError: the address is that of the server and not of its API, where completions have another form.
    """
    name = quote(features.model, safe="")  # a server may have several models
    try:
        props = client.get(f"{url.removesuffix('/v1')}/props?model={name}")
    except (ConfigError, EngineError):
        props = {}
    if props and not url.endswith("/v1"):
        raise ConfigError(f"engine.base_url: the API of llama.cpp's server at {url} is {url}/v1")
    names = (("model file", "model_path"), (LLAMA_VERSION, "build_info"))
    return replace(
        features,
        llama=True,
        verbose=True,
        slots=props.get("total_slots"),
        max_context=as_mapping(props.get("default_generation_settings"), "default_generation_settings").get("n_ctx"),
        served={**features.served, **{name: str(props[key]) for name, key in names if props.get(key)}},
    )


def probe(client: SyncClient, features: Features, text: Text | None) -> Features:
    """Complete `features` (model and context are known) by requests; `text` is the local tokenizer.

    Raises:
        ConfigError: the endpoint completes nothing, its tokens cannot be counted, or the tokenizer is not the model's.
        EngineError: the server is too busy.
    """
    failures: list[str] = []
    if text is not None:
        abilities = _probe_ids(client, features, text, failures) or _probe_plain(client, features, failures)
        if abilities is not None:
            return abilities
    abilities = _probe_chat(client, features, failures)
    if abilities is None:
        raise ConfigError(f"the endpoint completes nothing: {_most_said(failures)}")
    if not abilities.usage and text is None:
        raise ConfigError(
            f"{features.model}: the endpoint reports no usage, so tokens cannot be counted; "
            "set engine.tokenizer=PATH to a folder with the model's tokenizer"
        )
    return abilities


def _most_said(failures: Sequence[str]) -> str:
    """The most frequent error of a server that refuses everything."""
    return max(dict.fromkeys(failures), key=failures.count)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One answer and the features with which it was requested."""

    chunks: Sequence[Chunk]
    features: Features
    num_tokens: int = NUM_TOKENS
    """Its max_tokens."""

    @property
    def tail(self) -> Tail:
        tail = Tail()
        for chunk in self.chunks:
            tail.add(chunk)
        return tail

    @property
    def text(self) -> str:
        return "".join(_text_of(first_choice(chunk)) for chunk in self.chunks)

    @property
    def thought(self) -> str:
        return "".join(texts_of(_message_of(first_choice(chunk)))[0] for chunk in self.chunks)

    @property
    def settled(self) -> Features:
        """The features, with usage only if it was reported."""
        return replace(self.features, usage=self.features.usage and self.tail.server.generated is not None)


def _message_of(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(choice.get("delta") or choice.get("message"), "delta")


def _text_of(choice: Mapping[str, Any]) -> str:
    return str(choice.get("text") or texts_of(_message_of(choice))[1])


_CHANGES: tuple[Mapping[str, Any], ...] = (
    {"limit_field": "max_completion_tokens"},
    {"seed_bits": FEWER_SEED_BITS},
    {"seeds": False},
    {"streams": False},
)
"""Alternatives that a server may require, possibly several at once."""


def _variants(features: Features) -> Iterator[Features]:
    """Combinations of features to try, from the most to the fewest: some servers refuse fields they do not know."""
    yield replace(features, extras=True, usage=True)
    if not features.llama:
        yield replace(features, extras=True, llama=True, usage=True)
    for number in range(len(_CHANGES) + 1):
        for choice in combinations(_CHANGES, number):
            changes = {name: value for change in choice for name, value in change.items()}
            if not {"seeds", "seed_bits"} <= changes.keys():
                yield replace(features, usage=True, **changes)
    yield features


def _first_accepted(
    client: SyncClient,
    path: str,
    features: Features,
    sampling: Sampling,
    fields: Mapping[str, Any],
    failures: list[str],
) -> _Seen | None:
    """The answer to the first combination that the server accepts; None when it accepts none."""
    for variant in _variants(features):
        for num_tokens in (sampling.max_tokens, ENOUGH):
            settings = replace(sampling, max_tokens=num_tokens)
            try:
                chunks = client.stream(path, shared_fields(settings, _seed(variant), variant) | dict(fields))
                return _Seen(chunks, variant, num_tokens)
            except _OF_THE_SERVER:
                raise
            except NotFound as exc:
                failures.append(str(exc))
                return None
            except EngineError as exc:
                failures.append(str(exc))
                if not _TOO_FEW.search(str(exc)):
                    break
    return None


def _counted(client: SyncClient, seen: _Seen, fields: Mapping[str, Any], sampling: Sampling) -> _Seen:
    """The answer, or a whole one from a server that counts tokens only without streaming (llama-cpp-python's)."""
    if seen.settled.usage or not seen.features.streams:
        return seen
    settings = replace(sampling, max_tokens=seen.num_tokens)
    whole = _ask(client, replace(seen.features, streams=False), fields, settings)
    return seen if whole is None or not whole.settled.usage else replace(whole, num_tokens=seen.num_tokens)


def _seed(features: Features) -> int:
    """The largest seed of a draw, since some servers refuse large ones."""
    return (1 << features.seed_bits) - 1


def _probe_ids(client: SyncClient, features: Features, text: Text, failures: list[str]) -> Features | None:
    prompt = list(text.encode(COUNTING))
    features = replace(features, streams=not features.verbose)  # llama.cpp omits ids from its streams
    fields = {"prompt": prompt, "return_token_ids": True, "logprobs": num_logprobs(features)}
    fields |= {"add_special_tokens": False, **({"return_tokens": True} if features.verbose else {})}
    trial = _first_accepted(client, "/completions", features, _GREEDY, fields, failures)
    if trial is None:
        return None
    runs = [ids_of(chunk) for chunk in trial.chunks]
    ids = [token for run in runs for token in run or ()]
    if not ids or trial.tail.server.prompt not in (None, len(prompt)):
        return None
    _check_tokenizer(text, ids, trial.text, features.model)
    rows = zip(map(first_choice, trial.chunks), runs, strict=True)
    has_logprobs = all(logprobs_of(choice, run or (), text.decode) is not None for choice, run in rows)
    abilities = replace(trial.settled, ids=True, logprobs=has_logprobs, scores=_scores(client, features.model, prompt))
    return replace(abilities, grammars=_holds_grammars(client, abilities, fields))


def _holds_grammars(client: SyncClient, features: Features, fields: Mapping[str, Any]) -> bool:
    """Whether an answer follows a grammar in llguidance's variant of Lark, with a text no model writes by itself."""
    answer = _ask(client, features, {**fields, "structured_outputs": {"grammar": _GRAMMAR}})
    return answer is not None and answer.text.strip().startswith(_HELD)


def _scores(client: SyncClient, model: str, prompt: Sequence[int]) -> bool:
    """Whether log-probabilities of given ids are returned."""
    try:
        prompt_logprobs(client.post("/completions", scoring_body(model, prompt)), prompt, 1)
    except _OF_THE_SERVER:
        raise
    except (EngineError, ValueError):  # a refusal or an omission means that the feature is missing
        return False
    return True


def _check_tokenizer(text: Text, ids: Sequence[int], said: str, model: str) -> None:
    """Refuse a tokenizer that decodes the server's ids to another text than the server."""
    ours = "".join(text.decode(ids).split())
    theirs = "".join(said.split())
    if max(ids) >= text.size or (theirs and theirs not in ours):
        raise ConfigError(
            f"engine.tokenizer is not that of {model}: it reads the server's ids as {text.decode(ids)!r}, "
            f"the server as {said!r}"
        )


def _probe_plain(client: SyncClient, features: Features, failures: list[str]) -> Features | None:
    fields = {"prompt": COUNTING}
    trial = _first_accepted(client, "/completions", features, _GREEDY, fields, failures)
    if trial is None or not trial.text:
        return None
    trial = _counted(client, trial, fields, _GREEDY)
    _check_ends(client, trial, fields)
    return replace(trial.settled, text=True, stops=_tells_stops(client, trial.features, fields))


def _probe_chat(client: SyncClient, features: Features, failures: list[str]) -> Features | None:
    question = [{"role": "user", "content": f"Go on counting: {COUNTING}"}]
    trial = _first_accepted(client, "/chat/completions", features, _SPREAD, {"messages": question}, failures)
    if trial is None:
        return None
    trial = _counted(client, trial, {"messages": question}, _SPREAD)
    _check_ends(client, trial, {"messages": question})
    if trial.thought and trial.features.extras:
        trial = replace(trial, features=replace(trial.features, efforts=_heeds_efforts(client, trial, question)))
    chat = replace(trial.settled, prefill=tuple(state for state in STATES if _goes_on(client, trial, question, state)))
    if not chat.prefill:  # else it has answered at temperature 0
        usual = replace(_GREEDY, temperature=Sampling().temperature, max_tokens=trial.num_tokens)
        is_refused = _ask(client, trial.features, {"messages": question}, usual) is None
        chat = replace(chat, own_temperature=is_refused)
    stops = bool(chat.prefill) and _tells_stops(
        client, trial.features, {"messages": question} | switch_fields(trial.features, chat.prefill[0])
    )
    return replace(chat, stops=stops, opens=tuple(state for state in STATES if _opens(client, trial, question, state)))


def _check_ends(client: SyncClient, seen: _Seen, fields: Mapping[str, Any]) -> None:
    """Warn of a server that does not say how an answer ended: each is asked for again, and paid for several times."""
    if seen.tail.finish:
        return
    again = _ask(client, seen.features, fields, replace(_SPREAD, max_tokens=seen.num_tokens))
    if again is not None and not again.tail.finish:
        text = "the server ends answers without a finish_reason: they count as broken off, and are asked for again"
        warnings.warn(f"{seen.features.model}: {text} up to engine.attempts times", RuntimeWarning, stacklevel=5)


def _opens(client: SyncClient, seen: _Seen, question: list[dict[str, str]], state: ThinkState) -> bool:
    """Whether a prompt ends inside a think block, as vLLM reports, and its thought is then returned as content."""
    features, switch = seen.features, switch_fields(seen.features, state)
    if VLLM_VERSION not in features.served:
        return False
    root, named = client.url.removesuffix("/v1"), {"model": features.model}
    try:
        ids = client.post(f"{root}/tokenize", {**named, "messages": question, **switch})["tokens"]
        end = client.post(f"{root}/detokenize", {**named, "tokens": ids[-NUM_MARKER:]})["prompt"]
    except _OF_THE_SERVER:
        raise
    except (ConfigError, EngineError, LookupError, TypeError):  # the operator may have disabled these routes
        return False
    if not str(end).rstrip().endswith(OPEN):
        return False
    answer = _ask(client, features, {"messages": question} | switch)
    return answer is not None and not answer.thought and bool(answer.text)


def _heeds_efforts(client: SyncClient, seen: _Seen, question: list[dict[str, str]]) -> bool:
    """Whether a model that thinks by default ignores the template's switch but uses a reasoning effort."""

    def thinks(features: Features) -> bool:
        answer = _ask(client, features, {"messages": question} | switch_fields(features, "closed"))
        return answer is None or bool(answer.thought)

    return thinks(seen.features) and not thinks(replace(seen.features, efforts=True))


def _goes_on(client: SyncClient, seen: _Seen, question: list[dict[str, str]], state: ThinkState) -> bool:
    """Whether an incomplete message is continued unchanged: the prompt grows by exactly the text generated before.

    It is not where the continuation is ignored, or where the template renders an incomplete message differently from
    the generation prompt (without the think block it had opened, say).
    """
    switch = switch_fields(seen.features, state)
    begun = _ask(client, seen.features, {"messages": question} | switch)
    if begun is None or not begun.text.strip() or "<" in begun.text:
        return False
    beginning = {"role": "assistant", "content": begun.text}
    longer = _ask(client, seen.features, {"messages": [*question, beginning]} | switch | PREFILL)
    if longer is None:
        return False
    before, after = begun.tail.server, longer.tail.server
    return None not in (before.prompt, before.generated, after.prompt) and after.prompt == (before.prompt or 0) + (
        before.generated or 0
    )


def _ask(
    client: SyncClient, features: Features, fields: Mapping[str, Any], sampling: Sampling = _GREEDY
) -> _Seen | None:
    """The answer of a chat, or of completions where `fields` contain a prompt; None when the server refuses."""
    path = "/completions" if "prompt" in fields else "/chat/completions"
    try:
        return _Seen(client.stream(path, shared_fields(sampling, _seed(features), features) | dict(fields)), features)
    except _OF_THE_SERVER:
        raise
    except EngineError:  # a refusal means that the feature is missing
        return None


def _tells_stops(client: SyncClient, features: Features, fields: Mapping[str, Any]) -> bool:
    """Repeat a greedy request with the text's first character as stop string: does the answer report the stop?"""
    free = _ask(client, features, fields)
    sign = "" if free is None else free.text.strip()[:1]
    if not sign:
        return False
    again = _ask(client, features, fields, replace(_GREEDY, stop=(sign,)))
    return again is not None and (again.tail.stop == sign or sign in again.text)
