"""Values for the memory that a model takes, device by device: predicted by a dry run, or as it is.

All sizes are bytes.
"""

from __future__ import annotations

import attrs

MIB = 1 << 20


@attrs.frozen(kw_only=True)
class DeviceNeed:
    """The bytes that one device holds once the model is loaded; all fields of one device can be
    added up.

    Args:
      name: llama.cpp's: ``CPU``, ``CUDA0``, ``RPC0[host:port]``. ``CPU`` is the memory of the host.
      kind: ``cpu``, ``gpu``, ``igpu`` (shares the host's memory), ``accel`` or ``meta``.
      free, total: of the device when it was asked, ``ggml_backend_dev_memory``; both 0 where the
        device does not report them. Free of the CPU is what its control group leaves it.
      weights: tensors of the model that live here.
      kv: KV cache, and the states of recurrent layers.
      compute: scratch of a pass.
      embedding: cache and scratch of the second context, that embeds.
      projection: weights and scratch of the multimodal projection.
      draft: weights, cache and scratch of the draft model.
      lora: adapters.
      correction: what former loads took beyond their prediction: of a GPU its driver's share.
    """

    name: str
    description: str = ""
    kind: str = "cpu"
    free: int = 0
    total: int = 0
    weights: int = 0
    kv: int = 0
    compute: int = 0
    embedding: int = 0
    projection: int = 0
    draft: int = 0
    lora: int = 0
    correction: int = 0

    @property
    def needed(self) -> int:
        """Everything together."""
        parts = (self.weights, self.kv, self.compute, self.embedding, self.projection)
        return sum(parts) + self.draft + self.lora + self.correction


@attrs.frozen(kw_only=True)
class HostNeed:
    """The bytes that the engine's process takes of the host's memory beside llama.cpp's buffers.

    Args:
      process: Python, the libraries, the vocabulary and the tables made of it.
      cells: llama.cpp's notes of the KV cells.
      outputs: logits and embeddings of a pass, where samplers and we read them.
      prefixes: the limit of the prefix cache in host memory; taken as it fills.
      images: the limit of the cache of encoded images; taken as it fills.
      correction: what former loads took beyond their prediction.
    """

    process: int = 0
    cells: int = 0
    outputs: int = 0
    prefixes: int = 0
    images: int = 0
    correction: int = 0

    @property
    def needed(self) -> int:
        """Everything together."""
        filled_later = self.prefixes + self.images
        return self.process + self.cells + self.outputs + filled_later + self.correction


@attrs.frozen(kw_only=True)
class MemoryNeed:
    """The memory that a model takes with the parameters it was asked about.

    Args:
      devices: the CPU first, then the others as llama.cpp orders them; those that hold nothing
        are among them.
      host: beside the buffers of the device ``CPU``.
      architecture: ``general.architecture`` of the model's file.
      n_layers: repeating layers; ``n_gpu_layers`` goes up to one more, the output layer.
      n_ctx_train: tokens of context the model was trained with.
      n_ctx: tokens of context of all slots together, as llama.cpp rounded it; 0 for an encoder.
      n_ctx_slot: KV cells of one slot, in tokens; 0 for an encoder.
      n_vocab: tokens of the vocabulary.
      file_bytes: of all files of the model together, the projection excepted.
      is_extrapolated: the recurrent states of all slots were too large to try: computed for fewer
        slots and continued in a straight line.
      embedding_problem, projection_problem: why the model would be loaded without it; empty if it
        was not asked for or works.
    """

    devices: tuple[DeviceNeed, ...]
    host: HostNeed
    architecture: str
    n_layers: int
    n_ctx_train: int
    n_ctx: int
    n_ctx_slot: int
    n_vocab: int
    file_bytes: int
    is_extrapolated: bool = False
    embedding_problem: str = ""
    projection_problem: str = ""

    def __repr__(self) -> str:
        parts = [(device.name, device.needed) for device in self.devices]
        sizes = ", ".join(
            f"{name} {size // MIB} MiB" for name, size in [*parts, ("host", self.host.needed)]
        )
        return f"<MemoryNeed {self.architecture}: {sizes}>"

    @property
    def host_needed(self) -> int:
        """Bytes of the host's memory: the buffers of the device ``CPU`` and what comes beside
        them."""
        return self.host.needed + sum(d.needed for d in self.devices if d.kind == "cpu")


@attrs.frozen(kw_only=True)
class MemoryUse:
    """The memory that a loaded engine really holds, when its first pass was computed.

    Args:
      devices: llama.cpp's buffers as they were allocated; ``projection`` and ``lora`` are not
        counted, and ``free`` is what is free now.
      taken: how much less is free than before the model was loaded, by device; only of devices
        that report it, and whatever other processes did meanwhile is in it.
      resident: memory of the process, in bytes, without mapped files.
      mapped: pages of files, mapped since the model was loaded, that are in memory: weights.
    """

    devices: tuple[DeviceNeed, ...]
    taken: dict[str, int]
    resident: int
    mapped: int
