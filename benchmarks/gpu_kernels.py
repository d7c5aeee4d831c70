"""The GPU kernels, compiled ahead of time: registers, shared memory and spills of each, as the assembler reports them.

    python -m benchmarks.gpu_kernels [--target 80 90 ...] [--shape qwen2.5-7b ...] [--dtype bf16 ...] [--json FILE]

Needs triton (its assembler comes with it) and no GPU. Every kernel of `ttc.engines.embedded.kernels` is compiled in the
shapes of Qwen2.5-0.5B, Qwen2.5-7B and Llama-3-8B (`--shape gemma-3-4b` for a head size of 256) for an A100 (sm_80), an
H100 (sm_90a), a B200 (sm_100a) and the newest target that Triton's assembler supports. `programs` is how many fit on a
multiprocessor by registers and shared memory. Ends with status 1 if one spills. There are no timings.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ttc.engines.embedded.kernels.launches import KernelLaunch, forest_options, padded, prefill_options, widest_tile
from ttc.engines.embedded.kernels.plan import ITEM_FIELDS, PAGE, TILES
from ttc.engines.embedded.kernels.ragged import RUN_FIELDS, TILE_FIELDS

TARGETS = {80: "A100", 90: "H100, H200", 100: "B200", 121: "DGX Spark, the newest"}
SHARED_KB = {80: 164, 90: 228, 100: 228, 103: 228, 107: 228, 110: 228, 120: 100, 121: 100}
"""Of a multiprocessor (CUDA programming guide, table of compute capabilities)."""
REGISTERS = 65536  # of a multiprocessor
WIDTH = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class AttentionShape:
    """Heads of a model."""

    num_kv_heads: int
    group: int
    head_dim: int


SHAPES = {
    "qwen2.5-0.5b": AttentionShape(2, 7, 64),
    "qwen2.5-7b": AttentionShape(4, 7, 128),
    "llama-3-8b": AttentionShape(8, 4, 128),
    "gemma-3-4b": AttentionShape(4, 2, 256),
}


@dataclass(frozen=True)
class KernelCase:
    """A kernel as one shape launches it: types of its arguments, its constants."""

    name: str
    shape: str
    dtype: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    launch: KernelLaunch
    options: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CompiledKernel:
    """One line of the table."""

    kernel: str
    shape: str
    dtype: str
    target: str
    tile: int
    block: int
    num_warps: int
    num_stages: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    programs: int
    tensor_core: str
    async_copies: int

    @property
    def spills(self) -> bool:
        """Whether anything goes to local memory."""
        return bool(self.spill_bytes or self.stack_bytes)


def cases(name: str, dtype: str, capability: int) -> Iterator[KernelCase]:
    """The attention kernels that a shape runs."""
    from ttc.engines.embedded.kernels import forest, prefill

    shape, width = SHAPES[name], WIDTH[dtype]
    size, pointer = shape.head_dim, f"*{dtype}"
    heads = {"KV_HEADS": shape.num_kv_heads, "GROUP": shape.group, "SIZE": size, "PAGE": PAGE, "D": padded(size)}
    inputs, tail = dict.fromkeys("QKV", pointer), {"q_row": "i32", "window": "i32", "scale": "fp32"}
    plan = dict.fromkeys(("COUNTS", "ITEMS", "PAGES", "MEMBERS", "PLACES"), "*i32")
    partial = dict.fromkeys(("PARTIAL", "SUMS"), "*fp32")
    sizes = {"FIELDS": ITEM_FIELDS, "NARROW": TILES[0], "EMULATED": False}
    for tile in (tile for tile in TILES if tile <= widest_tile(size, width)):
        launch = forest_options(capability, tile, size, width)
        for windowed in (False, True):
            constants = {**heads, **sizes, "WIDE": tile, "N": launch.block, "WINDOWED": windowed}
            title = f"decode {tile}{' window' * windowed}"
            types = {**inputs, **plan, **partial, **tail}
            yield KernelCase(title, name, dtype, forest.decode_kernel, types, constants, launch)
    types = {**partial, **dict.fromkeys(("COUNTS", "STARTS", "LIST"), "*i32"), "OUT": pointer}
    constants = {"HEADS": shape.num_kv_heads * shape.group, "SIZE": size, "D": padded(size), "P": 16}
    yield KernelCase("merge", name, dtype, forest.merge_kernel, types, constants, KernelLaunch(1, 16, 4, 2))
    launch = prefill_options(capability, size, width)
    sizes = {"TILE_FIELDS": TILE_FIELDS, "RUN_FIELDS": RUN_FIELDS, "M": launch.tile, "N": launch.block}
    for windowed in (False, True):
        types = {**inputs, "OUT": pointer, **dict.fromkeys(("TILE", "RUNS", "PAGES"), "*i32"), **tail}
        constants = {**heads, **sizes, "WINDOWED": windowed, "EMULATED": False}
        yield KernelCase(
            f"prefill{' window' * windowed}", name, dtype, prefill.prefill_kernel, types, constants, launch
        )


def step_cases() -> Iterator[KernelCase]:
    """The kernels of the captured step, which name their shapes themselves."""
    if importlib.util.find_spec("ttc.engines.embedded.device") is None:
        return
    from ttc.engines.embedded.device import compile_cases

    for name, kernel, kinds, constants, options in compile_cases():
        types = {parameter: kind for parameter, kind in kinds.items() if kind != "constexpr"}
        yield KernelCase(
            name, "step", "", kernel, types, constants, KernelLaunch(1, 1, options["num_warps"], 3), options
        )


def compiled(case: KernelCase, capability: int) -> tuple[Any, str]:
    """Triton's result and the assembler's log, of what a launch compiles: addresses and row stride divisible by 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [name for name in case.kernel.arg_names if name in case.types or name in case.constants]
    signature = {name: case.types.get(name, "constexpr") for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] == "*" or name == "q_row"
    }
    source = ASTSource(case.kernel, signature, constexprs=case.constants, attrs=aligned)
    options = {"num_warps": case.launch.num_warps, "num_stages": case.launch.num_stages, "enable_fp_fusion": True}
    options |= case.options
    log = io.StringIO()
    with triton.knobs.compilation.scope(), triton.knobs.nvidia.scope(), contextlib.redirect_stdout(log):
        triton.knobs.compilation.always_compile = True
        triton.knobs.nvidia.dump_ptxas_log = True
        result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return result, log.getvalue()


def report(case: KernelCase, capability: int) -> CompiledKernel:
    """Compile, and read the assembler's report."""
    result, log = compiled(case, capability)
    registers = int(re.search(r"Used (\d+) registers", log)[1])  # type: ignore[index]
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    stack, stores, loads = map(int, frame.groups())  # type: ignore[union-attr]
    shared, code = result.metadata.shared, result.asm["ptx"]
    threads = result.metadata.num_warps * 32
    by_registers = REGISTERS // (threads * -(-registers // 8) * 8)
    programs = min(by_registers, SHARED_KB[capability] * 1024 // (shared + 1024), 2048 // threads)
    units = [unit for unit in ("tcgen05.mma", "wgmma.mma_async", "mma.sync") if unit in code]
    return CompiledKernel(
        case.name, case.shape, case.dtype, re.search(r"\.target (\w+)", code)[1],  # type: ignore[index]
        case.launch.tile, case.launch.block, case.launch.num_warps, case.launch.num_stages, registers, shared, stack,
        stores + loads, programs, ", ".join(unit.partition(".")[0] for unit in units), code.count("cp.async.c"),
    )  # fmt: skip


def table(rows: Sequence[CompiledKernel]) -> str:
    """Markdown, one line for each kernel."""
    head = "kernel | shape | dtype | target | tile x block | warps, stages | registers | shared KB | spilled bytes"
    head += " | programs | tensor cores"
    lines = [f"| {head} |", "|" + "---|" * 11]
    for row in rows:
        sizes = f"{row.tile} x {row.block}", f"{row.num_warps}, {row.num_stages}"
        shared = f"{row.shared_bytes / 1024:.0f}"
        cells = (row.kernel, row.shape, row.dtype, row.target, *sizes, row.registers, shared, row.spill_bytes)
        cells = (*cells, row.programs, row.tensor_core)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Command line; see the module docstring."""
    import triton

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=int, nargs="+", default=list(TARGETS))
    parser.add_argument("--shape", nargs="+", default=list(SHAPES)[:3], choices=list(SHAPES))
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=list(WIDTH))
    parser.add_argument("--kernel", default="", help="only those whose name contains this")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[CompiledKernel] = []
    for target in arguments.target:
        attention = [
            case for shape in arguments.shape for dtype in arguments.dtype for case in cases(shape, dtype, target)
        ]
        for case in (*attention, *step_cases()):
            if arguments.kernel in case.name:
                rows.append(report(case, target))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    if arguments.json:
        facts = {"triton": triton.__version__, "python": platform.python_version()}
        arguments.json.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    spilling = [row for row in rows if row.spills]
    print(f"{len(rows)} kernels, {len(spilling)} spill")
    sys.exit(1 if spilling else 0)


if __name__ == "__main__":
    main()
