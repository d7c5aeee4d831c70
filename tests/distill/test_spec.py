"""A specification says everything once; what it cannot mean is refused by name before anything is loaded."""

import pytest

from distill.spec.spec import parse_spec, read_spec
from ttc.core import Sampling
from ttc.errors import ConfigError, UnknownName

PLAIN = {"name": "j", "method": "rejection", "student": "s", "teacher": "t", "task": "cipher", "seed": 1}


def test_flags_and_a_file_give_the_same_spec(tmp_path):
    path = tmp_path / "j.toml"
    path.write_text(
        'method = "rejection"\nstudent = "s"\nteacher = "t"\ntask = "cipher"\nseed = 1\nn = 8\n[train]\nlr = 0.1\n'
    )
    flags = {key: value for key, value in PLAIN.items() if key != "name"}
    from_flags = read_spec(None, {**flags, "seed": "1", "n": "8", "train.lr": 0.1, "name": "j"})
    assert read_spec(path, {}) == from_flags
    assert read_spec(path, {"n": "2"}).n == 2


def test_a_job_file_that_is_not_there_is_told_as_one(tmp_path):
    with pytest.raises(ConfigError, match=r"^job file '.*nofile\.toml' does not exist$"):
        read_spec(tmp_path / "nofile.toml", {})
    with pytest.raises(ConfigError, match=r"^job file '.*' is a folder; name a TOML file$"):
        read_spec(tmp_path, {})


def test_a_teacher_is_a_folder_a_table_or_several():
    assert [t.model for t in parse_spec(PLAIN).teachers] == ["t"]
    one = parse_spec({**PLAIN, "teacher": {"strategy": "majority:n=4"}}).teachers[0]
    assert one.model is None and one.strategy == "majority:n=4" and one.name == "teacher"
    two = parse_spec({**PLAIN, "teacher": [{"model": "a"}, {"model": "b", "name": "bee"}]}).teachers
    assert [t.name for t in two] == ["teacher-1", "bee"]


def test_domains_are_one_task_or_tables():
    table = {key: value for key, value in PLAIN.items() if key != "task"}
    spec = parse_spec(
        {**table, "domain": {"walks": {"task": "cipher", "held_out": "cipher"}, "sums": {"task": "arithmetic"}}}
    )
    assert [(d.name, d.held_out) for d in spec.domains] == [("walks", "cipher"), ("sums", None)]
    assert parse_spec(PLAIN).domains[0].name == "task"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"method": None}, "key 'method' is required"),
        ({"metod": 1}, "unknown key 'metod'; did you mean 'method'"),
        ({"max_tokens": 9}, r"unknown key 'max_tokens'; it belongs into a table: sampling\.max_tokens"),
        ({"lr": 1e-5}, r"unknown key 'lr'; it belongs into a table: train\.lr"),
        ({"rejection": {"k": 1}}, "rejection has no parameter 'k'"),
        ({"search": {}}, "unknown key 'search'"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"shards": -1}, "shards must be at least 0, got -1"),
        ({"sampling": {"temprature": 1}}, r"unknown key 'sampling\.temprature'; did you mean 'temperature'"),
        ({"sampling": {"seed": 1}}, r"sampling\.seed: every draw has its own"),
        ({"sampling": {"top_p": 2}}, r"sampling\.top_p must be in"),
        ({"thinking": {"mode": "maybe"}}, "mode"),
        ({"teacher": {"modl": "x"}}, r"unknown key 'teacher\.modl'; did you mean 'model'"),
        ({"teacher": [{"model": "a", "name": "x"}, {"model": "b", "name": "x"}]}, "two teachers have the same name"),
        ({"teacher": {"model": "a", "name": "student"}}, "'student' is what results call a model of every job"),
        ({"teacher": [{"model": "a", "name": "x"}, {"model": "b", "name": "start"}]}, "'start' is what results call"),
        ({"teacher": ""}, "teacher: model is empty: name a folder, or leave model out for the student itself"),
        ({"teacher": [{"model": "a"}, {"model": ""}]}, "teacher-2: model is empty"),
        ({"teacher": {"model": "a", "domains": ["walks"]}}, "no domain 'walks'"),
        ({"teacher": None}, "rejection needs a teacher"),
        ({"mix": {"share": 1.0}}, r"mix\.share must be in \(0, 1\)"),
        ({"eval": {"limits": 3}}, r"unknown key 'eval\.limits'; did you mean 'limit'"),
        ({"task": None}, "give either task"),
        ({"domain": {"a": {"task": "cipher"}}}, "give either task"),
        ({"filters": 3}, r"filters must be a table \[filters\]"),
    ],
)
def test_what_a_spec_cannot_mean_is_refused_by_name(change, told):
    table = {key: value for key, value in {**PLAIN, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=told):
        parse_spec(table)


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'rejection'"):
        parse_spec({**PLAIN, "method": "rejections"})


def test_sampling_is_the_tasks_with_the_specs_fields_over_it():
    spec = parse_spec({**PLAIN, "sampling": {"temperature": "0.5"}})
    found = spec.sampling_of(Sampling(temperature=1.0, max_tokens=9, stop=("x",), seed=4))
    assert found == Sampling(temperature=0.5, max_tokens=9, stop=("x",), seed=None)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"teacher": "t"}, "does not search with direct"),
        ({"search": {"min_share": 0}}, "min_share must be in"),
        ({"search": {"trust": "me"}}, "trust"),
    ],
)
def test_search_wants_a_strategy(table, told):
    base = {"name": "j", "method": "search", "student": "s", "task": "cipher", "seed": 1}
    with pytest.raises(ConfigError, match=told):
        parse_spec({**base, "teacher": {"strategy": "majority:n=4"}, **table})
    parse_spec({**base, "teacher": "t", "thinking": {"max_tokens": 3}})


def test_flags_of_the_teacher_are_laid_over_the_file(tmp_path):
    path = tmp_path / "j.toml"
    path.write_text('method = "rejection"\nstudent = "s"\nteacher = "t"\ntask = "cipher"\nseed = 1\n')
    found = read_spec(path, {"teacher.strategy": "majority:n=3"}).teachers[0]
    assert (found.model, found.strategy) == ("t", "majority:n=3")
    assert read_spec(path, {"teacher.model": "u"}).teachers[0].model == "u"


@pytest.mark.parametrize(
    ("line", "flags", "told"),
    [
        ("n = 0", {}, r"^.*/j\.toml: spec: n must be at least 1, got 0$"),
        ("nn = 2", {"seed": "2"}, r"^.*/j\.toml: unknown key 'nn'"),
        ("name = 3", {}, r"^.*/j\.toml: name must be str, got 3$"),
        ("n = 2", {"n": "0"}, r"^spec: n must be at least 1, got 0$"),
        ("n = 0", {"n": "-1"}, r"^spec: n must be at least 1, got -1$"),
    ],
)
def test_what_is_wrong_with_a_job_file_names_it_and_what_is_wrong_with_flags_does_not(tmp_path, line, flags, told):
    path = tmp_path / "j.toml"
    path.write_text(f'method = "rejection"\nstudent = "s"\nteacher = "t"\ntask = "cipher"\nseed = 1\n{line}\n')
    with pytest.raises(ConfigError, match=told):
        read_spec(path, flags)
