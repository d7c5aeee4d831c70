"""Every way in which distillation goes wrong silently is refused before anything is spent, with its own message."""

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from distill import preflight
from distill.job.job import plan_job, run_job
from distill.plan.resolve import resolve
from distill.preflight.tokenizer import differences, id_bytes
from distill.spec.spec import parse_spec
from evals.tasks.cipher import question
from tests.distill.models import SYMBOLS, TASK, make_model
from train.base.models import load_model, load_tokenizer, save_model
from train.update.batch import NORMALISERS
from ttc.errors import ConfigError

ON_POLICY = {"name": "p", "method": "on_policy", "seed": 1, "task": f"{TASK},split=train", "held_out": TASK}
REJECTION = {**ON_POLICY, "method": "rejection", "n": 1}
ROWS = (
    "context", "disk", "end_of_text", "memory", "normaliser", "own_samples", "packing", "padding", "prompts",
    "sampling", "self_test", "special_tokens", "stop_tokens", "template", "thinking", "tokenizer", "training",
    "truncation",
)  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A student and a teacher that nothing is wrong with."""
    root = tmp_path_factory.mktemp("pair")
    return make_model(root / "a", share=0.5, steps=2), make_model(root / "b", share=0.5, steps=2, hidden=48, seed=1)


@pytest.fixture
def student(pair, tmp_path):
    """A copy of the student, to be spoilt."""
    return Path(shutil.copytree(pair[0], tmp_path / "student"))


def found(student, teacher, tmp_path, table=ON_POLICY, **more):
    spec = parse_spec({**table, "student": str(student), "teacher": str(teacher), **more})
    return {f.check: f for f in preflight.run(resolve(spec, tmp_path / "job").job)}


def edit(folder, name, **changes):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(findings, check):
    """The finding of a check that refuses; what it says must name a fix."""
    finding = findings[check]
    assert not finding.ok and finding.fix
    return f"{finding.text} -> {finding.fix}"


def test_what_a_teachers_authors_recommend_is_said_unless_the_spec_says_how_to_draw(pair, tmp_path):
    teacher = Path(shutil.copytree(pair[1], tmp_path / "teacher"))
    edit(teacher, "generation_config.json", temperature=0.6, top_p=0.95)

    def said(place, **more):
        finding = found(pair[0], place, tmp_path, REJECTION, **more)["sampling"]
        assert finding.ok
        return finding.text

    assert "for what its authors recommend set [sampling] temperature = 0.6, top_p = 0.95" in said(teacher)
    assert said(teacher, sampling={"temperature": 1.0}) == "answers are drawn as [sampling] says"
    assert said(pair[1]) == "answers are drawn as the tasks say"


@pytest.mark.parametrize("table", [ON_POLICY, REJECTION], ids=["on_policy", "rejection"])
def test_nothing_is_said_against_a_job_that_is_right(pair, tmp_path, table):
    findings = found(*pair, tmp_path, table)
    assert tuple(findings) == ROWS
    assert [f for f in findings.values() if not f.ok] == []


def test_end_of_text_sets_that_differ_are_refused(pair, student, tmp_path):
    edit(student, "generation_config.json", eos_token_id=[1, 5])
    said = refusal(found(student, pair[1], tmp_path), "end_of_text")
    assert "the student ends a text with <|end|> or s0, teacher teacher with <|end|>" in said
    assert "generation_config.json" in said and "rejection" in said
    assert found(student, pair[1], tmp_path, REJECTION)["end_of_text"].ok  # texts are laid out by the student


def test_templates_that_differ_are_refused(pair, student, tmp_path):
    path = student / "chat_template.jinja"
    path.write_text("s1" + path.read_text())
    said = refusal(found(student, pair[1], tmp_path), "template")
    assert "the student is shown 's1" in said and "chat_template.jinja" in said


def test_a_student_without_a_template_is_refused_for_every_method(pair, student, tmp_path):
    (student / "chat_template.jinja").unlink()
    edit(student, "tokenizer_config.json", chat_template=None)
    said = refusal(found(student, pair[1], tmp_path, REJECTION), "template")
    assert "has no chat template" in said


def swapped(folder, first, second):
    """Exchange the ids of two words: the same size, the same words, other ids."""
    data = json.loads((folder / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (folder / "tokenizer.json").write_text(json.dumps(data))


def test_equal_sizes_with_other_ids_are_refused(pair, student, tmp_path):
    swapped(student, "s3", "s4")
    said = refusal(found(student, pair[1], tmp_path), "tokenizer")
    assert "2 ids differ" in said and "'s4' to the student and 's3' to teacher teacher" in said
    assert "rejection or search" in said
    assert len(load_tokenizer(student)) == len(load_tokenizer(pair[1]))


def test_unused_rows_at_the_end_of_an_embedding_are_no_difference(pair, student, tmp_path):
    model = load_model(student, "cpu")
    model.resize_token_embeddings(model.config.vocab_size + 64, mean_resizing=False)
    save_model(model, load_tokenizer(student), student)
    findings = found(student, pair[1], tmp_path)
    assert [f for f in findings.values() if not f.ok] == []
    assert abs(float(findings["self_test"].text.split()[3])) < 1e-4


def test_a_token_more_is_a_difference(pair, student):
    data = json.loads((student / "tokenizer.json").read_text())
    data["model"]["vocab"]["zz"] = max(data["model"]["vocab"].values()) + 1
    (student / "tokenizer.json").write_text(json.dumps(data))
    assert [(ours, theirs) for _, ours, theirs in differences(student, pair[1])] == [("'zz'", "nothing")]


def test_tokenizers_that_spell_a_space_differently_mean_the_same():
    nano = Path("ttc/nano/teacher").resolve()
    bytes_of = id_bytes(nano)
    assert differences(nano, nano.parent / "student") == []
    assert b" " in bytes_of.values() and b"\n\n" in bytes_of.values()
    whole = Tokenizer.from_file(str(nano / "tokenizer.json"))
    text = "What is 12 + 30? é"
    told = b"".join(bytes_of[i] for i in whole.encode(text, add_special_tokens=False).ids)
    assert told.decode() == text


def test_special_tokens_in_other_roles_are_refused(pair, student, tmp_path):
    edit(student, "tokenizer_config.json", bos_token="s0")
    said = refusal(found(student, pair[1], tmp_path), "special_tokens")
    assert "bos_token is 's0' to the student and None to teacher teacher" in said


def test_padding_that_is_the_end_of_text_is_told_and_no_failure_where_masks_go_by_lengths(pair, student, tmp_path):
    edit(student, "tokenizer_config.json", pad_token="<|end|>")
    finding = found(student, pair[1], tmp_path, REJECTION)["padding"]
    assert finding.ok and "pads with '<|end|>', which also ends its texts" in finding.text


def test_stop_tokens_that_are_not_the_templates_are_refused(pair, student, tmp_path):
    path = student / "chat_template.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}s5{% endif %}{% endfor %}")
    said = refusal(found(student, pair[1], tmp_path, REJECTION), "stop_tokens")
    assert "the template of student ends a turn with 's5'" in said and "eos_token_id" in said


def test_packing_without_a_mask_is_refused(pair, tmp_path):
    said = refusal(found(*pair, tmp_path, REJECTION, train={"packing": True}), "packing")
    assert "attend to each other" in said and "train.packed" in said
    packed = found(*pair, tmp_path, REJECTION, train={"packed": 64})
    assert packed["packing"].ok and "64 tokens behind a block mask" in packed["packing"].text and packed["training"].ok


@pytest.mark.parametrize(
    ("table", "more", "field"),
    [
        (REJECTION, {"filters": {"truncated": False}}, "filters.truncated"),
        (ON_POLICY, {"train": {"mask_truncated": "false"}}, "train.mask_truncated"),
    ],
)
def test_learning_cut_answers_is_refused(pair, tmp_path, table, more, field):
    assert f"{field} = false would learn answers that were cut" in refusal(
        found(*pair, tmp_path, table, **more), "truncation"
    )


def test_a_student_that_imitates_itself_is_refused(pair, tmp_path):
    own = Path(shutil.copytree(pair[0], tmp_path / "same"))
    said = refusal(found(pair[0], own, tmp_path), "own_samples")
    assert "nothing to learn from it" in said and "method = search" in said
    loose = {"filters": {"verdict": False}}
    assert "nothing selects" in refusal(found(pair[0], own, tmp_path, REJECTION, **loose), "own_samples")
    assert found(pair[0], own, tmp_path, REJECTION)["own_samples"].ok  # verified: rejection sampling of itself


def test_a_normaliser_that_counts_padding_is_refused(pair, tmp_path, monkeypatch):
    padded = {**NORMALISERS, "padded": lambda mask, rows, most: mask / mask.shape[1]}
    monkeypatch.setattr("distill.preflight.normaliser.NORMALISERS", padded)
    said = refusal(found(*pair, tmp_path, train={"normaliser": "padded"}), "normaliser")
    assert "change with padding" in said
    for name in NORMALISERS:
        assert found(*pair, tmp_path, REJECTION, train={"normaliser": name})["normaliser"].ok


def test_dropout_in_the_configuration_of_a_student_is_not_applied(pair, student, tmp_path):
    edit(student, "config.json", attention_dropout=0.5)
    assert found(student, pair[1], tmp_path)["self_test"].ok


def test_a_student_that_is_something_apart_from_itself_is_refused(pair, student, tmp_path, monkeypatch):
    def dropping(*arguments):
        model = load_model(*arguments)
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.5
        return model

    monkeypatch.setattr("distill.preflight.self_test.load_model", dropping)
    said = refusal(found(student, pair[1], tmp_path), "self_test")
    assert "nats per token from itself" in said and "dropout" in said


def test_a_context_that_is_too_short_is_refused(pair, student, tmp_path):
    edit(student, "config.json", max_position_embeddings=12)
    said = refusal(found(student, pair[1], tmp_path, REJECTION), "context")
    assert "student holds 12 tokens" in said and "sampling.max_tokens to 9 or less" in said


def test_a_disk_or_memory_that_is_too_small_is_refused(pair, tmp_path, monkeypatch):
    Space = namedtuple("Space", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda place: Space(free=1000))
    monkeypatch.setattr("distill.preflight.memory._available", lambda device: 1000)
    findings = found(*pair, tmp_path)
    assert " MB are needed and 0.001 MB are free where" in refusal(findings, "disk")
    assert "--out on another disk" in refusal(findings, "disk")
    assert " MB of weights and optimiser, 0.001 MB of memory on cpu" in refusal(findings, "memory")
    assert "smaller student or teacher" in refusal(findings, "memory")
    adapted = found(*pair, tmp_path, train={"lora": 1})
    for check, at_most in (("disk", 0.35), ("memory", 0.7)):
        few, all_of_them = (float(refusal(each, check).split(" MB")[0].split()[-1]) for each in (adapted, findings))
        assert few < at_most * all_of_them, check  # adapters and their moments are small beside the weights


def test_prompts_that_tell_their_answer_or_are_measured_are_refused(pair, tmp_path):
    told = tmp_path / "told.jsonl"
    line = {"id": "p", "problem": f"{question(1, 2)}answer: s5", "answer": "s5", "kind": "exact"}
    told.write_text(json.dumps(line) + "\n" + json.dumps({**line, "id": "q", "problem": question(2, 1)}) + "\n")
    findings = found(*pair, tmp_path, task=str(told))
    assert "tells its answer" in refusal(findings, "prompts")
    same = {"task": f"{TASK},split=train", "held_out": f"{TASK},split=train"}
    with pytest.raises(ConfigError, match="no problem of"):
        found(*pair, tmp_path, **same)
    wider = {
        "task": f"cipher:symbols={SYMBOLS},max_steps=4,split=eval",
        "held_out": f"cipher:symbols={SYMBOLS},max_steps=3",
    }
    assert "is measured (equal)" in refusal(found(*pair, tmp_path, **wider), "prompts")


@pytest.mark.parametrize(
    "more",
    [
        {"eval": {"retention": [f"cipher:symbols={SYMBOLS},max_steps=3,split=train"]}},
        {"gates": {"held_out": f"cipher:symbols={SYMBOLS},max_steps=3,split=train", "min_gain": 0.0}},
        {"gates": {"canaries": f"cipher:symbols={SYMBOLS},max_steps=3,split=train", "min_gain": 0.0}},
    ],
    ids=["retention", "gate", "canaries"],
)
def test_a_student_that_would_train_on_what_is_measured_beside_its_task_is_refused(pair, tmp_path, more):
    findings = found(*pair, tmp_path, **more)
    assert "is measured (equal)" in refusal(findings, "prompts")


def test_a_single_problem_of_which_none_can_be_held_out_is_refused_before_it_is_asked(pair, tmp_path):
    assert "higher limit" in refusal(found(*pair, tmp_path, REJECTION, limit=1), "prompts")
    assert found(*pair, tmp_path, REJECTION, limit=2)["prompts"].ok


def test_a_misspelt_field_of_training_is_found_before_anything_is_generated(pair, tmp_path):
    said = refusal(found(*pair, tmp_path, REJECTION, train={"learning_rate": 1.0}), "training")
    assert "learning_rate" in said and "ttc list stages sft" in said


@pytest.mark.parametrize(
    ("table", "train", "message"),
    [
        (REJECTION, {"lr": "-1"}, "lr must be above 0"),
        (REJECTION, {"rows": 0}, "rows must be at least 1"),
        (REJECTION, {"rows": "many"}, "train.rows must be int"),
        (REJECTION, {"epochs": 0}, "epochs must be above 0"),
        (REJECTION, {"epochs": "three"}, "train.epochs must be float"),
        (REJECTION, {"epochs": 2, "steps": 5}, "epochs or steps, not both"),
        (REJECTION, {"held_out_share": 2}, "held_out_share must be at least 0 and below 1"),
        (REJECTION, {"health": {"truncaton": {}}}, "truncation"),
        (REJECTION, {"data": "rows.jsonl"}, "mix.data"),
        (REJECTION, {"corpus": "cipher"}, "corpus: the job makes the rows itself; .* as mix.data"),
        (REJECTION, {"rollouts": "runs/a/1-grpo/rollouts.jsonl"}, "rollouts: the job makes the rows itself"),
        (REJECTION, {"engine": "nothing"}, "unknown engine 'nothing'"),
        (ON_POLICY, {"steps": 0}, "steps must be at least 1"),
        (ON_POLICY, {"task": f"{TASK},split=eval"}, "task belongs to the job"),
        (ON_POLICY, {"train_limit": 9}, "train_limit belongs to the job, which cleans its problems by it; set limit"),
    ],
)
def test_what_the_stage_would_refuse_is_refused_before_anything_is_generated(pair, tmp_path, table, train, message):
    assert re.search(message, refusal(found(*pair, tmp_path, table, train=train), "training"))


def test_a_student_that_cannot_be_trained_as_asked_is_refused_before_its_teacher_is_paid(pair, tmp_path, student):
    config = GPT2Config(vocab_size=96, n_embd=32, n_layer=1, n_head=2, n_positions=128, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(student)
    said = refusal(found(student, pair[1], tmp_path, REJECTION, train={"lora": 2}), "training")
    assert "a gpt2 model has no plain linear layers" in said
    edit(student, "config.json", n_inner=48)
    said = refusal(found(student, pair[1], tmp_path, REJECTION), "training")
    assert re.search(r"no weights for \S*mlp.c_fc.bias, .*, or of another size than in config.json", said)


def test_health_rules_may_be_set_as_in_a_recipe(pair, tmp_path):
    rules = {"train_above_held_out": {"action": "warn"}}
    assert found(*pair, tmp_path, REJECTION, train={"health": rules})["training"].ok


def test_a_check_that_cannot_be_made_refuses_with_its_error(pair, student, tmp_path):
    edit(student, "config.json", max_position_embeddings=2)
    assert "the check failed to run" in refusal(found(student, pair[1], tmp_path), "self_test")


def test_a_refused_job_generates_nothing_and_says_the_fix(pair, student, tmp_path):
    ending = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}s5{% endif %}{% endfor %}"
    (student / "chat_template.jinja").write_text(ending)
    spec = parse_spec({**REJECTION, "student": str(student), "teacher": str(pair[1])})
    assert not all(f.ok for f in plan_job(spec, tmp_path / "planned").findings)
    with pytest.raises(ConfigError, match=r"stop_tokens: the template of student ends a turn with 's5'.*eos_token_id"):
        run_job(spec, tmp_path / "run", lambda text: None)
    assert not (tmp_path / "run").exists() and not (tmp_path / "planned").exists()
