"""The chain on a public model: SmolLM2-135M-Instruct on Countdown, stage by stage.

    python -m benchmarks.chain sft --base build/smollm2 --out runs/chain --seed 1
    python -m benchmarks.chain all --base build/smollm2 --out runs/chain --seed 1 --part test

`PLAN.md` has the claims; it was written before any test problem was sampled. A stage is one command of the toolkit with
a recipe or a spec of this folder; running it again resumes it. The outputs of a stage are in
`benchmarks/results/chain`: its adapter, from which later stages can start on any machine, and a JSON file of its
numbers.
"""
