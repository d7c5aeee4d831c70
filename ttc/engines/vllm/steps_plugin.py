"""A plugin of a vLLM server: token-wise pooling that reads the prefix cache, for reward models that score steps.

    vllm serve MODEL --runner pooling --pooler-config '{"tok_pooling_type": "ALL"}' --io-processor-plugin ttc_steps

vLLM leaves its prefix cache unread when every token is pooled, since a reply then lacks the rows of the cached tokens,
and its HTTP interface has no switch for that. This IO processor is the switch: `POST /pooling` with
`{"task": "plugin", "data": {"ids": [int]}}` is answered by `{"data": {"rows": [[float, per label]], "cached": int}}`,
the raw outputs of the head for the tokens behind the `cached` ones. Found by the entry point `ttc_steps` of the group
`vllm.io_processor_plugins`; on the server's machine `pip install --no-deps` of this package is enough. It is an IO
processor by shape, not by inheritance, so that this file needs no vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttc.engines.vllm.start import pooling_params


def steps_processor() -> str:
    """Return the name of the class, as vLLM expects from a plugin."""
    return f"{__name__}.{StepsProcessor.__name__}"


class StepsProcessor:
    """Takes ids, returns rows of the tokens after the cached part."""

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        """Accept vLLM's arguments; neither is used."""

    def parse_data(self, data: Any) -> list[int]:
        """Check a request; vLLM answers ValueError with status 400."""
        ids = data.get("ids") if isinstance(data, dict) else None
        if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
            raise ValueError('data must be {"ids": [int, ...]}, the tokens of a path')
        return ids

    def merge_pooling_params(self, params: Any = None) -> Any:
        """Request raw outputs for every token, and the prefix cache."""
        return pooling_params(task="token_classify", use_activation=False, skip_reading_prefix_cache=False)

    def pre_process(self, prompt: list[int], request_id: str | None = None, **rest: Any) -> dict[str, list[int]]:
        """The prompt as vLLM's argument."""
        return {"prompt_token_ids": prompt}

    def post_process(
        self, model_output: Sequence[Any], request_id: str | None = None, **rest: Any
    ) -> dict[str, list[list[float]] | int]:
        """Rows, and the number of tokens before them."""
        (output,) = model_output
        return {"rows": output.outputs.data.float().tolist(), "cached": int(output.num_cached_tokens)}
