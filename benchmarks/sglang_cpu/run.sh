#!/usr/bin/env bash
# Checks the sglang engine against SGLang 0.5.23 itself, on a CPU, over HTTP and in process. Opt-in: about 4 GB of
# downloads into a virtual environment of its own, then some minutes on two cores. Usage:
#   bash benchmarks/sglang_cpu/run.sh [MODEL_FOLDER [RESULT.json]]
# MODEL_FOLDER: the packaged teacher, or a small Llama-like instruct model (see benchmarks/smollm2.py). SGLANG_VENV picks
# the environment, PYTHON the interpreter that makes it (3.11). COST=1 measures what the engine costs beside bare requests
# instead (cost.py, with COST_OPTIONS). On Linux, PyPI's torch is the CUDA build: set
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu for the first run.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=benchmarks/sglang_cpu
model=${1:-ttc/nano/teacher}
result=${2:-}
venv=${SGLANG_VENV:-.venv-sglang}
pip() { "$venv/bin/python" -m pip install --disable-pip-version-check --quiet "$@"; }

if [ ! -e "$venv/.stamp-sglang" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  pip torch==2.13.0 transformers==5.19.0
  # Without its dependencies: those pin CUDA builds. torch is named again so that nothing replaces it.
  pip --no-deps sglang==0.5.23 triton apache-tvm-ffi==0.1.11 xgrammar==0.2.7
  pip torch==2.13.0 transformers==5.19.0 -r "$here/requirements.txt"
  touch "$venv/.stamp-sglang"
fi

# One thread: torch's own threads fight over two cores. Compiling the sampler would need a C++ compiler.
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1
export SGLANG_USE_CPU_ENGINE=1 SGLANG_RETURN_ORIGINAL_LOGPROB=1
export PYTHONPATH="$PWD/$here/stubs:$PWD"
port=${PORT:-30123}
log=$(mktemp)
"$venv/bin/python" -m sglang.launch_server --model-path "$model" --host 127.0.0.1 --port "$port" --device cpu \
  --dtype float32 --attention-backend torch_native --disable-overlap-schedule --disable-cuda-graph \
  --enable-deterministic-inference --max-total-tokens 20000 --mem-fraction-static 0.8 --enable-metrics \
  --log-level warning >"$log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
for _ in $(seq 150); do
  "$venv/bin/python" -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$port/ready', timeout=2)" 2>/dev/null && break
  kill -0 $server 2>/dev/null || { tail -40 "$log"; exit 1; }
  sleep 2
done
if [ -n "${COST:-}" ]; then
  # shellcheck disable=SC2086
  "$venv/bin/python" -m benchmarks.sglang_cpu.cost "$model" --url "http://127.0.0.1:$port" ${result:+--out "$result"} \
    ${COST_OPTIONS:-}
  exit
fi
failed=0
"$venv/bin/python" -m benchmarks.sglang_cpu.check "$model" --url "http://127.0.0.1:$port" ${result:+--out "$result"} || failed=1
kill $server
wait $server 2>/dev/null || true
"$venv/bin/python" -m benchmarks.sglang_cpu.check "$model" ${result:+--out "$result"} || failed=1
exit $failed
