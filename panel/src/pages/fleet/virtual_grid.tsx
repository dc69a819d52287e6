import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

/** Lines drawn beyond those in sight. */
const AHEAD = 1;

/** A grid of items of equal height in the scrolling page, of which only those in sight are drawn. */
export function VirtualGrid<Item>({
  items,
  itemHeight,
  minWidth,
  gap,
  keyOf,
  render,
}: {
  items: readonly Item[];
  itemHeight: number;
  minWidth: number;
  gap: number;
  keyOf: (item: Item) => string | number;
  render: (item: Item) => ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ columns: 1, first: 0, last: 3 });
  const line = itemHeight + gap;
  useEffect(() => {
    const scroller = box.current?.closest("main");
    if (!box.current || !scroller) {
      return undefined;
    }
    const measure = (): void => {
      if (!box.current) {
        return;
      }
      const bounds = box.current.getBoundingClientRect();
      const window = scroller.getBoundingClientRect();
      const columns = Math.max(1, Math.floor((bounds.width + gap) / (minWidth + gap)));
      const first = Math.max(0, Math.floor((window.top - bounds.top) / line) - AHEAD);
      const last = Math.max(first, Math.ceil((window.bottom - bounds.top) / line) + AHEAD);
      setView((before) =>
        before.columns === columns && before.first === first && before.last === last ? before : { columns, first, last },
      );
    };
    measure();
    scroller.addEventListener("scroll", measure, { passive: true });
    const sizes = new ResizeObserver(measure);
    sizes.observe(box.current);
    sizes.observe(scroller);
    return () => {
      scroller.removeEventListener("scroll", measure);
      sizes.disconnect();
    };
  }, [line, minWidth, gap]);
  const { columns } = view;
  const lines = Math.ceil(items.length / columns);
  const first = Math.min(view.first, Math.max(0, lines - 1));
  const part = items.slice(first * columns, Math.min(lines, view.last) * columns);
  return (
    <div ref={box} style={{ height: `${lines * line - gap}px`, position: "relative" }}>
      <div
        style={{
          position: "absolute",
          insetInline: "0",
          top: `${first * line}px`,
          display: "grid",
          gap: `${gap}px`,
          gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))`,
          gridAutoRows: `${itemHeight}px`,
        }}
      >
        {part.map((item) => (
          <div key={keyOf(item)}>{render(item)}</div>
        ))}
      </div>
    </div>
  );
}
