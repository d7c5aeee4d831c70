"""One chain on a public model that anyone recognises: SmolLM2-135M-Instruct on Countdown, stage by stage.

    python -m benchmarks.chain sft --base build/smollm2 --out runs/chain --seed 1
    python -m benchmarks.chain all --base build/smollm2 --out runs/chain --seed 1 --part test

`PLAN.md` says what is claimed; it was written before any test problem was drawn. A stage is one command of the toolkit
with a recipe or a spec of this folder, and runs again to resume. What a stage makes stands in
`benchmarks/results/chain`: its adapter, from which later stages go on on any machine, and a JSON file of its numbers.
"""
