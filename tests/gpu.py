"""Whether a GPU computes what the CPU does: kernels, and the engine as it is wired.

    python -m tests.gpu        (make gpu-test; needs torch, triton and numpy, takes minutes)

Kernels are held to one softmax in float64 on random forests. The engine decodes random traffic (draws that come, end by
a stop id on the device or a string on the host, share prompts, are aborted) of small random models; every draw is
compared with the family's own equations in float64 on the CPU: in fp32 token by token, in half precision by its
log-probabilities. Prints one table; ends with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from tests.ttc import forests
from tests.ttc.device_model import Model
from tests.ttc.forests import ForestCase

CASES = [
    *(ForestCase.draw(seed) for seed in range(1000, 1010)),
    *(ForestCase(seed, 4, 7, 128, torch.bfloat16, tile=64) for seed in range(2000, 2030)),
    *(ForestCase(seed, 2, 7, 64, torch.float16, window=40, tile=128, max_rows=18) for seed in range(3000, 3030)),
]
"""A layout is compiled once for many forests, so that all ends in minutes."""
FAMILIES = {
    "qwen3, fp32": (torch.float32, {"head_dim": 32}, 1e-3),
    "qwen2, fp32": (torch.float32, {"model_type": "qwen2", "head_dim": 64}, 1e-3),
    "qwen3, bf16": (torch.bfloat16, {"head_dim": 64}, 1.5),
    "qwen3, fp16": (torch.float16, {"head_dim": 128}, 0.2),
}
"""Name -> dtype, changes of the configuration, bound of a log-probability's distance."""
LIMIT_S = 450.0
"""No check begins later, so that all ends within nine minutes."""


@dataclass(frozen=True)
class Check:
    """One line of the table: the worst distance and its bound."""

    name: str
    count: int
    worst: float
    bound: float
    note: str = ""

    @property
    def passes(self) -> bool:
        """Whether the GPU computes what it should."""
        return not self.note and self.worst <= self.bound


def kernels(name: str, measure: Callable[[ForestCase, str], forests.Distance], device: str) -> Check:
    """All cases; the distance is the share of what rounding may do."""
    shares = [d.kernel / d.bound if d.bound else d.kernel for d in (measure(case, device) for case in CASES)]
    return Check(name, len(shares), max(shares), 1.0)


def engine(name: str, device: torch.device, seeds: range) -> Check:
    """Random traffic of one family."""
    from tests.ttc.gpu_traffic import BatchTraffic
    from ttc.engines.embedded.device.runtime import CudaRuntime
    from ttc.engines.embedded.gpu.body import DeviceBody

    dtype, changes, bound = FAMILIES[name]
    model = Model(dtype, device, **changes)
    worst, draws = 0.0, 0
    for seed in seeds:
        body = DeviceBody(model.weights, CudaRuntime(device), num_pages=150, max_context=512)
        traffic = BatchTraffic(model, body, seed=seed)
        with torch.inference_mode(), traffic.body.place():
            traffic.run()
        try:
            traffic.check(exact=dtype == torch.float32)
        except AssertionError as error:
            return Check(name, draws, traffic.gap, bound, f"seed {seed}: {error}"[:200])
        worst, draws = max(worst, traffic.gap), draws + len(traffic.draws)
    return Check(f"engine: {name}", draws, worst, bound)


def checks(device: torch.device) -> Iterator[Check]:
    """One after the other, until the time is over."""
    started = time.monotonic()
    work = [
        *(partial(engine, family, device, range(8)) for family in FAMILIES),
        partial(kernels, "decoding, of its bound", forests.decode_distance, str(device)),
        partial(kernels, "prefill, of its bound", forests.prefill_distance, str(device)),
    ]
    for number, check in enumerate(work):
        if time.monotonic() - started > LIMIT_S:
            yield Check(f"{len(work) - number} not run", 0, 0.0, 0.0, "time is over")
            return
        yield check()


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU is here")
    device = torch.device(arguments.device)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")  # noqa: T201
    failed = 0
    for check in checks(device):
        failed += not check.passes
        verdict = "ok" if check.passes else f"FAILS {check.note}"
        line = f"{check.name:<28} {check.count:>5} cases  worst {check.worst:<9.3g} bound {check.bound:<6g} {verdict}"
        print(line, flush=True)  # noqa: T201
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
