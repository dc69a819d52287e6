import type { ComponentType } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { Button, Empty, Page } from "../ui";
import type { PageEntry } from "../pages/registry";
import { useTopics } from "../core/store";

const loaded = new Map<string, ComponentType>();

/** A page whose file is fetched when it is needed. */
export function LazyPage({ entry }: { entry: PageEntry }) {
  const [, setTries] = useState(0);
  const [failed, setFailed] = useState<string | null>(null);
  useTopics(...(entry.topics ?? []));
  useLayoutEffect(() => dress(entry.id), [entry.id]);
  useEffect(() => {
    let isHere = true;
    if (!loaded.has(entry.id)) {
      fetchPage(entry).then(
        () => isHere && setTries((tries) => tries + 1),
        () => isHere && setFailed(entry.id),
      );
    }
    return () => {
      isHere = false;
    };
  }, [entry]);
  const Content = loaded.get(entry.id);
  if (Content) {
    return <Content />;
  }
  if (failed === entry.id) {
    return (
      <Page title={entry.title}>
        <Empty
          icon="warning"
          title="This page could not be fetched"
          advice="The balancer is not reached, or was replaced by another version meanwhile."
        >
          <Button kind="primary" icon="retry" onClick={() => location.reload()}>
            Reload the panel
          </Button>
        </Empty>
      </Page>
    );
  }
  return (
    <Page title={entry.title}>
      <div class="skeleton" role="status" aria-busy="true" aria-label="The page is being fetched" />
    </Page>
  );
}

/** Fetch a page before somebody opens it: its link has the pointer on it, or the focus. */
export function prefetchPage(entry: PageEntry): void {
  fetchPage(entry).catch(() => undefined); // it is tried again, and said, when the page is opened
}

async function fetchPage(entry: PageEntry): Promise<void> {
  const [module] = await Promise.all([entry.load(), styleOf(entry.id)]);
  loaded.set(entry.id, module.default);
}

const styles = new Map<string, Promise<void>>();
const links = new Map<string, HTMLLinkElement>();
let dressed = "";

/** Pages name their classes as they like: only the styles of the one that is shown are in force. */
function dress(page: string): void {
  dressed = page;
  for (const [id, { sheet }] of links) {
    if (sheet !== null) {
      sheet.disabled = id !== page;
    }
  }
}

function styleOf(page: string): Promise<void> {
  const file = PAGE_STYLES[page];
  if (file === undefined) {
    return Promise.resolve();
  }
  const known = styles.get(page);
  if (known) {
    return known;
  }
  const done = new Promise<void>((resolve, reject) => {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = new URL(file, import.meta.url).href;
    link.onload = () => {
      links.set(page, link);
      dress(dressed);
      resolve();
    };
    link.onerror = () => {
      link.remove();
      styles.delete(page);
      reject(new Error(`${file} cannot be fetched`));
    };
    document.head.append(link);
  });
  styles.set(page, done);
  return done;
}
