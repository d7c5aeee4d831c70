"""Speed-up by oneDNN's layout of fp32 matrices on this processor: `ttc.engines.embedded.core.weights.Linear`.

    python -m benchmarks.linear_layouts [--save benchmarks/results/linear_layouts.json]

Products of rows with the matrices of SmolLM2-135M and the large ones of Qwen2.5-1.5B, plain and packed, alternating, in
CPU time, one thread; reported is the speed-up of the packed ones, by the least of five rounds on both sides. Many
matrices of a size alternate, so that none stays in a cache. A minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ttc.engines.embedded.core.weights import Linear

SHAPES = {
    "SmolLM2-135M": ((576, 3072), (1536, 576), (576, 49_152)),
    "SmolLM2-135M, small": ((576, 960), (576, 576)),
    "Qwen2.5-1.5B": ((1536, 2048), (1536, 17_920), (8960, 1536)),
}
"""(in, out) of the matrices that are large enough to be packed, and of small ones, which lie by columns instead."""
ROWS = (1, 4, 16, 64, 256, 1024)
TURNS = 5
COLD = 30_000_000
"""Elements of all matrices of a size together."""


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds."""
    before = time.process_time()
    work()
    return time.process_time() - before


def speed_up(layouts: Sequence[Sequence[Linear]], x: torch.Tensor) -> float:
    """How many times as fast the second layout is."""
    best = [float("inf")] * len(layouts)
    for _ in range(TURNS + 1):  # the first turn of each warms up
        for place, layout in enumerate(layouts):
            best[place] = min(best[place], seconds(lambda layout=layout: [linear(x) for linear in layout]))
    return best[0] / best[1]


def measure() -> dict[str, dict[str, float]]:
    """Model -> rows -> speed-up over all of its matrices, weighted by their elements."""
    table = {}
    for model, shapes in SHAPES.items():
        totals = dict.fromkeys(ROWS, 0.0)
        for width, out in shapes:
            many = max(COLD // (width * out), 1)
            weights = [torch.randn(out, width) for _ in range(many)]
            layouts = [[Linear(weight, invariant=plain) for weight in weights] for plain in (True, False)]
            for rows in ROWS:
                totals[rows] += width * out / speed_up(layouts, torch.randn(rows, width))
        size = sum(width * out for width, out in shapes)
        table[model] = {str(rows): round(size / total, 2) for rows, total in totals.items()}
        print(model, table[model], flush=True)
    return table


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="where the numbers go")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        table = measure()
    if args.save:
        cpu = torch.backends.cpu.get_cpu_capability()
        numbers = {"torch": torch.__version__, "cpu": cpu, "times as fast, by rows": table}
        args.save.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
