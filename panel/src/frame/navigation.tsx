import { useEffect, useState } from "preact/hooks";
import { plural } from "../core/format";
import { hrefOf, route } from "../core/router";
import { store } from "../core/store";
import { PAGES, type PageEntry } from "../pages/registry";
import { Icon } from "../ui";
import { prefetchPage } from "./lazy_page";

/** Pages in the bar of a narrow window; the others are behind "More". */
const IN_BAR = ["fleet", "problems", "requests", "prompt"];

/** The list of pages: at the left, or a bar at the bottom of a narrow window. */
export function Navigation() {
  const [isOpen, setOpen] = useState(false);
  const here = route.value.page;
  useEffect(() => setOpen(false), [here]);
  const isBehindMore = !IN_BAR.includes(here);
  return (
    <nav class={isOpen ? "navigation open" : "navigation"} aria-label="Pages">
      <ul>
        {PAGES.map((page) => (
          <li key={page.id} class={IN_BAR.includes(page.id) ? undefined : "behind-more"}>
            <PageLink page={page} isHere={page.id === here} />
          </li>
        ))}
      </ul>
      <button
        type="button"
        class={isBehindMore ? "nav-link more here" : "nav-link more"}
        aria-expanded={isOpen}
        onClick={() => setOpen(!isOpen)}
      >
        <Icon name={isOpen ? "close" : "more"} />
        <span>More</span>
      </button>
    </nav>
  );
}

function PageLink({ page, isHere }: { page: PageEntry; isHere: boolean }) {
  const problems = page.id === "problems" ? store.problems.value.size : 0;
  return (
    <a
      class={isHere ? "nav-link here" : "nav-link"}
      href={hrefOf(page.id)}
      aria-current={isHere ? "page" : undefined}
      aria-keyshortcuts={`g ${page.key}`}
      title={`${page.title}: g ${page.key}. All places: /`}
      onPointerEnter={() => prefetchPage(page)}
      onFocus={() => prefetchPage(page)}
    >
      <Icon name={page.icon} />
      <span>{page.title}</span>
      {problems > 0 ? (
        <span class="nav-count" title={plural(problems, "problem")}>
          {problems > 99 ? "99+" : problems}
        </span>
      ) : null}
    </a>
  );
}
