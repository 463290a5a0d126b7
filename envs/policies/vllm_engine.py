"""Responses from a model by offline vLLM, on CPU and GPU alike: what differs lies in conf/vllm/*.yaml.

Requests are batched continuously over the whole list and handed out as they finish, so that a kill loses no more than
what is being generated. Prompts are made here, as token ids; vLLM's own tokenizer must agree with those of training.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tqdm import tqdm

from boostapr.config import Settings
from boostapr.credit import token_bytes
from boostapr.errors import UserError
from boostapr.prompts import repair_messages
from boostapr.tokens import check_fingerprint, encode_prompt, has_fingerprint, read_fingerprint
from envs.policies import Finish, Request, Response, Sampling


class VLLMSettings(Settings):
    """The engine. None leaves a value to vLLM.

    max_model_len: prompt and response together, in tokens. max_num_batched_tokens: of one step. kv_cache_gb: GiB; None:
    what gpu_memory_utilization allows. num_threads: of torch in this process (CPU only). environment: variables that
    vLLM reads while it is imported.
    """

    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    max_model_len: int = Field(gt=1)
    max_num_seqs: int = Field(gt=0)
    max_num_batched_tokens: int = Field(gt=0)
    block_size: int | None = Field(gt=0)
    kv_cache_gb: float | None = Field(gt=0)
    gpu_memory_utilization: float | None = Field(gt=0, le=1)
    tensor_parallel_size: int = Field(gt=0)
    enforce_eager: bool
    num_threads: int | None = Field(gt=0)
    environment: dict[str, str]


class VLLMPolicy:
    """A model in an offline vLLM engine. Use as a context manager; one engine at a time in a process.

    Args:
        model: a Hugging Face folder or hub name.
        style, template: of the prompts (boostapr.prompts).
        seed: of the engine. There are no seeds per request: vLLM on CPU cannot (it crashes).
        progress: title of the progress bar.

    Raises:
        TokenMismatchError: vLLM would see other token ids than training did.
        UserError: vLLM cannot load the model.
    """

    def __init__(
        self, model: str | Path, settings: VLLMSettings, style: str, template: str, seed: int, progress: str
    ) -> None:
        os.environ.update(settings.environment)
        import torch
        from transformers import AutoTokenizer
        from vllm import LLM

        if settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        self._style, self._template, self._progress = style, template, progress
        self._max_model_len = settings.max_model_len
        try:
            self._llm: Any = LLM(model=str(model), seed=seed, **_engine_arguments(settings))
        except (OSError, ValueError) as error:
            raise UserError(f"vLLM cannot load {model}: {error}") from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(model))
            served = self._llm.get_tokenizer()
            if has_fingerprint(model):
                check_fingerprint(read_fingerprint(model), self._tokenizer, f"transformers' tokenizer for {model}")
                check_fingerprint(read_fingerprint(model), served, f"vLLM's tokenizer for {model}")
        except BaseException:
            self.close()
            raise

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[Request, list[Response]]]:
        """See `Policy`. A prompt that leaves no room in the context is answered by nothing ("prompt_too_long")."""
        engine, waiting = self._llm.llm_engine, {}
        with tqdm(total=sum(r.num_samples for r in requests), desc=self._progress, unit="response") as bar:
            for number, request in enumerate(requests):
                ids = self.prompt(request)
                if len(ids) >= self._max_model_len:
                    bar.update(request.num_samples)
                    yield request, [Response(b"", finish="prompt_too_long")] * request.num_samples
                    continue
                engine.add_request(
                    str(number), {"prompt_token_ids": ids}, self._parameters(request.sampling, request.num_samples)
                )
                waiting[str(number)] = request
            tokens = 0
            while engine.has_unfinished_requests():
                for output in engine.step():
                    request = waiting.pop(output.request_id)
                    tokens += sum(len(choice.token_ids) for choice in output.outputs)
                    bar.update(request.num_samples)
                    bar.set_postfix_str(f"{tokens / max(bar.format_dict['elapsed'], 1e-3):.0f} tokens/s", refresh=False)
                    yield request, [self._response(choice) for choice in output.outputs]

    def prompt(self, request: Request) -> list[int]:
        """Token ids of a request's prompt."""
        return encode_prompt(self._tokenizer, repair_messages(request.instance, self._style, self._template))

    def close(self) -> None:
        """Shut the engine down: its processes end and its memory is free when this returns."""
        from vllm.distributed import cleanup_dist_env_and_memory

        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
            gc.collect()
            cleanup_dist_env_and_memory()

    def __enter__(self) -> VLLMPolicy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _parameters(self, sampling: Sampling, num_samples: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=num_samples,
            temperature=sampling.temperature,
            top_p=sampling.top_p if sampling.temperature > 0 else 1.0,
            max_tokens=sampling.max_tokens,
            stop_token_ids=[self._tokenizer.eos_token_id],
            detokenize=False,  # the bytes come from the ids, below: decoding would lose those that are not UTF-8
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _response(self, choice: Any) -> Response:
        ids = list(choice.token_ids)
        finish: Finish = "stop" if choice.finish_reason == "stop" else "length"
        return Response(b"".join(token_bytes(self._tokenizer, ids)), len(ids), finish)


def _engine_arguments(settings: VLLMSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager,
        "enable_prefix_caching": True,  # the samples of an instance share its prompt
        "generation_config": "vllm",  # no sampling numbers from the model folder: ours are the only ones
    }
    optional = {
        "block_size": settings.block_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": None if settings.kv_cache_gb is None else int(settings.kv_cache_gb * 2**30),
    }
    return arguments | {name: value for name, value in optional.items() if value is not None}
