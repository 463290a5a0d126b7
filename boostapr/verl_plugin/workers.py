"""The worker that holds the policy. Extension point: a subclass of verl's `ActorRolloutRefWorker` in the trainer's role mapping."""

from __future__ import annotations

from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from boostapr.verl_plugin.vllm_worker import own_socket


class PolicyWorker(ActorRolloutRefWorker):
    """Sends weights to vLLM through a socket that no other run on this machine uses (see `vllm_worker.WorkerExtension`)."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        if self.rollout is not None:
            self.rollout.zmq_handle = own_socket(self.rollout.zmq_handle)
