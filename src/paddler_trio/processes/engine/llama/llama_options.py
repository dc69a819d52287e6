"""The operator's engine settings in llama.cpp's structures; what a build lacks is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.ggml import ggml_function
from paddler_trio.processes.engine.rpc.rpc_devices import add_rpc_servers
from paddler_trio.processes.engine.rpc.rpc_sockets import watch_connections
from paddler_trio.system.llama_library import lib
from paddler_trio.wire.engine.engine_settings import EngineSettings

FLASH_ATTENTION = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
SPLIT_MODES = {
    "none": lib.LLAMA_SPLIT_MODE_NONE,
    "layer": lib.LLAMA_SPLIT_MODE_LAYER,
    "row": lib.LLAMA_SPLIT_MODE_ROW,
}
ROPE_SCALING = {
    "": lib.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    "none": lib.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": lib.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": lib.LLAMA_ROPE_SCALING_TYPE_YARN,
    "longrope": lib.LLAMA_ROPE_SCALING_TYPE_LONGROPE,
}
LOAD_MODES = {
    (True, False): lib.LLAMA_LOAD_MODE_AUTO,  # mapped, unless a device cannot take that
    (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
    (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
    (False, False): lib.LLAMA_LOAD_MODE_NONE,
}
"""The modes by ``use_mmap`` and ``use_mlock``."""
_ALL_LAYERS = 0x7FFFFFFF


class _BufferOverride(ctypes.Structure):
    """llama.cpp's ``llama_model_tensor_buft_override``."""

    _fields_ = [  # type: ignore[mutable-override]
        ("pattern", ctypes.c_char_p),
        ("buffer_type", ctypes.c_void_p),
    ]


def set_context_options(params: lib.llama_context_params, settings: EngineSettings) -> None:
    """Write what concerns a context into ``params``; EngineError (permanent) for a bad name."""
    params.flash_attn_type = _choice("flash_attention", settings.flash_attention, FLASH_ATTENTION)
    params.rope_scaling_type = _choice("rope_scaling", settings.rope_scaling, ROPE_SCALING)
    params.rope_freq_base = settings.rope_freq_base
    params.rope_freq_scale = settings.rope_freq_scale
    params.yarn_ext_factor = settings.yarn_ext_factor
    params.yarn_attn_factor = settings.yarn_attn_factor
    params.yarn_beta_fast = settings.yarn_beta_fast
    params.yarn_beta_slow = settings.yarn_beta_slow
    params.yarn_orig_ctx = settings.yarn_orig_ctx
    params.offload_kqv = settings.offload_kqv
    params.swa_full = settings.swa_full


@contextmanager
def model_params(
    settings: EngineSettings, *, n_gpu_layers: int, no_alloc: bool = False
) -> Iterator[lib.llama_model_params]:
    """Yield parameters to load a model with, alive inside the block; EngineError (permanent) for
    what this build or machine cannot do. ``no_alloc``: for a dry run, that reads no weights."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers if n_gpu_layers >= 0 else _ALL_LAYERS
    params.split_mode = _choice("split_mode", settings.split_mode, SPLIT_MODES)
    params.main_gpu = settings.main_gpu
    if settings.use_mlock and not lib.llama_supports_mlock():
        raise EngineError("mlock: this build of llama.cpp cannot lock memory", permanent=True)
    params.load_mode = LOAD_MODES[settings.use_mmap, settings.use_mlock]
    if no_alloc:
        params.no_alloc = True
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE  # with a mapping llama.cpp aborts
    split = _tensor_split(settings)
    if split is not None:
        params.tensor_split = split
    if settings.rpc:
        add_rpc_servers(settings.rpc, n_gpu_layers=n_gpu_layers)
    overrides = _tensor_overrides(settings)  # may name buffers of RPC servers
    if overrides is not None:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    yield params
    del split, overrides  # llama.cpp read them while it loaded
    if settings.rpc:
        watch_connections()  # it made them while it loaded


def _tensor_split(settings: EngineSettings) -> ctypes.Array[ctypes.c_float] | None:
    if not settings.tensor_split:
        return None
    limit = lib.llama_max_devices()
    if len(settings.tensor_split) > limit:
        raise EngineError(
            f"tensor_split has {len(settings.tensor_split)} parts, llama.cpp takes {limit}",
            permanent=True,
        )
    parts: ctypes.Array[ctypes.c_float] = (ctypes.c_float * limit)(*settings.tensor_split)
    return parts


def _tensor_overrides(settings: EngineSettings) -> ctypes.Array[_BufferOverride] | None:
    """Return ``PATTERN=BUFFER`` pairs as llama.cpp takes them, ended by an empty one."""
    if not settings.tensor_overrides:
        return None
    buffers = _buffer_types()
    array = (_BufferOverride * (len(settings.tensor_overrides) + 1))()
    for entry, text in zip(array, settings.tensor_overrides, strict=False):
        pattern, _, buffer = text.rpartition("=")
        if buffer not in buffers or not pattern:
            raise EngineError(
                f"tensor override {text!r}: write PATTERN=BUFFER with one of the buffers "
                f"{', '.join(sorted(buffers))}",
                permanent=True,
            )
        entry.pattern = pattern.encode()
        entry.buffer_type = buffers[buffer]
    return array


def _buffer_types() -> dict[str, int]:
    """Return where tensors can live on this machine, by name."""
    count = ggml_function("ggml_backend_dev_count", result=ctypes.c_size_t)
    found: dict[str, int] = {}
    name_of = ggml_function("ggml_backend_buft_name", ctypes.c_void_p, result=ctypes.c_char_p)
    get = ggml_function("ggml_backend_dev_get", ctypes.c_size_t)
    buffer_of = ggml_function("ggml_backend_dev_buffer_type", ctypes.c_void_p)
    for index in range(count()):
        buffer = buffer_of(get(index))
        if buffer:
            found[name_of(buffer).decode()] = buffer
    return found


def _choice(field: str, value: str, choices: dict[str, int]) -> int:
    if value not in choices:
        allowed = ", ".join(name for name in choices if name)
        raise EngineError(f"{field} is {value!r}, must be one of {allowed}", permanent=True)
    return choices[value]


CACHE_TYPES = {
    "F32": lib.GGML_TYPE_F32,
    "F16": lib.GGML_TYPE_F16,
    "BF16": 30,
    "Q8_0": lib.GGML_TYPE_Q8_0,
    "Q4_0": lib.GGML_TYPE_Q4_0,
    "Q4_1": lib.GGML_TYPE_Q4_1,
    "IQ4_NL": lib.GGML_TYPE_IQ4_NL,
    "Q5_0": lib.GGML_TYPE_Q5_0,
    "Q5_1": lib.GGML_TYPE_Q5_1,
}
