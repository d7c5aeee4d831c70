"""Reward models run by vLLM in this process, with its prefix cache.

Label models are read token by token (`token_classify` with ALL pooling). For these vLLM does not use its prefix cache
unless the request asks for it; ours does, and so gets rows for the new tokens only, which include the new step's. Token
models run as language models: one token is requested at the end of a step, with the log-probabilities of the good and
the bad one. Either way a step costs its own tokens and those of its last incomplete cache block: with blocks of 32 (a
CPU) 15.5 tokens more on average, of 16 (a GPU) 7.5. Left out: heads that vLLM does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any, TypeAlias

from ttc.core import Usage, UsageSink
from ttc.engines.shared.shape import Dims, read_config
from ttc.engines.vllm.options import VllmOptions
from ttc.engines.vllm.start import pooling_params, sampling_params, start_offline
from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.backends import InVllm
from ttc.scorers.reward_models.batching import Batcher, WorkItem
from ttc.scorers.reward_models.layouts import ModelInput, OwnText, RewardTokenizer
from ttc.scorers.reward_models.recall import Backend, Blocks, RecallScorer


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Read the positions `reads` of `ids`."""

    ids: tuple[int, ...]
    reads: tuple[int, ...]


ReadResult: TypeAlias = tuple[dict[int, float], int]
"""The result of one request: scores by position, and the number of cached tokens."""


class VllmBackend(Backend):
    """One `LLM` of vLLM, stepped by one worker thread."""

    def __init__(self, folder: Path, adapter: Adapter, options: VllmOptions, tokens: RewardTokenizer) -> None:
        self._adapter = adapter
        label = adapter.kind == "label"
        dims = Dims.from_config(read_config(folder))
        self._shape = dims.model_shape(2 if label else dims.vocab)
        self._pair = () if label else (tokens.single("good", adapter.good), tokens.single("bad", adapter.bad))
        self._batcher: Batcher[ReadRequest, list[float]] = Batcher("prm", self._compute)
        self._llm: Any = self._batcher.now(lambda: start_offline(folder, options, pooling=label))
        # a token model needs room for the generated token
        self.max_context = int(self._llm.llm_engine.model_config.max_model_len) - (not label)
        self.blocks = Blocks(int(self._llm.llm_engine.vllm_config.cache_config.block_size))

    def cost(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """See `Backend`."""
        count = self.blocks.one_by_one if self._pair else self.blocks.from_the_end
        return count(problem_id, ids, reads)

    async def read(
        self, problem_id: str, model_input: ModelInput, reads: Sequence[int], on_usage: UsageSink
    ) -> list[float]:
        """See `Backend`."""
        values = (await self._batcher.submit([ReadRequest(model_input.ids, tuple(reads))], on_usage))[0]
        self.blocks.send(problem_id, model_input.ids[: reads[-1] + 1])
        return values

    def _compute(self, batch: list[WorkItem[ReadRequest, list[float]]]) -> None:
        values_of: list[dict[int, float]] = [{} for _ in batch]
        while waiting := [
            (at, ends_of) for at, job in enumerate(batch) if (ends_of := self._next(job.item, values_of[at]))
        ]:
            requests = [(at, batch[at].item.ids[: end + 1]) for at, ends in waiting for end in ends]
            answers = self._ask([ids for _, ids in requests])
            for (at, ids), (values, cached) in zip(requests, answers, strict=True):
                new = len(ids) - cached
                batch[at].report(Usage(scored=new, flops=self._shape.flops(new, cached)))
                values_of[at].update(values)
        for job, values in zip(batch, values_of, strict=True):
            job.finish([values[read] for read in job.item.reads])

    def _next(self, question: ReadRequest, told: dict[int, float]) -> list[int]:
        """Ends of the requests to send: a pooled request returns all steps after the cached part, others one step."""
        missing = [read for read in question.reads if read not in told]
        return missing if self._pair else missing[-1:]

    def _ask(self, prompts: Sequence[tuple[int, ...]]) -> list[ReadResult]:
        inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
        return self._ask_tokens(inputs) if self._pair else self._ask_labels(inputs)

    def _ask_tokens(self, inputs: Sequence[dict[str, list[int]]]) -> list[ReadResult]:
        fields = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
        params = [sampling_params(False, logprob_token_ids=list(self._pair), **fields) for _ in inputs]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        results = []
        for request, output in zip(inputs, outputs, strict=True):
            good, bad = (output.outputs[0].logprobs[0][token].logprob for token in self._pair)
            end = len(request["prompt_token_ids"]) - 1
            results.append(({end: 1 / (1 + exp(bad - good))}, output.num_cached_tokens))
        return results

    def _ask_labels(self, inputs: Sequence[dict[str, list[int]]]) -> list[ReadResult]:
        from ttc.scorers.reward_models.embedded import probability

        params = [pooling_params(skip_reading_prefix_cache=False, use_activation=False) for _ in inputs]
        outputs = self._llm.encode(inputs, params, pooling_task="token_classify", use_tqdm=False)
        results = []
        for request, output in zip(inputs, outputs, strict=True):
            values = probability(output.outputs.data.float(), self._adapter.positive_label, self._adapter.activation)
            start = len(request["prompt_token_ids"]) - len(values)
            results.append((dict(enumerate(values.tolist(), start)), output.num_cached_tokens))
        return results


def vllm_scorer(folder: Path, adapter: Adapter, place: InVllm, step_delimiter: str | None) -> RecallScorer:
    """Load a reward model into vLLM.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: vLLM has no code for its head, or refuses an option.
        EngineError: vLLM did not start.
    """
    if adapter.vllm is None:
        raise ConfigError(f"vLLM has no code for the head of {adapter.name}: use backend=embedded")
    tokens = RewardTokenizer(folder)
    layout = OwnText(adapter, tokens, step_delimiter or adapter.step_delimiter)
    options = VllmOptions(
        dtype=place.dtype,
        max_context=place.max_context,
        kv_cache_bytes=place.kv_cache_bytes,
        gpu_memory_utilization=place.gpu_memory_utilization,
        threads=place.threads,
    )
    return RecallScorer(VllmBackend(folder, adapter, options, tokens), layout, aggregation=adapter.aggregation)
