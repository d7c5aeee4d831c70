"""optillm: its proxy in front of the server, used by a client of OpenAI's API."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from benchmarks.peers.clients import kit

PORT = 8139
APPROACHES = {"majority": "majority_voting", "best_of_n": "bon"}


def prepare(job: dict[str, Any], tally: kit.Tally) -> Callable[[], list[str]]:
    """Start the proxy and wait for it."""
    import openai

    port = str(job.get("proxy_port", PORT))
    command = [sys.executable, "-c", "import optillm.server as s; s.main()"]
    proxy = subprocess.Popen(
        [*command, "--port", port, "--base-url", job["url"] + "/v1", "--log", "error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(f"http://127.0.0.1:{port}/health", proxy)
    # user's code
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=600)

    def solve(question: str) -> str:
        reply = client.chat.completions.create(
            model=f"{APPROACHES[job['algorithm']]}-{job['model']}",
            messages=[{"role": "user", "content": question}],
            temperature=job["temperature"],
            max_tokens=job["max_tokens"],
            extra_body={"k": job["n"]},
        )
        tally.add(generated=reply.usage.completion_tokens or None, prompt=reply.usage.prompt_tokens or None)
        return reply.choices[0].message.content or ""

    # end of user's code

    def one(question: str) -> str:
        try:
            return solve(question)
        except openai.OpenAIError as exc:
            return tally.fail(exc)

    def run() -> list[str]:
        with concurrent.futures.ThreadPoolExecutor(job["concurrency"]) as pool:
            texts = list(pool.map(one, [row["question"] for row in job["problems"]]))
        proxy.terminate()
        proxy.wait()
        return texts

    return run


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when `url` answers; raises RuntimeError when the process ends before."""
    while process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"the proxy ended with {process.returncode}")


if __name__ == "__main__":
    kit.main(prepare)
