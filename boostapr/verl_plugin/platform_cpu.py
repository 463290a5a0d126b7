"""A CPU platform for verl, which ships CUDA, ROCm and NPU only.

Extension point: `PlatformRegistry`. `import verl` loads this module in every process when the environment has
VERL_USE_EXTERNAL_MODULES=boostapr.verl_plugin.platform_cpu and VERL_PLATFORM=cpu (conf/verl/cpu.yaml). It must not
import anything else of verl: verl is half-way through its own import when it gets here.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _Stream:
    """A CPU has one queue of work, so nothing needs to wait for anything."""

    def synchronize(self) -> None: ...
    def wait_stream(self, other: object) -> None: ...
    def wait_event(self, event: object) -> None: ...
    def record_event(self, event: object = None) -> None: ...


class _CpuDevice(types.ModuleType):
    """The names of `torch.cuda` that verl calls through `get_torch_device()`, as no-ops."""

    def is_available(self) -> bool:
        return False  # "no accelerator": verl's memory helpers return early

    def is_initialized(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> str:
        return "cpu"

    def set_device(self, device: object) -> None: ...
    def synchronize(self, device: object = None) -> None: ...
    def empty_cache(self) -> None: ...
    def ipc_collect(self) -> None: ...

    def get_device_name(self, device: object = None) -> str:
        return "CPU"

    def get_device_capability(self, device: object = None) -> tuple[None, None]:
        return None, None

    def memory_allocated(self, device: object = None) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def reset_peak_memory_stats(self, device: object = None) -> None: ...
    def reset_accumulated_memory_stats(self, device: object = None) -> None: ...
    def set_per_process_memory_fraction(self, *args: object) -> None: ...

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def current_stream(self, device: object = None) -> _Stream:
        return _Stream()

    def Stream(self, *args: object, **kwargs: object) -> _Stream:  # torch.cuda's name
        return _Stream()

    def stream(self, stream: object) -> AbstractContextManager[None]:
        return nullcontext()


_DEVICE = _CpuDevice("boostapr_cpu_device")


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One logical device per process; collectives by gloo, weights to vLLM by shared memory."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _DEVICE

    def is_available(self) -> bool:
        return False

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never auto-detected: VERL_PLATFORM=cpu asks for it

    def current_device(self) -> Any:
        return "cpu"  # verl passes it to Tensor.to(...)

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...

    # Ray: a worker takes one of the *logical* GPUs of `ray.num_gpus`, so that verl's placement groups, its resource check
    # and get_accelerator_ids()["GPU"] work untouched.
    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights go to vLLM through shared memory

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def cudart(self) -> None:
        return None
