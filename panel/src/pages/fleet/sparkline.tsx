const WIDTH = 96;
const HEIGHT = 24;
const SAMPLES = 60;

/** The last minute of a value; its number stands beside it. */
export function Sparkline({ values }: { values: readonly number[] }) {
  const most = Math.max(...values, 1e-9);
  const step = WIDTH / (SAMPLES - 1);
  const left = WIDTH - (values.length - 1) * step;
  const points = values.map((value, place) => `${(left + place * step).toFixed(1)} ${(HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1)}`);
  return (
    <svg class="sparkline" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
      {points.length > 1 ? (
        <>
          <path class="area" d={`M${left.toFixed(1)} ${HEIGHT}L${points.join("L")}L${WIDTH} ${HEIGHT}Z`} />
          <path class="line" d={`M${points.join("L")}`} />
        </>
      ) : null}
    </svg>
  );
}
