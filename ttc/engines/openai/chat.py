"""The text dialects: messages, without a tokenizer, and plain text, for servers that return no ids.

Messages (`ChatDialect`) go to `/v1/chat/completions`. Strategies of whole answers work: `direct`, `majority`,
`best_of_n`. Thinking is returned in the server's reasoning fields and is kept apart from the answer; its switch is
passed on. Search by steps works if the endpoint continues an assistant message (prefill) and distinguishes a stop
string from an end. Features that need ids (budgets on thinking, log-probabilities) are refused before anything is sent.
If the server reports no usage, tokens are counted with a local folder's template and tokenizer.

Plain text (`PlainDialect`) goes to `/v1/completions` of a server that accepts no ids, or returns none. The chat
template is that of the local folder. Continuations are exact only as text: the server tokenises the whole text again,
so caps in tokens, thinking control and log-probabilities are refused, and `Prompt.token_ids` is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ttc.core import Message, Prompt, Sampling, ThinkState
from ttc.engines.openai.wire import Features, TextReader, shared_fields
from ttc.engines.shared.text import SWITCHES, Text
from ttc.errors import Unsupported
from ttc.session.thinking import CLOSE, OPEN

CURE = (
    "serve the model with vLLM (`vllm serve MODEL`) or llama.cpp (`llama-server -m FILE`), and set "
    "engine.tokenizer=PATH to the folder of its tokenizer"
)
PREFILL = {"continue_final_message": True, "add_generation_prompt": False}

_STATES: Mapping[bool | None, ThinkState] = {None: "none", True: "open", False: "closed"}
STATES: tuple[ThinkState, ...] = tuple(_STATES.values())
"""How a prompt without ids records the thinking switch it was rendered with."""
_SWITCHES: Mapping[ThinkState, bool] = {"open": True, "closed": False}
_EFFORTS = {True: "medium", False: "none"}


class ChatDialect:
    """Sends messages and reads messages."""

    path = "/chat/completions"

    def __init__(self, features: Features, text: Text | None = None) -> None:
        """`features` states whether a message can be continued; `text` counts tokens, None without a tokenizer."""
        self._features, self._text = features, text

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """The conversation as text for the trace; the server applies its own template to the messages."""
        text = "".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant: "
        return Prompt(
            text=text,
            token_ids=None,
            rendered_chars=len(text),
            think_state=_STATES[thinking],
            messages=tuple(messages),
            logprobs=None,
            certainty=None,
        )

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Refuse what messages do not support."""
        check_temperature(sampling, self._features)
        check_stop_ids(sampling, self._features)
        check_steps(prompt, sampling, self._features, continues=prompt.think_state in self._features.prefill)
        reply = prompt.generated_text.removeprefix(CLOSE)
        if OPEN in reply or CLOSE in reply:
            raise Unsupported(
                f"{self._features.model} cannot continue after thinking that it returned in a separate field: "
                f"switch thinking off (--thinking off), or {CURE}"
            )

    def num_prompt(self, prompt: Prompt) -> int | None:
        """Tokens of the prompt by the folder's template, which may differ from the server's; None without one."""
        if self._text is None:
            return None
        rendered = self._text.render(prompt.messages, _SWITCHES.get(prompt.think_state))
        return len(rendered.token_ids or ()) + len(self._text.encode(prompt.generated_text))

    def body(self, prompt: Prompt, sampling: Sampling, seed: int | None) -> dict[str, Any]:
        """The request body."""
        messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
        fields = shared_fields(sampling, seed, self._features)
        reply = prompt.generated_text.removeprefix(CLOSE)
        if reply:
            messages.append({"role": "assistant", "content": reply})
            fields |= PREFILL
        return fields | {"messages": messages} | switch_fields(self._features, prompt.think_state)

    def reader(self, prompt: Prompt, sampling: Sampling) -> TextReader:
        """The reader of its answer; a continued text is past its think block."""
        inside = prompt.think_state == "open" and not prompt.generated_text
        text = self._text
        return TextReader(sampling.stop, (), inside, None if text is None else lambda said: len(text.encode(said)))


def switch_fields(features: Features, state: ThinkState) -> dict[str, Any]:
    """The thinking switch in this server's form: a template variable, or OpenAI's effort."""
    thinking = _SWITCHES.get(state)
    if thinking is None:
        return {}
    if features.extras and not features.efforts:
        return {"chat_template_kwargs": dict.fromkeys(SWITCHES, thinking)}
    return {"reasoning_effort": _EFFORTS[thinking]}


def check_temperature(sampling: Sampling, features: Features) -> None:
    """Refuse a temperature that the server would refuse."""
    if features.own_temperature and sampling.temperature != 1:
        raise Unsupported(
            f"{features.model} takes only its own temperature, 1, and not {sampling.temperature:g}: add "
            "--temperature 1 (and --baseline none where strategies are measured); to a judge, temperature=1 and a seed"
        )


def check_stop_ids(sampling: Sampling, features: Features) -> None:
    """Refuse stop ids for a server without ids."""
    if sampling.stop_token_ids:
        raise Unsupported(f"stop_token_ids need token ids, which {features.model} does not take: {CURE}")


def check_steps(prompt: Prompt, sampling: Sampling, features: Features, *, continues: bool) -> None:
    """Refuse a step of a search, before the first one is paid for, if no next step could follow."""
    if (sampling.stop or prompt.generated_text) and not continues:
        raise Unsupported(
            f"{features.model} cannot continue a text it has begun, so strategies that go step by step (tree) cannot "
            f"run on it: use direct, majority or best_of_n, or {CURE}"
        )
    if sampling.stop and not features.stops:
        raise Unsupported(
            f"{features.model} does not say whether a stop string ended an answer, so steps cannot be cut: {CURE}"
        )


class PlainDialect:
    """Renders with the tokenizer of a local folder; sends and reads text."""

    path = "/completions"

    def __init__(self, text: Text, features: Features) -> None:
        """`features` states whether stop strings can be used."""
        self._text, self._features = text, features
        self._eos_texts = [text.decode([token]) for token in text.eos_ids]

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Apply the folder's chat template; the ids are dropped, since continuations have none."""
        prompt = self._text.render(messages, thinking)
        return replace(prompt, token_ids=None, rendered_len=0, logprobs=None, certainty=None)

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Refuse what plain text does not support."""
        check_stop_ids(sampling, self._features)
        check_steps(prompt, sampling, self._features, continues=True)

    def num_prompt(self, prompt: Prompt) -> int | None:
        """Our own count of the prompt; the server's may differ by a token where it splits text differently."""
        return len(self._text.encode(prompt.text))

    def body(self, prompt: Prompt, sampling: Sampling, seed: int | None) -> dict[str, Any]:
        """The request body."""
        fields = shared_fields(sampling, seed, self._features) | {"prompt": prompt.text}
        return fields | ({"add_special_tokens": False} if self._features.extras else {})

    def reader(self, prompt: Prompt, sampling: Sampling) -> TextReader:
        """The reader of its answer."""
        return TextReader(sampling.stop, self._eos_texts, False, lambda text: len(self._text.encode(text)))
