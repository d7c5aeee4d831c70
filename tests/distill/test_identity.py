"""A job goes on only over what it was begun with: models, files, code and problems, told apart by their content."""

import json
import os
import shutil

import pytest
import torch

from distill.generation.ledger import AnswerLedger
from distill.job.job import plan_job, run_job
from distill.job.manifest import verify_manifest
from distill.spec.spec import parse_spec
from evals.tasks.cipher import Cipher
from tests.distill.models import STEPS, SYMBOLS, make_model
from tests.distill.openers import DyingTeacher, never, quiet
from tests.train.cipher_base import write_walks
from ttc.errors import ConfigError, RecordError

TASK = """data = "{name}.jsonl"
prompt = "{{question}}"
target = "answer"
kind = "exact"
verifier = {{name = "{folder}/judge.py:judge"}}
max_tokens = 8
"""
CODE = {
    "judge.py": "from ttc.verifiers.exact import exact\n\n\ndef judge():\n    return exact()\n",
    "pick.py": "from ttc.strategies.direct import direct\n\n\nasync def pick(problem, session):\n"
    "    return await direct(problem, session)\n",
    "keep.py": "def keep():\n    return lambda samples, context: [None] * len(samples)\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Everything that a job reads, written by a user; the models know next to nothing."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("mine")
    for name, seed in (("student", 0), ("teacher", 1)):
        shutil.copytree(make_model(folder / f"stage-{name}", share=0.4, steps=2, seed=seed), folder / name)
    cipher = Cipher(SYMBOLS, STEPS, 0)
    for split, name in (("train", "train"), ("eval", "held_out")):
        write_walks(cipher, folder / f"{name}.jsonl", split, ("question", "answer"))
        (folder / f"{name}.toml").write_text(TASK.format(name=name, folder=folder))
    write_walks(cipher, folder / "more.jsonl", "train", ("prompt", "completion"))
    for name, code in CODE.items():
        (folder / name).write_text(code)
    return folder


def spec(folder, **more):
    teacher = {"model": str(folder / "teacher"), "strategy": f"{folder}/pick.py:pick"}
    own = {"truncated": False, "verdict": False, "format": False, "repetition": False, "contamination": False,
           f"{folder}/keep.py:keep": True}  # fmt: skip
    table = {"name": "mine", "method": "rejection", "student": str(folder / "student"), "teacher": teacher, "seed": 1,
             "task": f"{folder}/train.toml", "held_out": f"{folder}/held_out.toml", "n": 1, "limit": 8, "smoke": 0,
             "filters": own, "mix": {"data": [str(folder / "more.jsonl")], "share": 0.2},
             "max_unfit": 1.0,  # what such models say may be empty
             "waive": ["end_of_text", "stop_tokens", "truncation"], "train": {"steps": 1, "rows": 2, "lr": 1e-3},
             "eval": {"limit": 4, "teachers": False}}  # fmt: skip
    return parse_spec({**table, **more})


@pytest.fixture(scope="module")
def cut(folder):
    """A job that was stopped after its third answer."""
    with pytest.raises(KeyboardInterrupt):
        run_job(spec(folder), folder / "job", quiet, DyingTeacher(3, 1))
    assert done(folder / "job") == 3
    return folder


def done(job):
    with AnswerLedger(job / "ledger.sqlite") as ledger:
        return ledger.totals()["done"]


def changed(path):
    """The content of a file with something in it changed, still of its kind."""
    if path.suffix == ".json":
        return json.dumps({**json.loads(path.read_text()), "note": "changed"}).encode()
    if path.suffix == ".safetensors":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        return bytes(data)
    if path.suffix == ".jsonl":
        return path.read_text().replace(': "s', ': "s2').encode()  # such symbols are in no problem
    return path.read_bytes() + b"# changed\n"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("student/model.safetensors", "weights of the student"),
        ("student/config.json", "config of the student"),
        ("student/chat_template.jinja", "chat template of the student"),
        ("teacher/model.safetensors", "weights of teacher teacher"),
        ("teacher/tokenizer.json", "tokenizer of teacher teacher"),
        ("teacher/chat_template.jinja", "chat template of teacher teacher"),
        ("teacher/generation_config.json", "generation settings of teacher teacher"),
        ("pick.py", "strategy file pick.py of teacher teacher"),
        ("train.toml", "task of domain task: "),
        ("train.jsonl", "problems of domain task"),
        ("held_out.jsonl", "problems of measured task "),
        ("judge.py", "verifier file judge.py of domain task"),
        ("keep.py", "filters: "),
        ("more.jsonl", "mix.data: "),
    ],
)
def test_a_changed_file_is_refused_by_name_before_any_work(cut, file, name):
    path, lock = cut / file, (cut / "job" / "lock.json").read_text()
    content = path.read_bytes()
    path.write_bytes(changed(path))
    try:
        with pytest.raises(ConfigError, match=r"made with other contents.*put back what it was made with") as raised:
            run_job(spec(cut), cut / "job", pytest.fail, never)
    finally:
        path.write_bytes(content)
    assert name in str(raised.value)
    assert (cut / "job" / "lock.json").read_text() == lock and done(cut / "job") == 3


def test_a_job_of_an_older_version_is_refused_with_the_reason(cut, tmp_path):
    shutil.copytree(cut / "job", tmp_path / "old")
    lock = json.loads((cut / "job" / "lock.json").read_text())
    del lock["contents"]
    (tmp_path / "old" / "lock.json").write_text(json.dumps(lock))
    with pytest.raises(ConfigError, match=r"job of an older version, whose lock\.json keeps no digests.*another --out"):
        plan_job(spec(cut), tmp_path / "old")


def test_a_setting_that_may_change_may_name_another_file(cut, tmp_path):
    shutil.copytree(cut / "job", tmp_path / "job")
    shutil.copy(cut / "more.jsonl", tmp_path / "other.jsonl")
    (tmp_path / "other.jsonl").write_bytes(changed(tmp_path / "other.jsonl"))
    plan_job(spec(cut, mix={"data": [str(tmp_path / "other.jsonl")], "share": 0.2}), tmp_path / "job")


def test_more_problems_are_the_same_job_while_the_first_ones_are_the_same(cut, tmp_path):
    shutil.copytree(cut / "job", tmp_path / "job")
    plan_job(spec(cut, limit=9), tmp_path / "job")
    path = cut / "train.jsonl"
    content = path.read_bytes()
    path.write_bytes(changed(path))
    try:
        with pytest.raises(ConfigError, match="problems of domain task"):
            plan_job(spec(cut, limit=10), tmp_path / "job")
    finally:
        path.write_bytes(content)
    plan_job(spec(cut, limit=10), tmp_path / "job")


def test_an_untouched_job_goes_on_though_every_file_is_newer_and_a_teacher_was_moved(cut, tmp_path):
    for path in cut.glob("[!j]*/*"):
        os.utime(path)
    shutil.copytree(cut / "job", tmp_path / "job")
    shutil.copytree(cut / "teacher", tmp_path / "teacher")
    told = []
    moved = {"model": str(tmp_path / "teacher"), "strategy": f"{cut}/pick.py:pick"}
    run_job(spec(cut, teacher=moved), tmp_path / "job", told.append)
    assert any(line.startswith("teacher: 3 answers were on the ledger") for line in told)
    assert verify_manifest(tmp_path / "job") == []
    manifest = json.loads((tmp_path / "job" / "manifest.json").read_text())
    del manifest["schema"]
    (tmp_path / "job" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match="of an older version"):
        verify_manifest(tmp_path / "job")
