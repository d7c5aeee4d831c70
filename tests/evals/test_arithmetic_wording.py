"""Arithmetic with spaces: the same expressions, values and splits in another wording, under other names."""

from evals.tasks.arithmetic import arithmetic


def asked(**params: object) -> list[tuple[str, str]]:
    items = arithmetic(**params).items(40, 3)  # type: ignore[arg-type]
    return [(item.problem.messages[0].content, item.target) for item in items]


def test_only_spaces_around_operators_are_added() -> None:
    bare, spaced = asked(level=4), asked(level=4, wording="spaced")
    assert [target for _, target in bare] == [target for _, target in spaced]
    assert [text.replace(" ", "") for text, _ in spaced] == [text.replace(" ", "") for text, _ in bare]
    assert all(" * " in text or " + " in text or " - " in text for text, _ in spaced)


def test_names_and_the_record_tell_the_wordings_apart() -> None:
    names = {item.problem.id for wording in ("bare", "spaced") for item in arithmetic(wording=wording).items(9, 0)}
    assert len(names) == 18
    assert arithmetic().params == {"level": 4}
    assert arithmetic(wording="spaced", split="train").params == {"level": 4, "split": "train", "wording": "spaced"}
