"""The answer to a question whether a model fits, from what was found out."""

from __future__ import annotations

from collections.abc import Mapping

from paddler_trio.agent.model.model_fit import OF_HOST, Judged
from paddler_trio.scheduler.fit.fit_suggestions import Suggestion
from paddler_trio.scheduler.fit.fit_values import HOST, Room, slot_context
from paddler_trio.wire.engine.memory_need import DeviceNeed, MemoryNeed
from paddler_trio.wire.trio.fit_messages import DeviceFit, FitOption, FitReport


def fit_report(judged: Judged, *, beside: bool | None = None) -> FitReport:
    """Return everything about the verdict; ``beside``: see :class:`FitReport`."""
    verdict, need = judged.verdict, judged.need
    unknown = [
        device
        for device, needed in verdict.need.bytes_by_device.items()
        if needed and (device not in judged.rooms or judged.rooms[device].available_bytes is None)
    ]
    fits: bool | None = verdict.fits
    problem = None if verdict.fits else judged.words
    if verdict.fits and unknown:
        fits, problem = None, f"it is not known how much memory is free on {', '.join(unknown)}"
    shape = verdict.shape
    return FitReport(
        fits=fits,
        problem=problem,
        architecture=need.architecture,
        file_bytes=need.file_bytes,
        context_size=shape.context_size,
        n_ctx_train=need.n_ctx_train,
        slots=shape.slots,
        n_gpu_layers=shape.n_gpu_layers,
        n_layers=verdict.need.n_layers,
        k_cache_dtype=shape.k_cache_dtype,
        v_cache_dtype=shape.v_cache_dtype,
        chosen=judged.chosen,
        devices=_devices(need, verdict.need.bytes_by_device, judged.rooms),
        options=tuple(map(_option, judged.suggestions)),
        beside=beside,
        slot_context=slot_context(
            shape.context_size, slots=shape.slots, is_unified=judged.load.settings.unified
        ),
    )


def _devices(
    need: MemoryNeed, needed: Mapping[str, int], rooms: Mapping[str, Room]
) -> tuple[DeviceFit, ...]:
    hosts = [device for device in need.devices if device.kind in OF_HOST]
    others = [device for device in need.devices if device.kind not in OF_HOST]
    return (
        _device(HOST, hosts, needed[HOST], rooms.get(HOST)),
        *(_device(each.name, [each], needed[each.name], rooms.get(each.name)) for each in others),
    )


def _device(name: str, parts: list[DeviceNeed], needed: int, room: Room | None) -> DeviceFit:
    def total(field: str) -> int:
        return sum(getattr(part, field) for part in parts)

    named = {field: total(field) for field in ("weights", "kv", "compute", "projection", "draft")}
    return DeviceFit(
        device=name,
        **named,
        other=max(0, needed - sum(named.values())),
        needed=needed,
        total=room.total_bytes or None if room is not None else None,
        free_now=None if room is None else room.free_bytes,
        free_after=None if room is None else room.free_after_bytes,
        reserve=0 if room is None else room.reserve_bytes,
        limit=None if room is None else room.limit_bytes,
        available=None if room is None else room.available_bytes,
    )


def _option(suggestion: Suggestion) -> FitOption:
    shape = suggestion.shape
    return FitOption(
        changes=tuple(change.value for change in suggestion.changes),
        context_size=shape.context_size,
        slots=shape.slots,
        n_gpu_layers=shape.n_gpu_layers,
        k_cache_dtype=shape.k_cache_dtype,
        v_cache_dtype=shape.v_cache_dtype,
    )
