"""Effects of test-time compute on the simulated reasoner, one file each; run by `benchmarks.simulated_effects`."""
