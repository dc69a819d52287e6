import { useEffect, useState } from "preact/hooks";
import { info, loadInfo, session } from "../../core/api";
import { Button, Dialog, Note, Problem, Tabs } from "../../ui";
import { copyText } from "./safe_markdown";
import { type Side, bodyFor, settings } from "./chat";
import { KEY_VARIABLE, type Target, asCurl, asPython, inferenceAddress } from "./copy_as";
import { type Body, completionBody } from "./request_body";

/** Which request is copied: that which answers the turn `parent` of a side, or a raw prompt. */
export type CopyRequest =
  | { readonly side: Side; readonly parent: number | null; readonly deployment: string }
  | { readonly raw: string; readonly deployment: string };

export function CopyAs({ request, close }: { request: CopyRequest; close: () => void }) {
  const [body, setBody] = useState<Body | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [language, setLanguage] = useState("curl");
  const [isCopied, setCopied] = useState(false);
  const isRaw = "raw" in request || request.side.template.value !== null;
  useEffect(() => {
    const controller = new AbortController();
    const made =
      "raw" in request
        ? Promise.resolve(completionBody(request.raw, settings.value, request.deployment))
        : bodyFor(request.side, request.parent, request.deployment, controller.signal);
    made.then(setBody, (error: unknown) => {
      if (!controller.signal.aborted) {
        setProblem(error);
      }
    });
    if (info.value === null) {
      loadInfo().catch(setProblem);
    }
    return () => controller.abort();
  }, [request]);

  const inference = info.value?.addresses.inference;
  const addresses = typeof inference === "string" ? [inference] : (inference ?? []);
  const address = inferenceAddress(addresses, location.hostname, info.value?.encrypted === true);
  const needsKey = session.value?.required === true;
  const target: Target = {
    address: address ?? "http://BALANCER:8061",
    path: isRaw ? "/v1/completions" : "/v1/chat/completions",
    needsKey,
  };
  const text = body === null ? "" : language === "curl" ? asCurl(body, target) : asPython(body, target);
  const view = () => (
    <pre class="copy-text" tabIndex={0}>
      {text}
    </pre>
  );
  return (
    <Dialog
      title="The same request elsewhere"
      size="wide"
      close={close}
      actions={
        <Button
          kind="primary"
          icon={isCopied ? "check" : "copy"}
          disabled={body === null}
          onClick={() => {
            void copyText(text).then(setCopied);
            setTimeout(() => setCopied(false), 2000);
          }}
        >
          {isCopied ? "Copied" : "Copy"}
        </Button>
      }
    >
      <div class="stack">
        {problem === null ? null : <Problem error={problem} />}
        {needsKey ? (
          <Note>
            No key is part of it: put one with the scope inference into <code>{KEY_VARIABLE}</code>.
          </Note>
        ) : null}
        <Tabs
          label="Language"
          value={language}
          onValue={setLanguage}
          tabs={[
            { id: "curl", label: "curl", panel: view },
            { id: "python", label: "Python", panel: view },
          ]}
        />
      </div>
    </Dialog>
  );
}
