"""Claims about distillation on the packaged family: one claim per file, three seeds, a CPU.

    python -m benchmarks.distill --seeds 1 2 3 --out runs/distill --save benchmarks/results/distill.json

Every model is made by the example files of `distill/examples`, through the same functions as `ttc train run` and `ttc
distill run`. Each claim is a module with `measure(place)`; existing models and results are not made again. Reported per
claim: accuracy greedy and sampled (temperature 1) on held-out problems with 95 % intervals over problems, paired
differences, trained tokens, and CPU-seconds. Wall times are not reported, since they depend on the load of the machine.
"""
