/** API keys: who may ask for answers, and who may operate the fleet. A key is shown once, when it is made. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api, session } from "../../core/api";
import { formatCount, formatDate } from "../../core/format";
import { store, useTopics } from "../../core/store";
import type { ApiKey, KeyList, NewKey, UsageRow, UsageTable } from "../../types";
import { Badge, Button, Checkbox, Confirm, Copy, Dialog, Empty, Field, Input, Note, Page, Problem, Select, Table, toast } from "../../ui";
import { Credentials } from "./credentials";
import { EMPTY_FORM, type KeyForm, LIFETIMES, LIMITS, SCOPES, SCOPE_HELP, readKeyForm } from "./key_form";

export default function KeysPage() {
  const [list, setList] = useState<KeyList | null>(null);
  const [usage, setUsage] = useState<UsageByKey>(new Map());
  const [problem, setProblem] = useState<unknown>(null);
  const [isMaking, setMaking] = useState(false);
  const [made, setMade] = useState<NewKey | null>(null);
  const [revoked, setRevoked] = useState<ApiKey | null>(null);
  const load = async (): Promise<void> => {
    try {
      setList(await api.get<KeyList>("api/v2/keys"));
      const { rows } = await api.get<UsageTable>("api/v2/usage?by=key&per=all");
      setUsage(new Map(rows.map((row) => [row.key ?? "", row])));
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      setProblem(error);
    }
  };
  useEffect(() => void load(), []);
  return (
    <Page
      title="Keys"
      actions={
        list?.file ? (
          <Button kind="primary" icon="plus" onClick={() => setMaking(true)}>
            New key
          </Button>
        ) : null
      }
    >
      {problem === null ? null : <Problem error={problem} title="The keys cannot be loaded" retry={() => void load()} />}
      {list === null ? null : !list.file ? <NoFile /> : <KeyTable list={list} usage={usage} revoke={setRevoked} />}
      <Credentials />
      {isMaking && list !== null ? (
        <MakeKey
          list={list}
          close={() => setMaking(false)}
          done={(key) => {
            setMaking(false);
            setMade(key);
            void load();
          }}
        />
      ) : null}
      {made === null ? null : <ShowKey made={made} close={() => setMade(null)} />}
      {revoked === null ? null : (
        <Revoke
          name={revoked.name}
          close={() => setRevoked(null)}
          done={() => {
            setRevoked(null);
            void load();
          }}
        />
      )}
    </Page>
  );
}

// ------------------------------------------------------------------------------------- inside

const FIELDS = new Set(["name", "scopes", "deployments", "ttl_s", ...LIMITS.map((limit) => limit.name)]);
/** Of the form: what is wrong with them is shown beside them. */

function NoFile() {
  return (
    <Empty
      icon="keys"
      title="There is no key file"
      advice="Everyone who reaches the ports may use them. Start the balancer with a key file to ask for keys; they can be made here then."
    >
      <Copy text="paddler-trio balancer --api-key-file /etc/paddler-trio/keys.json" label="Copy the command" />
    </Empty>
  );
}

/** What each key has used, as far as that is kept. */
type UsageByKey = ReadonlyMap<string, UsageRow>;

function used(usage: UsageByKey, id: "requests" | "prompt_tokens" | "generated_tokens" | "refused", title: string) {
  return {
    id,
    title,
    align: "right",
    hide: id === "requests" ? "narrow" : "medium",
    value: (key: ApiKey) => usage.get(key.name)?.[id] ?? 0,
    render: (key: ApiKey) => formatCount(usage.get(key.name)?.[id] ?? 0),
  } as const;
}

function KeyTable({ list, usage, revoke }: { list: KeyList; usage: UsageByKey; revoke: (key: ApiKey) => void }) {
  if (list.keys.length === 0) {
    return (
      <Empty icon="keys" title="No key yet" advice="Make one for each application, and one for yourself with the scope management." />
    );
  }
  return (
    <Table
      label="API keys"
      rows={list.keys}
      rowKey={(key) => key.name}
      sort={{ column: "name", descending: false }}
      columns={[
        {
          id: "name",
          title: "name",
          value: (key) => key.name,
          render: (key) => (
            <span class="row">
              <span class="mono">{key.name}</span>
              {key.name === session.value?.name ? <Badge tone="info">this session</Badge> : null}
            </span>
          ),
        },
        {
          id: "scopes",
          title: "scopes",
          value: (key) => key.scopes.join(" "),
          render: (key) => (
            <span class="row">
              {key.scopes.map((scope) => (
                <Badge key={scope} tone={scope === "management" ? "warn" : "quiet"}>
                  {scope}
                </Badge>
              ))}
            </span>
          ),
        },
        {
          id: "deployments",
          title: "deployments",
          value: (key) => key.deployments.join(" "),
          hide: "narrow",
          render: (key) => (key.deployments.length === 0 ? <span class="muted">all</span> : key.deployments.join(", ")),
        },
        {
          id: "limits",
          title: "limits, used",
          hide: "narrow",
          render: (key) => <Limits of={key} />,
        },
        {
          id: "expires",
          title: "expires",
          hide: "narrow",
          value: (key) => key.expires ?? "9999",
          render: (key) => <Expiry of={key} />,
        },
        used(usage, "requests", "requests"),
        used(usage, "prompt_tokens", "tokens in"),
        used(usage, "generated_tokens", "tokens out"),
        used(usage, "refused", "refused"),
        {
          id: "last",
          title: "last use",
          hide: "medium",
          value: (key) => usage.get(key.name)?.last_s ?? 0,
          render: (key) => <LastUse at_s={usage.get(key.name)?.last_s} />,
        },
        {
          id: "revoke",
          title: <span class="unseen">revoke</span>,
          align: "right",
          width: "96px",
          render: (key) => (
            <Button size="small" kind="danger" aria-label={`Revoke ${key.name}`} onClick={() => revoke(key)}>
              Revoke
            </Button>
          ),
        },
      ]}
    />
  );
}

/** How much of each limit is used; empty without any. */
function Limits({ of: key }: { of: ApiKey }) {
  const shown = [
    ["a minute", key.used.requests_last_minute, key.requests_per_minute],
    ["at once", key.used.concurrent, key.max_concurrent],
    ["tokens today", key.used.tokens_today, key.tokens_per_day],
    ["tokens this month", key.used.tokens_this_month, key.tokens_per_month],
  ] as const;
  const limited = shown.filter(([, , most]) => most !== null);
  if (limited.length === 0) {
    return <span class="muted">none</span>;
  }
  return (
    <span class="key-limits">
      {limited.map(([label, used, most]) => (
        <span key={label} class={used >= (most ?? 0) ? "at-limit" : undefined}>
          {formatCount(used)} of {formatCount(most)} {label}
        </span>
      ))}
    </span>
  );
}

function LastUse({ at_s }: { at_s: number | undefined }) {
  if (at_s === undefined) {
    return <span class="muted">none known</span>;
  }
  return <span class="nowrap">{formatDate(new Date(at_s * 1000)).slice(0, 16)}</span>;
}

function Expiry({ of: key }: { of: ApiKey }) {
  if (key.expires === null) {
    return <span class="muted">never</span>;
  }
  const date = <span title={formatDate(new Date(key.expires))}>{key.expires.slice(0, 10)}</span>;
  return key.expired ? <Badge tone="bad">expired {date}</Badge> : date;
}

function MakeKey({ list, close, done }: { list: KeyList; close: () => void; done: (made: NewKey) => void }) {
  useTopics("deployments");
  const [form, setForm] = useState<KeyForm>(EMPTY_FORM);
  const [isTried, setTried] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const { body, problems } = readKeyForm(form, new Set(list.keys.map((key) => key.name)));
  const wrong = (field: string) =>
    (isTried ? problems.get(field) : undefined) ??
    (error instanceof ApiError && error.field === field ? error.text : undefined);
  const make = async (): Promise<void> => {
    setTried(true);
    setError(null);
    if (problems.size > 0) {
      return;
    }
    setBusy(true);
    try {
      done(await api.send<NewKey>("POST", "api/v2/keys", body));
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const names = [...store.deployments.value.keys()];
  return (
    <Dialog
      title="New key"
      close={close}
      mayClose={() => form === EMPTY_FORM}
      actions={
        <>
          <Button onClick={close}>Cancel</Button>
          <Button kind="primary" busy={isBusy} onClick={() => void make()}>
            Make the key
          </Button>
        </>
      }
    >
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void make();
        }}
      >
        <Field label="Name" help="Requests and metrics are counted under it." error={wrong("name")}>
          <Input value={form.name} maxLength={64} onValue={(name) => setForm({ ...form, name })} />
        </Field>
        <fieldset class="scopes" aria-describedby={wrong("scopes") === undefined ? undefined : "scopes-error"}>
          <legend>Scopes</legend>
          {SCOPES.map((scope) => (
            <Checkbox
              key={scope}
              label={scope}
              help={SCOPE_HELP[scope]}
              checked={form.scopes.includes(scope)}
              onValue={(isOn: boolean) =>
                setForm({ ...form, scopes: SCOPES.filter((each) => (each === scope ? isOn : form.scopes.includes(each))) })
              }
            />
          ))}
          {wrong("scopes") === undefined ? null : (
            <p class="field-error" id="scopes-error">
              {wrong("scopes")}
            </p>
          )}
        </fieldset>
        <Field
          label="Only these deployments"
          help={`Empty for all, also those that come later.${names.length > 0 ? ` There are ${names.join(", ")}.` : ""}`}
          error={wrong("deployments")}
        >
          <Input value={form.deployments} placeholder="all" onValue={(deployments) => setForm({ ...form, deployments })} />
        </Field>
        <Field label="Valid" help="After that it opens nothing any more." error={wrong("ttl_s")}>
          <Select value={form.lifetime} options={LIFETIMES} onValue={(lifetime) => setForm({ ...form, lifetime })} />
        </Field>
        <div class="key-limit-fields">
          {LIMITS.map((limit) => (
            <Field key={limit.name} label={limit.label} error={wrong(limit.name)}>
              <Input
                inputMode="numeric"
                value={form.limits[limit.name]}
                placeholder="no limit"
                onValue={(value) => setForm({ ...form, limits: { ...form.limits, [limit.name]: value } })}
              />
            </Field>
          ))}
        </div>
        {error !== null && !(error instanceof ApiError && FIELDS.has(error.field ?? "")) ? (
          <Problem error={error} title="The key is not made" />
        ) : null}
        <button type="submit" class="unseen" tabIndex={-1} aria-hidden="true" />
      </form>
    </Dialog>
  );
}

function ShowKey({ made, close }: { made: NewKey; close: () => void }) {
  return (
    <Dialog
      title={`The key ${made.name}`}
      size="small"
      stays
      close={close}
      actions={
        <Button kind="primary" onClick={close}>
          I have stored it
        </Button>
      }
    >
      <div class="stack">
        <Note tone="warn">It is shown only now: the balancer keeps a hash of it, from which it cannot be made again.</Note>
        <Copy text={made.key} label="Copy the key" />
      </div>
    </Dialog>
  );
}

function Revoke({ name, close, done }: { name: string; close: () => void; done: () => void }) {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const isOwn = name === session.value?.name;
  const revoke = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await api.send("DELETE", `api/v2/keys/${encodeURIComponent(name)}`);
      toast("ok", `${name} is revoked.`);
      done();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Confirm title={`Revoke ${name}?`} action="Revoke" busy={isBusy} confirm={() => void revoke()} close={close}>
      <div class="stack">
        <p>
          Whoever uses it is refused at once, and it cannot be taken back. {isOwn ? "You are signed in with it, and would be signed out." : ""}
        </p>
        {error === null ? null : <Problem error={error} />}
      </div>
    </Confirm>
  );
}
