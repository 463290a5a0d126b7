"""Our vLLM servers: final outputs only, the tokenizer they see can be asked for, and a CPU variant.

Extension point: `RolloutReplicaRegistry` (the trainer process asks it for "vllm"). Import `register` only; the classes are
made on demand, since importing vLLM is slow and needs its environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WORKER = "boostapr.verl_plugin.vllm_worker."


def register(device: str) -> None:
    """Make verl use our replica for rollout.name=vllm; `device` is "cpu" or "cuda"."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", lambda: _replica_class(device))


def _replica_class(device: str) -> type:
    import ray
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
    from vllm.sampling_params import RequestOutputKind

    from boostapr.tokens import encode_prompt

    class Server(vLLMHttpServer):
        def _get_worker_extension_cls(self) -> str:
            return _WORKER + ("CPUWorkerExtension" if device == "cpu" else "WorkerExtension")

        async def generate(
            self, prompt_ids: list[int], sampling_params: dict[str, Any], *args: Any, **kwargs: Any
        ) -> Any:
            # Without this vLLM hands over every new token on its own, and verl reads only the last output.
            final = {**sampling_params, "output_kind": RequestOutputKind.FINAL_ONLY}
            return await super().generate(prompt_ids, final, *args, **kwargs)

        async def encode_prompts(self, conversations: Sequence[list[dict[str, str]]]) -> list[list[int]]:
            """Prompt ids by the tokenizer that vLLM itself loaded, for the check at start-up."""
            tokenizer = self.engine.get_tokenizer()
            return [encode_prompt(tokenizer, messages) for messages in conversations]

    class Replica(vLLMReplica):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(Server)

    return Replica
