"""The plugin of a vLLM server, without vLLM: how it is found, what it refuses, what it answers."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest

from ttc.engines.vllm.steps_plugin import StepsProcessor


def test_vllm_finds_the_class_by_the_name_of_the_command_line() -> None:
    (found,) = entry_points(group="vllm.io_processor_plugins", name="ttc_steps")
    module, _, name = found.load()().rpartition(".")
    assert getattr(importlib.import_module(module), name) is StepsProcessor


@pytest.mark.parametrize("data", [None, [1], {}, {"ids": []}, {"ids": "12"}, {"ids": [1, "2"]}, {"ids": [True]}])
def test_a_request_that_holds_no_ids_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="the tokens of a path"):
        StepsProcessor(None, None).parse_data(data)


def test_ids_come_in_and_rows_behind_the_cached_part_go_out() -> None:
    torch = pytest.importorskip("torch")
    plugin = StepsProcessor(None, None)
    assert plugin.pre_process(plugin.parse_data({"ids": [3, 4, 5]})) == {"prompt_token_ids": [3, 4, 5]}
    rows = torch.tensor([[0.5, 1.5], [2.0, -1.0]], dtype=torch.bfloat16)
    output = SimpleNamespace(outputs=SimpleNamespace(data=rows), num_cached_tokens=1)
    assert plugin.post_process([output]) == {"rows": [[0.5, 1.5], [2.0, -1.0]], "cached": 1}


def test_a_server_needs_nothing_of_this_package_but_its_files() -> None:
    code = (
        "import sys, ttc.engines.vllm.steps_plugin\n"
        "print(*{name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"ttc", "__main__", "_distutils_hack"}
