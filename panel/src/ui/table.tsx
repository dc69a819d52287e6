import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { compareNames } from "../core/format";
import { Icon } from "./icon";

export interface Column<Row> {
  id: string;
  title: ComponentChildren;
  render: (row: Row) => ComponentChildren;
  /** What the column is sorted by; without it it cannot be sorted. */
  value?: (row: Row) => string | number | null;
  align?: "left" | "right";
  /** A CSS width. */
  width?: string;
  /** Left out where the table is narrower than 600 (`narrow`) or 900 (`medium`) pixels. */
  hide?: "narrow" | "medium";
}

export interface Sort {
  column: string;
  descending: boolean;
}

/** Rows that are drawn at a time if there are more. */
const WINDOW = 60;
const AHEAD = 15;

/**
 * A table that sorts and, with many rows, draws only those in sight; these have all the same height then.
 *
 * `filter` keeps the rows it returns true for. With `sort` and `onSort` the sorting is the caller's to keep.
 */
export function Table<Row>({
  label,
  columns,
  rows,
  rowKey,
  sort: given,
  onSort,
  filter,
  onRow,
  rowLabel,
  rowHeight = 40,
  maxHeight = "70vh",
  empty,
}: {
  label: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string | number;
  sort?: Sort | null;
  onSort?: (sort: Sort) => void;
  filter?: (row: Row) => boolean;
  /** Rows can be opened, by click or Enter. */
  onRow?: (row: Row) => void;
  /** The name of a row that can be opened, for screen readers. */
  rowLabel?: (row: Row) => string;
  rowHeight?: number;
  maxHeight?: string;
  empty?: ComponentChildren;
}) {
  const [own, setOwn] = useState<Sort | null>(given ?? null);
  const [top, setTop] = useState(0);
  const scroller = useRef<HTMLDivElement>(null);
  const sort = onSort ? (given ?? null) : own;
  const visible = useMemo(() => sorted(filter ? rows.filter(filter) : rows, columns, sort), [rows, columns, sort, filter]);
  const windowed = visible.length > WINDOW;
  const first = windowed ? Math.max(0, Math.min(Math.floor(top / rowHeight) - AHEAD, visible.length - WINDOW)) : 0;
  const part = windowed ? visible.slice(first, first + WINDOW) : visible;
  const resort = (column: Column<Row>): void => {
    const next = {
      column: column.id,
      descending: sort?.column === column.id ? !sort.descending : column.align === "right",
    };
    onSort ? onSort(next) : setOwn(next);
  };
  return (
    <div
      class={windowed ? "table-box windowed" : "table-box"}
      ref={scroller}
      tabIndex={0}
      role="region"
      aria-label={label}
      style={windowed ? { maxHeight } : undefined}
      onScroll={windowed ? (event) => setTop(event.currentTarget.scrollTop) : undefined}
    >
      <table class="table" aria-rowcount={windowed ? visible.length + 1 : undefined}>
        <thead>
          <tr>
            {columns.map((column) => {
              const isSorted = sort?.column === column.id;
              return (
                <th
                  key={column.id}
                  scope="col"
                  class={classOf(column)}
                  style={column.width ? { width: column.width } : undefined}
                  aria-sort={isSorted ? (sort?.descending ? "descending" : "ascending") : undefined}
                >
                  {column.value ? (
                    <button type="button" onClick={() => resort(column)}>
                      {column.title}
                      <span class={isSorted ? "sort on" : "sort"}>
                        <Icon name={isSorted && !sort?.descending ? "up" : "down"} size={12} />
                      </span>
                    </button>
                  ) : (
                    column.title
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {first > 0 ? <Space rows={first} height={rowHeight} columns={columns.length} /> : null}
          {part.map((row, place) => (
            <tr
              key={rowKey(row)}
              class={onRow ? "opens" : undefined}
              style={windowed ? { height: `${rowHeight}px` } : undefined}
              aria-rowindex={windowed ? first + place + 2 : undefined}
              tabIndex={onRow ? 0 : undefined}
              aria-label={rowLabel?.(row)}
              onClick={
                onRow &&
                ((event) => {
                  if (!(event.target as Element).closest("a, button, input, label")) {
                    onRow(row);
                  }
                })
              }
              onKeyDown={
                onRow &&
                ((event) => {
                  if (event.key === "Enter" && event.target === event.currentTarget) {
                    onRow(row);
                  }
                })
              }
            >
              {columns.map((column) => (
                <td key={column.id} class={classOf(column)}>
                  {column.render(row)}
                </td>
              ))}
            </tr>
          ))}
          {windowed && first + part.length < visible.length ? (
            <Space rows={visible.length - first - part.length} height={rowHeight} columns={columns.length} />
          ) : null}
        </tbody>
      </table>
      {visible.length === 0 ? (empty ?? <p class="table-empty">Nothing to show.</p>) : null}
    </div>
  );
}

function Space({ rows, height, columns }: { rows: number; height: number; columns: number }) {
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={columns} style={{ height: `${rows * height}px` }} />
    </tr>
  );
}

/** The rows in the order of a column; equal ones, and those without a value, stay in theirs. */
export function sorted<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  sort: Sort | null,
): readonly Row[] {
  const value = sort && columns.find((column) => column.id === sort.column)?.value;
  if (!value) {
    return rows;
  }
  const sign = sort.descending ? -1 : 1;
  return rows
    .map((row, place) => ({ row, place, value: value(row) }))
    .sort((a, b) => {
      if (a.value === null || b.value === null) {
        return Number(a.value === null) - Number(b.value === null) || a.place - b.place;
      }
      const order =
        typeof a.value === "number" && typeof b.value === "number"
          ? a.value - b.value
          : compareNames(String(a.value), String(b.value));
      return order * sign || a.place - b.place;
    })
    .map((each) => each.row);
}

function classOf<Row>(column: Column<Row>): string | undefined {
  return [column.align === "right" && "right", column.hide && `hide-${column.hide}`].filter(Boolean).join(" ") || undefined;
}
