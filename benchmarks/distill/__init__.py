"""What distillation buys on the packaged family: one claim per file, three seeds, a CPU.

    python -m benchmarks.distill --seeds 1 2 3 --out runs/distill --save benchmarks/results/distill.json

Every model is made by the example files of `distill/examples`, through the same functions as `ttc train run` and
`ttc distill run`. Each claim is a module with `measure(place)`; what was measured or made is not run again. Told per
claim: accuracy greedy and sampled (temperature 1) on held-out problems with 95 % intervals over problems, paired
differences, trained tokens, and CPU-seconds. Wall times, which the load of a machine changes, are not told.
"""
