"""Bodies of requests: what is read is what fits, and refusals name the place."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from serve.dialects import chat as chat_dialect
from serve.operator.keys import KeyLimits, key_from_secret
from serve.requests.body import WHOLE, RequestBody, parse_json, read
from serve.requests.errors import ApiError, from_error
from serve.requests.search import ServedStrategies
from tests.serve.running import chat, running, served
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError, EngineBusy, EngineError, PromptRefused, Unsupported

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
OFFERS = ServedStrategies(None, ["prm"], 128)
CHAT = create_model("Chat", __base__=chat_dialect.ChatRequest, ttc=(OFFERS.model() | None, None))


class Item(BaseModel):
    b: int


class Number(RequestBody):
    n: Annotated[int, Ge(1), Le(9), WHOLE]
    maybe: Annotated[int, Ge(1), Le(9), WHOLE] | None = None


class Colours(RequestBody):
    a: list[Item]
    colour: Any = None


def refused(value: Any, model: type[BaseModel]) -> tuple[str | None, str]:
    with pytest.raises(ApiError) as failure:
        read(model, value)
    return failure.value.param, failure.value.message


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"a": "\xe9"}', "it is not UTF-8 at byte 7"),
        (b'{"a": "\\ud83d"}', "it holds half of a character"),
        (b'{"a": ' + b"9" * 5000 + b"}", "an integer has too many digits"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_without_pythons_terms(raw: bytes, told: str) -> None:
    with pytest.raises(ApiError, match=told) as failure:
        parse_json(raw)
    assert "codec" not in failure.value.message and "sys." not in failure.value.message


def test_a_byte_order_mark_is_no_part_of_a_body() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@given(JSON)
def test_no_json_value_breaks_the_reader(value: Any) -> None:
    try:
        read(CHAT, value)
    except ApiError as error:
        assert error.status == 400 and len(error.message) <= 1000


@given(st.sampled_from(sorted(CHAT.model_fields)), JSON)
def test_no_value_of_a_known_field_breaks_the_reader_or_the_dialect(name: str, value: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], name: value}
    try:
        chat_dialect.parse(read(CHAT, body))
    except ApiError as error:
        assert error.status == 400


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(raw: bytes) -> None:
    try:
        json.dumps(parse_json(raw))
    except ApiError as error:
        assert error.code == "invalid_json"


def test_the_last_of_a_hundred_thousand_fields_twice_is_found_in_one_pass() -> None:
    fields = [f'"{i:x}":0' for i in range(100_000)]
    raw = "{" + ",".join([*fields, fields[-1]]) + "}"
    began = time.process_time()
    with pytest.raises(ApiError, match="'1869f' is there twice"):
        parse_json(raw.encode())
    assert time.process_time() - began < 5  # a count of each name among all took minutes


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "9" * 400 + ".0"])
def test_a_number_that_would_become_infinite_is_none(number: str) -> None:
    with pytest.raises(ApiError, match="is too large for a number") as failure:
        parse_json(f'{{"a": [{number}]}}'.encode())
    assert failure.value.code == "invalid_json" and len(failure.value.message) < 200


def test_integers_may_be_written_as_floats_and_booleans_are_no_numbers() -> None:
    number = read(Number, {"n": 3.0, "maybe": None})
    assert number.n == 3 and isinstance(number.n, int) and number.maybe is None
    for wrong in (True, 3.5, "3", 0, 10, None):
        assert refused({"n": wrong}, Number)[0] == "n"


def test_refusals_name_the_place_and_the_nearest_field() -> None:
    assert refused({"a": [{"b": 1}, {}]}, Colours)[0] == "a[1].b"
    assert refused({}, Colours)[0] == "a"
    param, message = refused({"a": [], "color": 1}, Colours)
    assert (param, "did you mean 'colour'" in message) == ("color", True)


def test_a_field_beside_its_object_is_told_where_it_belongs() -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    with pytest.raises(ApiError, match=r"^strategy is an unknown field; did you mean 'ttc.strategy'\?$"):
        read(CHAT, {**asked, "strategy": "majority"})
    chat_dialect.parse(read(CHAT, {**asked, "ttc": {"strategy": "majority"}}))


def test_every_installed_strategy_is_described_by_its_signature() -> None:
    offered = {offer["name"]: offer for offer in OFFERS.to_json()}
    assert {"direct", "majority", "best_of_n", "tree"} <= set(offered)
    assert offered["majority"]["parameters"]["n"]["default"] == 16
    assert offered["tree"]["parameters"]["policy"]["enum"]
    assert "scorer" not in offered["tree"]["parameters"]
    assert all(parameter["description"] for offer in offered.values() for parameter in offer["parameters"].values())


def test_errors_of_the_toolkit_lose_their_folders() -> None:
    error = from_error(ConfigError("/secret/models/qwen/config.json lacks x; see http://host/a/b"))
    assert error.message == "config.json lacks x; see http://host/a/b"
    assert from_error(EngineError("http://gpu-7:8000/v1 broke")).message == "the upstream server broke"
    filtered = from_error(PromptRefused("http://gpu-7:8000/v1 answered 400: flagged"))
    assert (filtered.status, filtered.code) == (400, "content_filter") and "gpu-7" not in filtered.message
    assert from_error(ValueError("/secret")).message == "an error of the server itself; its log says more"


@pytest.mark.parametrize("raw", [b"", b" \n"])
def test_an_empty_body_is_called_empty(raw: bytes) -> None:
    with pytest.raises(ApiError, match="the body is empty: send a JSON object"):
        parse_json(raw)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "http://gpu-7:8000/v1 cannot be reached: Cannot connect to host gpu-7:8000 ssl:default "
            "[Connect call failed ('10.1.2.3', 8000)] (gave up after 6 attempts)",
            "the upstream server cannot be reached (gave up after 6 attempts)",
        ),
        ("gpu-7:8000 closed a kept connection: [Errno 104] peer", "the upstream server closed a kept connection"),
        ("https://gpu-7/v1 was silent for 5 s", "the upstream server was silent for 5 s"),
    ],
)
def test_no_address_of_a_server_that_is_gone_reaches_a_client(words: str, shown: str) -> None:
    assert from_error(EngineError(words)).message == shown


def test_the_wait_that_an_upstream_server_asks_for_is_told_with_a_failure_of_its_own_as_with_a_busy_one() -> None:
    for error, status in ((EngineError("answered 503: starting"), 503), (EngineBusy("answered 429: slow"), 429)):
        error.retry_after_s = 7.0
        told = from_error(error)
        assert (told.status, told.headers()["retry-after"]) == (status, "7")
    assert "retry-after" not in from_error(EngineError("answered 503: broken")).headers()


COMMAND_LINE = re.compile(r"(?<![\w-])--[a-z]|\bttc [a-z]+ [A-Z-]")
ROOT = pathlib.Path(__file__).parents[2]
AT_START = re.compile(
    r"--set( \{\}: no part|$)|say which model with --model|ttc needs |(uv pip |sglang serve |VLLM_|(\{\})? --)"
)
"""What begins so is a command, or is said before a server takes requests."""


def texts_in(folder: str, *without: str) -> Iterator[str]:
    """The texts in the files of a folder, with {} for what is filled in; not those of some parts of it."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        if not {*without} & {*file.relative_to(ROOT / folder).parts}:
            yield from _texts(ast.parse(file.read_text()))


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Expr(ast.Constant()):  # a docstring
            return
        case ast.JoinedStr():
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        case ast.Constant(str(text)):
            yield text
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _texts(child)


def test_no_text_reaches_clients_with_options_of_the_command_line() -> None:
    words = texts_in("ttc", "cli", "commands", "verifiers", "sandbox")
    advice = [text for text in words if COMMAND_LINE.search(text) and not AT_START.match(text)]
    assert len(advice) > 30
    shown = [from_error(kind(text)).message for text in advice for kind in (ConfigError, EngineError, Unsupported)]
    assert [text for text in shown if COMMAND_LINE.search(text)] == []
    own = [text for folder in ("requests", "running", "dialects") for text in texts_in(f"serve/{folder}", "errors.py")]
    assert [text for text in own if COMMAND_LINE.search(text)] == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "thinking.min_tokens = 9 (--min-thinking) leaves nothing of sampling.max_tokens = 9 (--max-tokens)",
            "min_thinking_tokens = 9 leaves nothing of max_tokens = 9",
        ),
        ("it needs a scorer: add --scorer prm:PATH", "it needs a scorer: add a ttc.scorer of steps"),
        (
            "whose context is 64: lower --max-tokens or raise scorer.max_context",
            "whose context is 64: lower max_tokens (this server's operator can change that)",
        ),
        ("no cache (x): use --engine vllm", "no cache (x) (this server's operator can change that)"),
        ("sampling.grammar: no such rule", "sampling.grammar: no such rule"),
        ("a path of --x in a text of a user", "a path of --x in a text of a user"),
    ],
)
def test_advice_names_the_fields_of_a_request_and_leaves_the_rest_to_the_operator(
    words: str, shown: str | None
) -> None:
    expected = "refine: feedback=scorer needs a scorer: add a ttc.scorer of steps" if shown is None else shown
    assert from_error(ConfigError(words)).message.startswith(expected)


def test_a_minimum_of_thought_that_a_key_cannot_pay_for_is_refused_by_what_it_takes() -> None:
    key = key_from_secret("alice", "a-secret-of-alice", KeyLimits(tokens_per_minute=60))
    body = chat("hi", max_tokens=90, thinking_budget=60, min_thinking_tokens=50)
    with running(served(ScriptedEngine(lambda prompt, path, key: "x", thinking=True)), keys=[key]) as server:
        error = server.ask(body, authorization="Bearer a-secret-of-alice").json()["error"]
    assert error["code"] == "token_limit_exceeded" and "at least 72 tokens" in error["message"]
