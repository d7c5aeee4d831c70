"""SGLang itself on a CPU, behind stand-ins for its GPU libraries: `bash benchmarks/sglang_cpu/run.sh`."""
