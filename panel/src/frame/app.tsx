import { useEffect, useRef, useState } from "preact/hooks";
import { isSignedIn, loadInfo, loadSession, session } from "../core/api";
import { hrefOf, route } from "../core/router";
import { feed, forget, store, useTopics } from "../core/store";
import { PAGES } from "../pages/registry";
import { Button, Empty, Page, Problem, Toasts } from "../ui";
import { Header, StreamLost } from "./header";
import { LazyPage } from "./lazy_page";
import { Navigation } from "./navigation";
import { Palette } from "./palette";
import { showProblems } from "./problem_count";
import { SignIn } from "./sign_in";

export function App() {
  const [failure, setFailure] = useState<unknown>(null);
  const begin = (): void => {
    setFailure(null);
    loadSession().catch(setFailure);
  };
  useEffect(begin, []);
  const who = session.value;
  return (
    <>
      {failure !== null ? (
        <main class="sign-in">
          <Problem title="The panel cannot begin." error={failure} retry={begin} />
        </main>
      ) : who === null ? (
        <main class="sign-in" aria-busy="true" />
      ) : isSignedIn(who) ? (
        <SignedIn />
      ) : (
        <SignIn />
      )}
      <Toasts />
    </>
  );
}

function SignedIn() {
  useTopics("balancer", "logs", "problems");
  useEffect(() => showProblems(), []);
  useEffect(() => {
    feed.start();
    loadInfo().catch(() => undefined); // pages that need it ask again, and show what failed
    const online = (): void => feed.retryNow();
    window.addEventListener("online", online);
    return () => {
      window.removeEventListener("online", online);
      feed.stop();
      forget();
    };
  }, []);
  const entry = PAGES.find((page) => page.id === route.value.page);
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) {
      isFirst.current = false;
      return;
    }
    main.current?.scrollTo(0, 0);
    main.current?.focus({ preventScroll: true });
  }, [route.value.page]);
  return (
    <div class={`frame ${store.connection.value.state}`}>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault(); // the part behind the # is the route
          main.current?.focus();
        }}
      >
        To the content
      </a>
      <Header />
      <Navigation />
      <Palette />
      <main id="content" tabIndex={-1} ref={main}>
        <StreamLost retry={() => feed.retryNow()} />
        {entry ? <LazyPage key={entry.id} entry={entry} /> : <NoSuchPage />}
      </main>
    </div>
  );
}

function NoSuchPage() {
  return (
    <Page title="No such page">
      <Empty title="There is no page at this address" icon="search">
        <Button
          kind="primary"
          onClick={() => {
            location.hash = hrefOf("fleet");
          }}
        >
          To the fleet
        </Button>
      </Empty>
    </Page>
  );
}
