import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, signIn } from "../core/api";
import { Button, Field, Input } from "../ui";
import { Mark } from "./header";

/** Asks for a management key; what is refused is said at the field. */
export function SignIn() {
  const [key, setKey] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    document.title = "Sign in · paddler-trio";
    form.current?.querySelector("input")?.focus();
  }, []);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (key.trim() === "") {
      setError("Enter a management key.");
      return;
    }
    setBusy(true);
    setError(null);
    try {
      await signIn(key.trim());
    } catch (refusal) {
      setError(wordsOf(refusal));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form ref={form} class="card" onSubmit={submit} aria-labelledby="sign-in-title">
        <Mark />
        <h1 id="sign-in-title">Sign in</h1>
        <p>This balancer asks operators for a key.</p>
        <Field
          label="Management key"
          error={error}
          help="A key with the scope management, from the balancer's file of API keys."
        >
          <Input type="password" name="key" autocomplete="current-password" value={key} onValue={setKey} />
        </Field>
        <Button kind="primary" type="submit" busy={busy}>
          Sign in
        </Button>
      </form>
    </main>
  );
}

function wordsOf(error: unknown): string {
  if (!(error instanceof ApiError)) {
    return String(error);
  }
  if (error.status === 429) {
    return `Too many tries. Please wait${error.retryAfter_s ? ` ${error.retryAfter_s} s` : " a moment"}.`;
  }
  return error.text;
}
