#!/usr/bin/env bash
# Checks the openai engine against llama.cpp's own server on a CPU. Opt-in: it downloads the source of llama-cpp-python
# (77 MB, which holds llama.cpp's), builds `llama-server` with cmake and a C++ compiler (ten minutes on two free cores),
# converts the model, then checks for a minute. Usage:
#   bash benchmarks/llamacpp/run.sh [MODEL_FOLDER [RESULT.json]]
# MODEL_FOLDER: the packaged teacher, or a small model that transformers can read. LLAMACPP_DIR keeps source and build
# (build/llamacpp); PYTHON is an environment of ours with the extras `local` and `dev`.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=${1:-ttc/nano/teacher}
result=${2:-}
work=${LLAMACPP_DIR:-build/llamacpp}
python=${PYTHON:-.venv/bin/python}
version=0.3.36
mkdir -p "$work"

if [ ! -x "$work/build/bin/llama-server" ]; then
  "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d "$work"
  tar -xzf "$work/llama_cpp_python-$version.tar.gz" -C "$work"
  rm -rf "$work/src"
  mv "$work/llama_cpp_python-$version/vendor/llama.cpp" "$work/src"
  cmake -S "$work/src" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_APP=OFF
  cmake --build "$work/build" --target llama-server --parallel "${JOBS:-2}"
fi
# A tokenizer that the converter does not know is written down as GPT-2's: the checks send and read ids.
sed -i 's/raise NotImplementedError("BPE pre-tokenizer was not recognized.*/res = "gpt-2"/' "$work/src/conversion/base.py"
file="$work/$(basename "$model").gguf"
if [ ! -e "$file" ]; then
  "$python" -m pip install --disable-pip-version-check --quiet --no-deps --target "$work/pip" sentencepiece==0.2.2
  PYTHONPATH="$work/pip" "$python" "$work/src/convert_hf_to_gguf.py" "$model" --outfile "$file" --outtype f32
fi

export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export PYTHONPATH="$PWD"
port=${PORT:-30124}
log=$(mktemp)
"$work/build/bin/llama-server" -m "$file" --host 127.0.0.1 --port "$port" -t 1 -c 8192 --metrics >"$log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
for _ in $(seq 150); do
  "$python" -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$port/health', timeout=2)" 2>/dev/null && break
  kill -0 $server 2>/dev/null || { tail -40 "$log"; exit 1; }
  sleep 1
done
"$python" -m benchmarks.llamacpp.check "$model" --url "http://127.0.0.1:$port" --version "llama-cpp-python $version" \
  ${result:+--out "$result"}
