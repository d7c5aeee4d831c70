#!/usr/bin/env bash
# Runs clients of others against a real `ttc serve`, each in an environment of its own (about 1.5 GB, once).
#   run.sh BIN [NAME...]      BIN: the folder with this repository's own `ttc`; NAME: only these environments
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
bin="$(cd "$1" && pwd)"
shift
root="${CONFORMANCE_DIR:-$here/../../../build/conformance}"
mkdir -p "$root"
declare -A packages=(
  [openai2]="openai<3" [openai3]="openai>=3" [schemathesis]="schemathesis" [langchain]="langchain-tests langchain-openai"
  [litellm]="litellm" [lmeval]="lm_eval[api] transformers" [anthropic]="anthropic" [fuzz]="schemathesis" [agents]="openai-agents anthropic"
)
declare -A shares=([fuzz]=schemathesis)  # the environment of another
declare -A tests=(
  [openai2]="test_openai*.py" [openai3]="test_openai*.py" [schemathesis]="test_schema.py" [langchain]="test_langchain.py"
  [litellm]="test_litellm.py" [lmeval]="test_lm_eval.py" [anthropic]="test_anthropic.py"
  [fuzz]="test_schema.py" [agents]="test_agents.py"
)
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(openai2 openai3 anthropic agents langchain litellm lmeval schemathesis fuzz)

# Starts `ttc serve` with the given options, and waits until it listens.
start() {
  "$bin/ttc" serve --port 0 "$@" 2>"$log" &
  server=$!
  for _ in $(seq 300); do
    TTC_SERVE_URL="$(sed -n 's/.*"listening on \([^"]*\)".*/\1/p' "$log")"
    [ -n "$TTC_SERVE_URL" ] && break
    kill -0 $server || { cat "$log"; exit 1; }
    sleep 0.2
  done
  export TTC_SERVE_URL
}
stop() {
  kill -0 $server || { echo "the server died"; failed=1; }
  kill $server 2>/dev/null && wait $server 2>/dev/null || true
}
TTC_SERVE_TOKENIZER="$("$bin/python" -c 'from ttc import nano; print(nano.path("teacher"))')"
export TTC_SERVE_TOKENIZER
log="$(mktemp)"
server=
trap 'kill $server 2>/dev/null || true; rm -f "$log"' EXIT

failed=0
for name in "${names[@]}"; do
  compgen -G "$here/${tests[$name]}" >/dev/null || continue
  env="$root/${shares[$name]:-$name}"
  if [ ! -f "$env/.stamp" ]; then
    python3 -m venv "$env"
    # shellcheck disable=SC2086
    "$env/bin/pip" install --quiet --disable-pip-version-check ${packages[$name]} pytest pytest-asyncio
    touch "$env/.stamp"
  fi
  # Clients talk to the packaged model; thousands of made-up requests go to an engine that answers at once (schemathesis)
  # and, with few tokens each, to the packaged model (fuzz).
  options=(--set limits.default_max_tokens=512)
  [ "$name" = schemathesis ] && options=(--engine simulated --scorer simulated)
  [ "$name" = fuzz ] && options=(--set limits.default_max_tokens=12 --set limits.max_tokens=16 --set limits.max_width=16)
  start "${options[@]}"
  echo "== $name: $("$env/bin/pip" list 2>/dev/null | grep -iE '^(openai|openai-agents|anthropic|langchain-(tests|openai)|litellm|lm_eval|schemathesis) ' | tr -s ' ' | paste -sd, -)"
  # shellcheck disable=SC2086
  (cd "$root" && "$env/bin/python" -m pytest -c "$here/pytest.ini" -p no:cacheprovider "$here"/${tests[$name]}) || failed=1
  stop
done
exit $failed
