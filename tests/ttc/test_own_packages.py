"""`ttc` runs its own packages whatever lies beside it, and names what took their place with the command that helps."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ttc.errors import pip

ROOT = Path(__file__).parents[2]
PACKAGES = ("ttc", "evals", "train", "distill", "serve")
COMMAND = "from ttc.cli.process import main; raise SystemExit(main())"
EVAL = ("eval", "--engine", "simulated", "--limit", "2", "--strategy", "majority", "--n", "2", "--baseline", "none")
FOREIGN = 'raise RuntimeError("a foreign module ran")\n'


def record_of(site: Path, *names: str) -> str:
    digests = {name: hashlib.sha256((site / name).read_bytes()).digest() for name in names}
    return "".join(f"{n},sha256={base64.urlsafe_b64encode(d).decode().rstrip('=')},1\n" for n, d in digests.items())


def install(site: Path, name: str, record: str, entry_points: str = "") -> None:
    """What an installer leaves of a distribution beside its files."""
    info = site / f"{name}-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    (info / "RECORD").write_text(record)
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This distribution as its wheel installs it, without its weights; what was compiled comes along, still valid."""
    site = tmp_path_factory.mktemp("installed")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("*.safetensors", "*.nb?"))
    (site / "matplotlib.py").write_text("raise ModuleNotFoundError(name=__name__)  # nobody looks at a figure here\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        line for group, names in groups.items() for line in (f"[{group}]", *(f"{k}={v}" for k, v in names.items()))
    ]
    files = [str(path.relative_to(site)) for package in PACKAGES for path in sorted((site / package).rglob("*.py"))]
    install(site, "ttckit", record_of(site, *files), "\n".join(lines))
    return site


@pytest.fixture
def site(installed: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(installed, tmp_path / "site"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder in which every name of ours is somebody else's."""
    place = tmp_path / "work"
    (place / "serve").mkdir(parents=True)
    for name in ("evals.py", "train.py", "distill.py", "serve/__init__.py"):
        (place / name).write_text(FOREIGN)
    return place


def run(place: Path, path: list[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with `arguments`, in the folder `place`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", [("-m", "ttc"), ("-c", COMMAND)])
def test_commands_run_their_own_modules_whatever_the_working_folder_holds(
    way: tuple[str, str], installed: Path, folder: Path
) -> None:
    ended = run(folder, [folder, installed], *way, *EVAL, "--out", "run")
    assert (ended.returncode, (folder / "run/report.html").is_file()) == (0, True), ended.stderr
    for words in (("train", "plan"), ("distill", "plan"), ("serve", "--no-such-option")):
        ended = run(folder, [folder, installed], *way, *words)
        assert "a foreign module ran" not in ended.stderr
        assert f"ttc {words[0]}" in ended.stderr, "its own parser refused the line"


def test_commands_run_their_own_modules_beside_another_distribution_of_the_name(installed: Path, folder: Path) -> None:
    install(folder, "openers", "evals.py,,\n")
    ended = run(folder.parent, [folder, installed], "-m", "ttc", *EVAL, "--out", "run")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("content", ["import blobfile_of_theirs\n", "", FOREIGN])
def test_a_package_that_another_distribution_overwrote_is_named_with_the_repair(
    content: str, site: Path, tmp_path: Path
) -> None:
    (site / "evals/__init__.py").write_text(content)
    install(site, "openers", record_of(site, "evals/__init__.py"))
    ended = run(tmp_path, [site], "-m", "ttc", *EVAL, "--out", "run")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert f"{site}/evals/__init__.py" in line
    assert "distribution openers 9.9 has the same files" in line
    assert line.endswith(f"run: {pip('uninstall')} -y openers && {pip('install')} --force-reinstall --no-deps ttckit")


def test_a_file_that_another_distribution_overwrote_explains_the_failure_that_it_causes(
    site: Path, tmp_path: Path
) -> None:
    (site / "evals/task.py").write_text("")
    install(site, "openers", record_of(site, "evals/task.py"))
    ended = run(tmp_path, [site], "-m", "ttc", *EVAL, "--out", "run")
    assert (ended.returncode, "internal error" in ended.stderr) == (2, False)
    assert "evals/task.py of this toolkit is not the file that was installed: distribution openers" in ended.stderr


def test_a_package_that_another_ones_removal_took_along_is_named_with_the_repair(site: Path, tmp_path: Path) -> None:
    (site / "evals/__init__.py").unlink()
    ended = run(tmp_path, [site], "-m", "ttc", *EVAL, "--out", "run")
    assert ended.returncode == 2
    assert f"evals/__init__.py of this toolkit is gone; run: {pip('install')} --force-reinstall" in ended.stderr


def test_a_change_of_ones_own_is_nobodys_damage(site: Path, tmp_path: Path) -> None:
    with (site / "evals/__init__.py").open("a") as file:
        file.write("# mine\n")
    assert run(tmp_path, [site], "-m", "ttc", *EVAL, "--out", "run").returncode == 0


def test_what_needs_none_of_the_four_runs_on_and_the_doctor_says_what_is_wrong(site: Path, folder: Path) -> None:
    (site / "evals/__init__.py").unlink()
    assert run(folder, [site], "-m", "ttc", "solve", "1+1", "--engine", "simulated").returncode == 0
    install(folder, "openers", "distill.py,,\n")
    code = (
        "from ttc.commands._doctor.installation import own_files\n"
        "for check in own_files(): print(check.name, check.state, check.detail, check.command, sep=' | ')"
    )
    ended = run(folder, [site], "-c", code)
    rows = {line.partition(" | ")[0]: line for line in ended.stdout.splitlines()}
    assert set(rows) == {"ttckit", "evals", "train", "serve", "distill"}, ended.stderr
    assert "| broken |" in rows["ttckit"]
    assert "is gone" in rows["ttckit"]
    assert rows["train"].endswith(f"mv {folder}/train.py {folder}/my_train.py")
    assert "| ready |" in rows["serve"]
    assert rows["distill"].endswith("pip uninstall -y openers")
    assert "| broken | distribution openers 9.9 has a package distill, too" in rows["distill"]


def test_from_python_the_file_that_hides_a_package_is_named_with_the_repair(installed: Path, folder: Path) -> None:
    (folder / "evals.py").write_text("mine = 1\n")
    ended = run(folder, [installed], "-c", "import ttc; ttc.evaluate([])")
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"ttc.errors.HiddenPackage: {folder}/evals.py has the name of this toolkit's package evals")
    assert last.endswith(f"run: mv {folder}/evals.py {folder}/my_evals.py")
    assert run(folder, [installed], "-c", "import ttc; ttc.run").returncode == 0


def test_from_python_a_missing_package_of_others_is_told_as_it_is(site: Path, tmp_path: Path) -> None:
    (site / "evals/door.py").write_text("import no_such_package_of_theirs\n")
    ended = run(tmp_path, [site], "-c", "import ttc; ttc.evaluate([])")
    assert ended.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_package_of_theirs'"
