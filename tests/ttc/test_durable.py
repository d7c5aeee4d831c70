"""What is replaced is the old or the new, whoever dies in between."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ttc.durable import alone_in, is_scratch, replace_link, replace_text, replaced_file, replaced_folder

DYING = """
import os, signal, sys
from pathlib import Path
from ttc.durable import replaced_file, replaced_folder
with (replaced_file if sys.argv[1] == "file" else replaced_folder)(Path(sys.argv[2])) as scratch:
    (scratch if sys.argv[1] == "file" else scratch / "a").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_a_folder_are_read_by_whoever_may_read_the_folder(tmp_path):
    with replaced_folder(tmp_path / "model") as scratch:
        (scratch / "weights").write_text("x")
        (scratch / "weights").chmod(0o600)  # as safetensors leaves them
    folder = (tmp_path / "model").stat().st_mode & 0o777
    assert (tmp_path / "model" / "weights").stat().st_mode & 0o777 == folder & 0o666 | 0o600


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "a.json"
    replace_text(path, "first")
    replace_text(path, "second ü")
    assert path.read_text(encoding="utf-8") == "second ü" and list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.json"
    replace_text(path, "first")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "\ud800")
    with pytest.raises(KeyboardInterrupt), replaced_file(path) as scratch:
        scratch.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole_with_nothing_of_the_old_one(tmp_path):
    path = tmp_path / "model"
    for name in ("first", "second"):
        with replaced_folder(path) as scratch:
            (scratch / "deep").mkdir()
            (scratch / "deep" / name).write_text(name)
    assert [p.name for p in (path / "deep").iterdir()] == ["second"] and list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_the_place_of_a_link_and_what_it_led_to_stays(tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "weights").write_text("policy")
    replace_link(tmp_path / "model", tmp_path / "policy")
    with replaced_folder(tmp_path / "model") as scratch:
        (scratch / "weights").write_text("other")
    assert (tmp_path / "policy" / "weights").read_text() == "policy"
    assert (tmp_path / "model" / "weights").read_text() == "other"


def test_a_link_is_moved_in_one_step_and_a_folder_that_is_moved_takes_it_along(tmp_path):
    for name in ("one", "two"):
        (tmp_path / "run" / name).mkdir(parents=True)
        replace_link(tmp_path / "run" / "newest", tmp_path / "run" / name)
    os.rename(tmp_path / "run", tmp_path / "moved")
    assert (tmp_path / "moved" / "newest").resolve() == tmp_path / "moved" / "two"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_killed_writer_leaves_the_old_and_only_what_is_known_as_scratch(tmp_path, kind):
    place = tmp_path / "a"
    if kind == "folder":
        place.mkdir()
    old = place / "a" if kind == "folder" else place
    old.write_text("first")
    done = subprocess.run([sys.executable, "-c", DYING, kind, str(place)], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert old.read_text() == "first"
    (left,) = (path for path in tmp_path.iterdir() if path != place)
    assert is_scratch(left) and not is_scratch(place)
    with (replaced_file if kind == "file" else replaced_folder)(place) as scratch:
        (scratch if kind == "file" else scratch / "a").write_text("second")
    assert old.read_text() == "second"


def test_a_folder_in_the_place_of_a_link_is_named_and_left_alone(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "newest").mkdir()
    (tmp_path / "newest" / "weights").write_text("1")
    with pytest.raises(FileExistsError, match=r"a folder stands where a link belongs .*delete it.*newest"):
        replace_link(tmp_path / "newest", tmp_path / "one")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["newest", "one"]
    assert (tmp_path / "newest" / "weights").read_text() == "1"


def test_what_is_done_alone_in_a_folder_waits_for_what_another_does_there(tmp_path):
    order = []

    def second():
        with alone_in(tmp_path):
            order.append("second")

    with alone_in(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"] and not list(tmp_path.iterdir())
