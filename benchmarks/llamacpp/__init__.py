"""llama.cpp's own server on a CPU, behind the openai engine: `bash benchmarks/llamacpp/run.sh`."""
