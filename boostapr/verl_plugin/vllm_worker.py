"""What runs inside vLLM's worker process: verl's weight receiver, with our address and, on a CPU, loadable weights.

Extension point: `vLLMHttpServer._get_worker_extension_cls`. vLLM mixes the class into its own worker.
"""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from boostapr.verl_plugin.session import run_id


class WorkerExtension(vLLMColocateWorkerExtension):
    """verl names the weight socket after the Ray job id, which is the same in every private Ray cluster: two runs on one
    machine would send each other their weights."""

    def _get_zmq_handle(self) -> str:
        return own_socket(super()._get_zmq_handle())


class CPUWorkerExtension(WorkerExtension):
    """vLLM prepacks linear layers with oneDNN and throws the weights away, so none could ever be loaded into them. Without
    oneDNN the same code path calls torch's linear and leaves the weights in place."""

    def __new__(cls, **kwargs: Any) -> CPUWorkerExtension:
        import vllm._custom_ops as ops

        ops._supports_onednn = False
        instance: CPUWorkerExtension = super().__new__(cls, **kwargs)
        return instance


def own_socket(handle: str) -> str:
    """verl's socket address with this run's id in it; both ends must use it."""
    return handle.replace("rl-colocate-zmq-", f"rl-colocate-zmq-{run_id()}-")
