import { formatBytes, formatCount, plural } from "../../core/format";
import type { AgentMemory, DeviceMemory, EngineStats } from "../../types";
import { Meter, type Segment } from "../../ui";

/** The cells of the KV cache: those of running requests, those kept as prefixes, the free ones. */
export function CacheMeter({ engine }: { engine: Partial<EngineStats> | null }) {
  const total = engine?.cells_total ?? 0;
  if (!engine || total === 0) {
    return null;
  }
  const resident = engine.cells_resident ?? 0;
  const used = Math.max(0, (engine.cells_used ?? 0) - resident);
  const free = Math.max(0, total - used - resident);
  const segments: Segment[] = [
    { label: "running", value: used, text: formatCount(used), color: "--c-kv" },
    { label: "prefixes", value: resident, text: formatCount(resident), color: "--c-resident" },
    { label: "free", value: free, text: formatCount(free), color: "--c-free" },
  ];
  return (
    <div class="memory">
      <p>
        <span>KV cache</span>
        <span>
          <b>{formatCount(total)}</b> tokens
        </span>
      </p>
      <Meter label="KV cache in tokens" segments={segments} max={total} legend />
    </div>
  );
}

/** What the model takes on each device; no more than `limit` of them. */
export function MemoryMeters({ memory, limit }: { memory: AgentMemory | null; limit: number }) {
  const devices = (memory?.devices ?? []).filter((device) => (device.actual ?? device.predicted ?? 0) > 0);
  return (
    <>
      {memory?.slot_context ? (
        <p class="slot-context">
          <b>{memory.slot_context.toLocaleString("en")}</b> tokens a slot
        </p>
      ) : null}
      {devices.slice(0, limit).map((device) => (
        <DeviceMeter key={device.device} device={device} />
      ))}
      {devices.length > limit ? <p class="more-devices">and {plural(devices.length - limit, "more device")}</p> : null}
    </>
  );
}

function DeviceMeter({ device }: { device: DeviceMemory }) {
  const taken = device.actual ?? device.predicted ?? 0;
  const { weights = 0, kv = 0, compute = 0, free } = device;
  const parts: Segment[] = [
    { label: "weights", value: weights, color: "--c-weights" },
    { label: "KV", value: kv, color: "--c-kv" },
    { label: "compute", value: compute, color: "--c-prefill" },
  ].filter((part) => part.value > 0);
  const rest = taken - parts.reduce((sum, part) => sum + part.value, 0);
  if (rest > taken / 100) {
    parts.push({ label: parts.length ? "other" : "model", value: rest, color: parts.length ? "--c-stop" : "--c-weights" });
  }
  if (free !== undefined && free !== null) {
    parts.push({ label: "free", value: free, color: "--c-free" });
  }
  const predicted = device.predicted !== null && device.actual !== null ? `; predicted were ${formatBytes(device.predicted)}` : "";
  return (
    <div class="memory">
      <p title={`${device.device}: ${formatBytes(taken)}${predicted}`}>
        <span>{device.device === "host" ? "Host memory" : device.device}</span>
        <span>
          <b>{formatBytes(taken)}</b>
          {device.actual === null ? " predicted" : ""}
        </span>
      </p>
      {parts.length > 1 ? (
        <Meter
          label={`Memory of ${device.device}`}
          segments={parts.map((part) => ({ ...part, text: formatBytes(part.value) }))}
          legend
        />
      ) : null}
    </div>
  );
}
