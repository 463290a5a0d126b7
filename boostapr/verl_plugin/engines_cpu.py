"""Training engines and workers for the CPU platform.

Extension points: `EngineRegistry` (verl registers its FSDP engines for cuda and npu only) and a subclass of verl's
`TrainingWorker`, which the trainer puts into its role mapping.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine_workers import TrainingWorker

from boostapr.verl_plugin.session import TRAINER_THREADS
from boostapr.verl_plugin.workers import PolicyWorker


class SortedMicroBatches(FSDPEngine):
    """Micro-batches of rows of about the same length, a third less work: without flash attention rows are padded.

    Losses and gradients are sums over a mini-batch with its own denominator, so the order does not matter to them.
    """

    def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        order = torch.argsort(data["input_ids"].offsets().diff())
        output: Any = super().forward_backward_batch(
            tu.index_select_tensor_dict(data, order), loss_function, forward_only
        )
        for name, rows in output["model_output"].items():
            output["model_output"][name] = restore_order(rows, order)
        return output


def restore_order(rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Put rows back: row i of the nested tensor `rows` belongs at place order[i]."""
    back = torch.argsort(order).tolist()
    parts = rows.unbind()
    return torch.nested.as_nested_tensor([parts[i] for i in back], layout=torch.jagged)


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class CPUEngineWithLMHead(SortedMicroBatches, FSDPEngineWithLMHead):
    """The policy and its frozen reference."""

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Log-probabilities and entropies of all tokens in one pass: without flash attention verl takes them one by one,
        which is most of a step. What only other algorithms ask for is left to verl."""
        extras = ("calculate_sum_pi_squared", "distillation_use_topk", "distillation_only", "use_fused_kernels")
        if any(tu.get_non_tensor_data(micro_batch, name, False) for name in extras):
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        offsets = micro_batch["input_ids"].offsets()
        logits = output.logits / output_args["temperature"][:, None, None]
        logits = torch.cat([row[:length] for row, length in zip(logits, offsets.diff().tolist(), strict=True)])
        log_p = torch.log_softmax(logits, dim=-1)
        found = {"log_probs": log_p.gather(-1, output_args["input_ids_rmpad_rolled"][:, None])[:, 0]}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            found["entropy"] = -(log_p.exp() * log_p).sum(-1)
        return {name: torch.nested.nested_tensor_from_jagged(values, offsets) for name, values in found.items()}

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        if not self.engine_config.forward_only:
            return super()._build_fsdp_module(module)
        # verl wraps a separate reference with CPUOffloadPolicy(pin_memory=True), which needs an accelerator. It never
        # trains, so it needs no wrapping at all.
        precision = self.engine_config.mixed_precision
        self._autocast_dtype = PrecisionType.to_dtype(precision["param_dtype"]) if precision else torch.bfloat16
        self.scaler = None
        return module


@EngineRegistry.register(model_type="value_model", backend=["fsdp2"], device="cpu")
class CPUEngineWithValueHead(SortedMicroBatches, FSDPEngineWithValueHead):
    """The critic. verl.utils.model.load_valuehead_model insists on flash attention, which a CPU does not have."""

    def _build_module(self) -> torch.nn.Module:
        from transformers import AutoModelForTokenClassification

        config = self.model_config.hf_config
        config.num_labels, config.classifier_dropout = 1, 0.0
        config.hidden_dropout, config.summary_dropout_prob = "0", 0.0
        dtype = PrecisionType.to_dtype(self.engine_config.model_dtype or torch.float32)
        module: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
            str(self.model_config.local_path),
            dtype=dtype,
            config=config,
            attn_implementation=self.model_config.override_config.get("attn_implementation", "sdpa"),
            trust_remote_code=self.model_config.trust_remote_code,
        )
        return module.to(dtype)


class CPUTrainingWorker(TrainingWorker):
    """Starts torch.distributed with plain gloo: verl would ask for "cpu:gloo,cpu:gloo", which torch refuses."""

    def __init__(self, config: Any) -> None:
        if TRAINER_THREADS in os.environ:
            torch.set_num_threads(int(os.environ[TRAINER_THREADS]))
        initialize_global_process_group_ray(backend="cpu:gloo")  # verl skips its own call when a group exists
        super().__init__(config)


class CPUPolicyWorker(PolicyWorker):
    """Actor, rollout adapter and reference in one process."""

    actor_worker_cls = CPUTrainingWorker
    ref_worker_cls = CPUTrainingWorker
