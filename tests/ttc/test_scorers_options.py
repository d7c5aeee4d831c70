"""Options of scorers that the chosen backend does not read are refused before any model is looked at."""

from __future__ import annotations

from typing import Any

import pytest

from ttc.config.signatures import bind
from ttc.errors import ConfigError
from ttc.scorers.orm import orm
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import StepsOverHttp


@pytest.mark.parametrize(
    ("backend", "option"),
    [
        ("embedded", {"gpu_memory_utilization": 0.5}),
        ("embedded", {"protocol": "steps"}),
        ("embedded", {"base_url": "http://127.0.0.1:1"}),
        ("vllm", {"batch_invariant": True}),
        ("vllm", {"device": "cpu"}),
        ("http", {"base_url": "http://127.0.0.1:1", "threads": 2}),
        ("http", {"base_url": "http://127.0.0.1:1", "max_context": 64}),
    ],
)
def test_an_option_of_another_backend_is_refused_by_name(backend: Any, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"prm backend={backend} does not read {list(option)[-1]}"):
        bind(prm, {"backend": backend, **option}, supply={"model": "nowhere"})


def test_the_http_backend_needs_an_address() -> None:
    for scorer in (prm, orm):
        with pytest.raises(ConfigError, match="backend=http needs 'base_url'"):
            bind(scorer, {"backend": "http"}, supply={"model": "nowhere"})


def test_an_outcome_model_over_http_takes_no_local_options() -> None:
    with pytest.raises(ConfigError, match="orm backend=http does not read dtype"):
        given = {"backend": "http", "base_url": "http://127.0.0.1:1", "dtype": "float32"}
        bind(orm, given, supply={"model": "nowhere"})


def test_the_plain_protocol_leaves_the_model_and_its_format_to_the_server() -> None:
    for given in ({"model": "nowhere"}, {"adapter": "qwen_prm"}, {"kind": "label"}):
        with pytest.raises(ConfigError, match="protocol=steps: the server knows its model"):
            prm(options=StepsOverHttp(base_url="http://127.0.0.1:1", protocol="steps"), **given)
