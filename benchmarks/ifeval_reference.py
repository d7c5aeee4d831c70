"""The other side of `ifeval_agreement`: verdicts of the checkers packaged in lm-eval, in their own environment.

    REFERENCE_PYTHON -m benchmarks.ifeval_reference < rows > verdicts

Rows and verdicts are JSON lines. Needs lm-eval, langdetect, immutabledict, nltk with its `punkt_tab` data (NLTK_DATA),
and nothing of this project. Only the four files of the task are imported, so that lm-eval's own dependencies (torch)
are not needed. The reference uses random numbers (language detection, missing parameters), so each row is judged with
several seeds: where these differ, the reference has no single verdict.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys
import types
from typing import Any

SEEDS = (0, 1, 2)
PACKAGES = ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval")


def _checkers() -> Any:
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("lm-eval is not installed here")
    root = next(iter(spec.submodule_search_locations))
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = ["/".join([root, *name.split(".")[1:]])]
        sys.modules[name] = package
    return importlib.import_module("lm_eval.tasks.ifeval.utils")


def _verdicts(utils: Any, row: dict[str, Any], seed: int) -> dict[str, list[bool]]:
    import langdetect  # type: ignore[import-not-found]

    random.seed(seed)
    langdetect.DetectorFactory.seed = seed
    document = {name: row[name] for name in ("key", "prompt", "instruction_id_list", "kwargs")}
    found = utils.process_results(document, [row["text"]])
    return {mode: found[f"inst_level_{mode}_acc"] for mode in ("strict", "loose")}


def main() -> None:
    """Judge every row of standard input under every seed."""
    utils = _checkers()
    for line in sys.stdin:
        row = json.loads(line)
        judged = [_verdicts(utils, row, seed) for seed in SEEDS]
        print(json.dumps({"id": row["id"], "seeds": judged}), flush=True)


if __name__ == "__main__":
    main()
