"""The worker that holds the policy. Extension point: a subclass of verl's `ActorRolloutRefWorker` in the trainer's role mapping."""

from __future__ import annotations

from typing import Any

from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from boostapr.verl_plugin.vllm_worker import own_socket


class PolicyWorker(ActorRolloutRefWorker):
    """Sends weights to vLLM through a socket that no other run on this machine uses (see `vllm_worker.WorkerExtension`)."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[attr-defined]  # verl adds its members at run time
    def init_model(self) -> None:
        super().init_model()
        if self.rollout is not None:
            adapter: Any = self.rollout  # vLLM's adapter; the base class knows no sockets
            adapter.zmq_handle = own_socket(adapter.zmq_handle)
