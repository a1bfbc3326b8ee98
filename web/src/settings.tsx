// Settings: appearance, lasting answers and rules, trust of the folder, MCP servers, models and keys, agents, schedules, notifications.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, remove } from "./api";
import { appearance, changeAppearance, type Appearance } from "./appearance";
import { areNotificationsOn, switchNotifications } from "./notifications";
import { SureButton } from "./review";
import type { FolderChoice, FolderTrust, LastingAnswer, McpServerState, Schedule, SettingsOverview } from "./types";

type Report = (error: unknown) => void;

export const TRUST_CHANGED = "outrider-trust-changed"; // an event of the document

export function Settings({ workspace, onError }: { workspace: string | undefined; onError: Report }) {
  const [overview, setOverview] = useState<SettingsOverview | null>(null);
  const load = (): void => void get<SettingsOverview>("/settings").then(setOverview, onError);
  useEffect(() => {
    load();
    const timer = setInterval(() => {
      if (!document.hidden) get<SettingsOverview>("/settings").then(setOverview, () => {});
    }, 5000);
    return () => clearInterval(timer);
  }, []);
  return (
    <div class="settings">
      <LastingAnswers onError={onError} />
      {overview ? <Rules overview={overview} /> : null}
      {workspace ? <Trust workspace={workspace} onError={onError} /> : null}
      {overview ? <Servers overview={overview} onChange={load} onError={onError} /> : null}
      {overview ? <Providers overview={overview} onChange={load} onError={onError} /> : null}
      <Agents onError={onError} />
      {overview?.has_jobs ? <Schedules onError={onError} /> : null}
      <AppearanceSettings />
      <Notifications />
    </div>
  );
}

function LastingAnswers({ onError }: { onError: Report }) {
  const [answers, setAnswers] = useState<LastingAnswer[]>([]);
  const load = (): void => void get<LastingAnswer[]>("/answers").then(setAnswers, onError);
  useEffect(load, []);
  return (
    <section aria-label="Lasting answers">
      <h2>Lasting answers</h2>
      {answers.length ? null : <p class="note">No answer lasts longer than one call.</p>}
      <ul class="grants">
        {answers.map(({ id, tool, view }) => (
          <li class="lasting">
            <strong>{view.title}</strong> <span class="about">{view.scope}</span>
            <button
              class="quiet"
              aria-label={`Revoke ${tool}`}
              onClick={() => remove(`/answers/${encodeURIComponent(id)}`).then(load, onError)}
            >
              Revoke
            </button>
            <p>
              covers <code>{view.text}</code>
            </p>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Rules({ overview: { rules } }: { overview: SettingsOverview }) {
  const all = (["deny", "ask", "allow"] as const).flatMap((effect) =>
    rules[effect].map((rule) => [effect, rule] as const),
  );
  return (
    <section aria-label="Rules">
      <h2>Rules of the configuration</h2>
      {all.length ? (
        <ul class="grants">
          {all.map(([effect, rule]) => (
            <li>
              <code>{rule}</code> <span class="about">{effect}</span>
            </li>
          ))}
        </ul>
      ) : (
        <p class="note">None. They are set in the configuration file or with flags.</p>
      )}
    </section>
  );
}

const TRUST_TEXTS: Record<FolderTrust["state"], string> = {
  trusted: "Its instructions, skills and settings are used.",
  untrusted: "It has instructions, skills or settings that are not used.",
  "nothing to trust": "It has nothing that would need your trust.",
};

function Trust({ workspace, onError }: { workspace: string; onError: Report }) {
  const [trust, setTrust] = useState<FolderTrust | null>(null);
  useEffect(() => void get<FolderTrust>("/trust", { path: workspace }).then(setTrust, onError), [workspace]);
  if (!trust) return null;
  const decide = (trusted: boolean): void =>
    void post<FolderTrust>("/trust", { path: workspace, trusted, digest: trust.digest }).then((decided) => {
      setTrust(decided);
      document.dispatchEvent(new Event(TRUST_CHANGED));
    }, onError);
  return (
    <section aria-label="Trust">
      <h2>Trust</h2>
      <p>
        <code>{trust.root}</code>{" "}
        <span class="badge" data-state={trust.state === "untrusted" ? "waiting" : "done"}>
          {trust.state}
        </span>
      </p>
      <p class="note">{TRUST_TEXTS[trust.state]}</p>
      {trust.items.map((item) => (
        <details class="trust-item">
          <summary>
            {item.kind}: {item.name}
            {item.executable ? " (starts a program)" : ""}
          </summary>
          <pre tabIndex={0}>{item.content}</pre>
        </details>
      ))}
      {trust.state === "untrusted" ? (
        <SureButton
          label="Trust this folder"
          question="Trust all that is listed?"
          kind=""
          onSure={() => decide(true)}
        />
      ) : null}
      {trust.state === "trusted" ? (
        <SureButton label="End the trust" question="Really end it?" kind="" onSure={() => decide(false)} />
      ) : null}
    </section>
  );
}

// The MCP servers with their states. A login opens the page of the server's authorization server in another tab.
function Servers({
  overview,
  onChange,
  onError,
}: {
  overview: SettingsOverview;
  onChange: () => void;
  onError: Report;
}) {
  const { servers, server_notices: notices } = overview;
  useEffect(() => {
    if (!servers.some(({ state, is_logging_in: isOpen }) => isOpen || state === "connecting")) return;
    const timer = setTimeout(onChange, 1000);
    return () => clearTimeout(timer);
  }, [servers]);
  return (
    <section aria-label="MCP servers">
      <h2>MCP servers</h2>
      {servers.length ? null : (
        <p class="note">
          No server is configured. <code>outrider mcp add</code> adds one.
        </p>
      )}
      <ul class="grants">
        {servers.map((server) => (
          <ServerRow key={server.name} server={server} onChange={onChange} onError={onError} />
        ))}
      </ul>
      {notices.map((notice) => (
        <p class="note">{notice}</p>
      ))}
    </section>
  );
}

function ServerRow({ server, onChange, onError }: { server: McpServerState; onChange: () => void; onError: Report }) {
  const [page, setPage] = useState("");
  const [address, setAddress] = useState("");
  const { name, state, error, login } = server;
  const send = (path: string, body: object = {}): void =>
    void post(`/mcp-servers/${path}`, { name, ...body }).then(onChange, onError);
  const logIn = (): void =>
    void post<{ url: string }>("/mcp-servers/login", { name }).then(
      ({ url }) => {
        const isWebPage = /^https?:\/\//i.test(url);
        setPage(isWebPage ? url : "");
        if (isWebPage) window.open(url, "_blank", "noopener");
        onChange();
      },
      (failure) => {
        onChange();
        onError(failure);
      },
    );
  const canLogIn = login === "none" || login === "stored" || login === "more rights needed";
  return (
    <li class="server">
      <strong>{name}</strong>{" "}
      <span
        class="badge"
        data-state={
          !server.enabled ? "canceled" : state === "ready" ? "done" : state === "failed" ? "failed" : "running"
        }
      >
        {server.enabled ? state : "off"}
      </span>{" "}
      <span class="about">
        {server.address}
        {login === "stored" ? " · logged in" : login === "more rights needed" ? " · needs more rights" : ""}
      </span>
      <button
        class="quiet"
        aria-pressed={!server.enabled}
        aria-label={`Switch ${name} ${server.enabled ? "off" : "on"}`}
        title="From the next turn on, until this server is restarted"
        onClick={() => send("switch", { enabled: !server.enabled })}
      >
        {server.enabled ? "Switch off" : "Switch on"}
      </button>
      {state === "failed" ? (
        <button class="quiet" aria-label={`Connect to ${name} again`} onClick={() => send("reconnect")}>
          Reconnect
        </button>
      ) : null}
      {canLogIn && (login !== "none" || state === "failed") ? (
        <button class={login === "stored" ? "quiet" : "primary"} aria-label={`Log in to ${name}`} onClick={logIn}>
          {login === "stored" ? "Log in again" : "Log in"}
        </button>
      ) : null}
      {login === "stored" || login === "more rights needed" ? (
        <SureButton
          label="Log out"
          name={`Log out of ${name}`}
          question="Really log out?"
          onSure={() => send("logout")}
        />
      ) : null}
      {error && state !== "ready" ? <p class="failure">{error}</p> : null}
      {server.login_error && !server.is_logging_in ? <p class="failure">{server.login_error}</p> : null}
      {server.is_logging_in ? (
        <form
          class="login-form"
          onSubmit={(event) => {
            event.preventDefault();
            send("login/answer", { address });
            setAddress("");
          }}
        >
          <p role="status">
            Waiting for the login.{" "}
            {page ? (
              <a href={page} target="_blank" rel="noopener noreferrer">
                Open the page again
              </a>
            ) : null}
          </p>
          <label>
            If its last page cannot be opened, because the server runs on another machine, paste its address:{" "}
            <input
              aria-label={`Address after the login at ${name}`}
              autocomplete="off"
              placeholder="http://127.0.0.1:…/callback?code=…"
              value={address}
              onInput={(event) => setAddress(event.currentTarget.value)}
            />
          </label>
          <button type="submit" disabled={!address.trim()}>
            Finish
          </button>
        </form>
      ) : null}
    </li>
  );
}

function Providers({
  overview,
  onChange,
  onError,
}: {
  overview: SettingsOverview;
  onChange: () => void;
  onError: Report;
}) {
  const [editing, setEditing] = useState("");
  const [key, setKey] = useState("");
  const [notice, setNotice] = useState("");
  const store = (variable: string, value: string): void => {
    post("/keys", { variable, key: value }).then(() => {
      setEditing("");
      setKey("");
      setNotice(value ? "The key is stored and used from now on." : "The stored key is removed.");
      onChange();
    }, onError);
  };
  return (
    <section aria-label="Models and keys">
      <h2>Models and keys</h2>
      <ul class="grants">
        {overview.providers.map((provider) => (
          <li>
            <strong>{provider.name}</strong>{" "}
            <span class="about">
              {provider.kind}
              {provider.base_url ? ` · ${provider.base_url}` : ""} ·{" "}
              {provider.is_stored
                ? "key stored here"
                : provider.has_key
                  ? "key from the environment"
                  : provider.variable
                    ? "no key"
                    : "needs no key"}
            </span>
            {provider.variable ? (
              <button
                class="quiet"
                aria-label={`Enter a key for ${provider.name}`}
                onClick={() => setEditing(editing === provider.name ? "" : provider.name)}
              >
                Key
              </button>
            ) : null}
            {provider.is_stored ? (
              <SureButton
                label="Remove"
                name={`Remove the key of ${provider.name}`}
                question="Really remove?"
                onSure={() => store(provider.variable, "")}
              />
            ) : null}
            {editing === provider.name ? (
              <form
                class="key-form"
                onSubmit={(event) => {
                  event.preventDefault();
                  if (key.trim()) store(provider.variable, key.trim());
                }}
              >
                <input
                  type="password"
                  aria-label={`Key of ${provider.name}`}
                  autocomplete="off"
                  value={key}
                  onInput={(event) => setKey(event.currentTarget.value)}
                  onKeyDown={(event) => {
                    if (event.key === "Escape") {
                      event.stopPropagation();
                      setEditing("");
                    }
                  }}
                />
                <button type="submit" class="primary">
                  Store
                </button>
              </form>
            ) : null}
          </li>
        ))}
      </ul>
      <p class="note" role="status">
        {notice}
      </p>
    </section>
  );
}

function Agents({ onError }: { onError: Report }) {
  const [agents, setAgents] = useState<{ name: string; role: string; model: string; mode: string }[]>([]);
  useEffect(
    () => void get<{ name: string; role: string; model: string; mode: string }[]>("/agents").then(setAgents, onError),
    [],
  );
  return (
    <section aria-label="Agents">
      <h2>Agents</h2>
      <ul class="grants">
        {agents.map((agent) => (
          <li>
            <strong>{agent.name}</strong>{" "}
            <span class="about">
              {agent.model} · {agent.mode}
              {agent.role ? ` · ${agent.role}` : ""}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Schedules({ onError }: { onError: Report }) {
  const [schedules, setSchedules] = useState<Schedule[] | null>(null);
  const load = (): void => void get<Schedule[]>("/schedules").then(setSchedules, onError);
  useEffect(load, []);
  if (!schedules) return null;
  return (
    <section aria-label="Schedules of runs">
      <h2>Schedules</h2>
      {schedules.length ? null : (
        <p class="note">
          No run is scheduled. <a href="#/jobs">Jobs</a> can be.
        </p>
      )}
      <ul class="grants">
        {schedules.map((schedule) => {
          const path = `/schedules/${encodeURIComponent(schedule.id)}`;
          const action = schedule.paused ? "Resume" : "Pause";
          return (
            <li>
              <span>{schedule.prompt.slice(0, 80)}</span>{" "}
              <span class="about">
                <code>{schedule.cron}</code>
                {schedule.paused ? " · paused" : ""}
              </span>
              <button
                class="quiet"
                aria-label={`${action} ${schedule.prompt.slice(0, 40)}`}
                onClick={() => post(`${path}/${action.toLowerCase()}`).then(load, onError)}
              >
                {action}
              </button>
              <SureButton
                label="Delete"
                name={`Delete ${schedule.prompt.slice(0, 40)}`}
                question="Really?"
                onSure={() => remove(path).then(load, onError)}
              />
            </li>
          );
        })}
      </ul>
    </section>
  );
}

const THEMES: [Appearance["theme"], string][] = [
  ["system", "as the system"],
  ["light", "light"],
  ["dark", "dark"],
];
const SIZES: [Appearance["size"], string][] = [
  ["small", "small"],
  ["normal", "normal"],
  ["large", "large"],
  ["largest", "very large"],
];
const WIDTHS: [Appearance["width"], string][] = [
  ["normal", "normal"],
  ["wide", "wide"],
];

function AppearanceSettings() {
  const { theme, size, width, wrapsCode, opensReasoning, opensCalls } = appearance.value;
  const select = <Name extends "theme" | "size" | "width">(
    name: Name,
    label: string,
    value: Appearance[Name],
    options: [Appearance[Name], string][],
  ) => (
    <label>
      {label}{" "}
      <select value={value} onChange={(event) => changeAppearance({ [name]: event.currentTarget.value })}>
        {options.map(([key, text]) => (
          <option value={key}>{text}</option>
        ))}
      </select>
    </label>
  );
  const box = (name: "wrapsCode" | "opensReasoning" | "opensCalls", label: string, isOn: boolean) => (
    <label class="option">
      <input
        type="checkbox"
        checked={isOn}
        onChange={(event) => changeAppearance({ [name]: event.currentTarget.checked })}
      />{" "}
      {label}
    </label>
  );
  return (
    <section aria-label="Appearance">
      <h2>Appearance</h2>
      <p class="choices">
        {select("theme", "Colours", theme, THEMES)} {select("size", "Text", size, SIZES)}{" "}
        {select("width", "Conversation", width, WIDTHS)}
      </p>
      {box("wrapsCode", "Break long lines of code", wrapsCode)}
      {box("opensReasoning", "Open reasoning", opensReasoning)}
      {box("opensCalls", "Open tool calls", opensCalls)}
      <p class="note">Stored in this browser.</p>
    </section>
  );
}

function Notifications() {
  const [isOn, setOn] = useState(areNotificationsOn());
  return (
    <section aria-label="Notifications">
      <h2>Notifications</h2>
      <label class="option">
        <input type="checkbox" checked={isOn} onChange={() => void switchNotifications(!isOn).then(setOn)} /> Tell me
        when a session waits, fails or is done, while this page is not visible
      </label>
    </section>
  );
}

// A dialog that chooses the folder of a new session: recent ones, a path, or folders of the server's machine.
export function FolderPicker({
  recent,
  action,
  onChoose,
  onClose,
}: {
  recent: string[];
  action: string;
  onChoose: (path: string) => void;
  onClose: () => void;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [path, setPath] = useState(recent[0] ?? "");
  const [choice, setChoice] = useState<FolderChoice | null>(null);
  const [error, setError] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const isUntouched = useRef(true); // until the user chooses something, it shows the latest folder, which may be known later
  const request = useRef(0);
  const show = (folder: string): void => {
    const own = ++request.current;
    get<FolderChoice>("/folders", { path: folder }).then(
      (found) => {
        if (own !== request.current) return;
        setChoice(found);
        setPath(found.path);
        setError("");
      },
      (failure: Error) => own === request.current && setError(failure.message),
    );
  };
  const browse = (folder: string): void => {
    isUntouched.current = false;
    show(folder);
  };
  useEffect(() => {
    if (isUntouched.current) show(recent[0] ?? "");
  }, [recent[0]]);
  return (
    <dialog
      id="folder-picker"
      class="dialog"
      ref={dialog}
      aria-label="Folder of the new session"
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
      onKeyDown={(event) => {
        if (event.key === "Escape") event.stopPropagation();
      }}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          onChoose(path.trim());
        }}
      >
        <label>
          Folder{" "}
          <input
            aria-label="Path of the folder"
            value={path}
            autocomplete="off"
            onInput={(event) => {
              isUntouched.current = false;
              request.current += 1;
              setPath(event.currentTarget.value);
            }}
          />
        </label>
        <div class="buttons">
          <button type="submit" class="primary">
            {action}
          </button>
          <button type="button" onClick={() => browse(path)}>
            Open
          </button>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
        </div>
      </form>
      {error ? <p class="failure">{error}</p> : null}
      {recent.length ? (
        <>
          <h2>Recent</h2>
          <ul class="folders">
            {recent.map((folder) => (
              <li>
                <button class="quiet" onClick={() => onChoose(folder)}>
                  {folder}
                </button>
              </li>
            ))}
          </ul>
        </>
      ) : null}
      {choice ? (
        <>
          <h2>{choice.path}</h2>
          <ul class="folders">
            {choice.parent !== choice.path ? (
              <li>
                <button class="quiet" aria-label="The folder above" onClick={() => browse(choice.parent)}>
                  ↑ ..
                </button>
              </li>
            ) : null}
            {choice.folders.map((name) => (
              <li>
                <button class="quiet" onClick={() => browse(`${choice.path.replace(/\/$/, "")}/${name}`)}>
                  ▸ {name}
                </button>
              </li>
            ))}
          </ul>
        </>
      ) : null}
    </dialog>
  );
}

// The first set-up: without a key no message can be answered. The key is checked with the vendor and stored on the server.
export function FirstKey({ onDone }: { onDone: () => void }) {
  const [providers, setProviders] = useState<SettingsOverview["providers"]>([]);
  const [isNeeded, setNeeded] = useState(false);
  const [variable, setVariable] = useState("");
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState("");
  const [isSending, setSending] = useState(false);
  useEffect(
    () =>
      void get<SettingsOverview>("/settings").then(
        (overview) => {
          const usable = overview.providers.filter((provider) => provider.variable);
          setProviders(usable);
          setVariable(usable[0]?.variable ?? "");
          setNeeded(Boolean(overview.needs_key) && usable.length > 0);
        },
        () => undefined,
      ),
    [],
  );
  if (!isNeeded) return null;
  const store = (): void => {
    if (!key.trim() || isSending) return;
    setSending(true);
    setProblem("");
    post("/keys", { variable, key: key.trim() })
      .then(
        () => {
          setKey("");
          setNeeded(false);
          onDone();
        },
        (error: Error) => setProblem(error.message),
      )
      .finally(() => setSending(false));
  };
  return (
    <form
      class="first-key"
      aria-label="First set-up"
      onSubmit={(event) => {
        event.preventDefault();
        store();
      }}
    >
      <h3>A model is needed first</h3>
      <p>Enter the API key of a vendor. It is stored on the machine that serves this page and never shown again.</p>
      <p>
        <select aria-label="Vendor" value={variable} onChange={(event) => setVariable(event.currentTarget.value)}>
          {providers.map((provider) => (
            <option value={provider.variable}>{provider.name}</option>
          ))}
        </select>{" "}
        <input
          type="password"
          aria-label="API key"
          autocomplete="off"
          placeholder="API key"
          value={key}
          onInput={(event) => setKey(event.currentTarget.value)}
        />{" "}
        <button type="submit" class="primary" disabled={isSending || !key.trim()}>
          {isSending ? "Checking…" : "Store"}
        </button>
      </p>
      {problem ? (
        <p class="failure" role="alert">
          {problem}
        </p>
      ) : null}
      <p class="note">
        Without a key: start the server with <code>--model local</code>, or with OPENAI_BASE_URL for your own server.
      </p>
    </form>
  );
}
