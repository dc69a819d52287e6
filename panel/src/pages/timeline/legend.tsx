import { useEffect, useRef } from "preact/hooks";
import { theme } from "../../core/theme";
import { type BlockKind, LEGEND, LOOKS } from "./kinds";
import { paintFor } from "./paint";

const WIDTH = 24;
const HEIGHT = 12;

/** Every kind of block with its name, as it is drawn. */
export function Legend() {
  return (
    <ul class="timeline-legend" aria-label="Legend">
      {LEGEND.map((kind) => (
        <li key={kind}>
          <Swatch kind={kind} />
          {LOOKS[kind].label}
        </li>
      ))}
    </ul>
  );
}

function Swatch({ kind }: { kind: BlockKind }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const drawn = theme.value;
  useEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    const pen = canvas.current?.getContext("2d");
    if (canvas.current && pen) {
      canvas.current.width = WIDTH * ratio;
      canvas.current.height = HEIGHT * ratio;
      pen.fillStyle = paintFor(ratio).fills[kind];
      pen.beginPath();
      pen.roundRect(0, 0, WIDTH * ratio, HEIGHT * ratio, 3 * ratio);
      pen.fill();
    }
  }, [drawn, kind]);
  return <canvas ref={canvas} width={WIDTH} height={HEIGHT} aria-hidden="true" />;
}
