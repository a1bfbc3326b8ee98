// The details beside a conversation: facts, changes, trace, processes, usage and settings.
import { useEffect, useState } from "preact/hooks";
import { download, get, post, sessionPath } from "./api";
import { Files } from "./files";
import { TodoList } from "./parts";
import { Review } from "./review";
import type { SessionModel } from "./session-model";
import { Settings } from "./settings";
import { ContextMap, SessionPlots, Waterfall } from "./timeline";
import type { Process, UsageRow } from "./types";

export type PanelTab = "session" | "changes" | "files" | "trace" | "processes" | "usage" | "settings";
const SESSION_TABS: [PanelTab, string][] = [
  ["session", "Session"],
  ["changes", "Changes"],
  ["files", "Files"],
  ["trace", "Trace"],
  ["processes", "Processes"],
  ["usage", "Usage"],
  ["settings", "Settings"],
];
const GLOBAL_TABS: [PanelTab, string][] = [
  ["usage", "Usage"],
  ["settings", "Settings"],
];

const WIDE_TABS: PanelTab[] = ["changes", "files"];

interface PanelProps {
  model: SessionModel | null;
  tab: PanelTab;
  onTab: (tab: PanelTab) => void;
  onClose: () => void;
  onError: (error: unknown) => void;
}

export function Panel({ model, tab: wanted, onTab, onClose, onError }: PanelProps) {
  const tabs = model ? SESSION_TABS : GLOBAL_TABS;
  const tab = tabs.some(([name]) => name === wanted) ? wanted : "usage";
  const onKeyDown = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = tabs.findIndex(([name]) => name === tab);
    if (!step) return;
    const [name] = tabs[(at + step + tabs.length) % tabs.length]!;
    onTab(name);
    document.getElementById(`tab-${name}`)?.focus();
  };
  return (
    <aside
      id="panel"
      class={WIDE_TABS.includes(tab) ? "wide" : undefined}
      aria-label="Details"
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          onClose();
        }
      }}
    >
      <div class="panel-head">
        <div role="tablist" aria-label="Details" id="tabs" onKeyDown={onKeyDown}>
          {tabs.map(([name, label]) => (
            <button
              role="tab"
              id={`tab-${name}`}
              tabIndex={name === tab ? 0 : -1}
              aria-selected={name === tab}
              aria-controls="panel-body"
              onClick={() => onTab(name)}
            >
              {label}
            </button>
          ))}
        </div>
        <button id="panel-close" class="quiet" aria-label="Close the details" onClick={onClose}>
          ✕
        </button>
      </div>
      <div id="panel-body" role="tabpanel" tabIndex={0} aria-labelledby={`tab-${tab}`}>
        {tab === "session" && model ? <Facts model={model} /> : null}
        {tab === "changes" && model ? <Review key={model.id} model={model} /> : null}
        {tab === "files" && model ? <Files key={model.id} model={model} /> : null}
        {tab === "trace" && model ? <Waterfall model={model} /> : null}
        {tab === "processes" && model ? <Processes model={model} onError={onError} /> : null}
        {tab === "usage" ? <Usage onError={onError} /> : null}
        {tab === "settings" ? (
          <Settings workspace={model?.transcript.session.value?.workspace_directory} onError={onError} />
        ) : null}
      </div>
    </aside>
  );
}

function Facts({ model }: { model: SessionModel }) {
  const session = model.transcript.session.value;
  const usage = model.usage.value;
  const order = model.transcript.order.value;
  if (!session) return null;
  const rows: [string, string][] = [
    ["Folder", session.workspace_directory],
    ["Agent", session.agent],
    ["Messages", model.transcript.messages.length + (model.transcript.isComplete.value ? "" : "+")],
    ["Tokens in", usage?.view.tokens_in ?? ""],
    ["Tokens out", usage?.view.tokens_out ?? ""],
    ["Cost", usage?.view.cost ?? ""],
  ];
  const path = sessionPath(session.id);
  const todos = latestTodos(model);
  return (
    <>
      <dl class="facts" data-order={order}>
        {rows.flatMap(([name, value]) => [<dt>{name}</dt>, <dd>{value}</dd>])}
      </dl>
      <p class="links">
        <button class="quiet" onClick={() => download(`${path}/export`, `${session.id}.json`).catch(model.report)}>
          Export
        </button>
        <button class="quiet" onClick={() => download(`${path}/share`, `${session.id}.html`).catch(model.report)}>
          Share as a page
        </button>
        <button class="quiet" onClick={() => download(`${path}/trace`, "trace.html").catch(model.report)}>
          Trace as a page
        </button>
      </p>
      {todos ? (
        <>
          <h2>Tasks</h2>
          <TodoList todos={todos} />
        </>
      ) : null}
      <SessionPlots model={model} />
      <ContextMap key={model.id} model={model} />
    </>
  );
}

function latestTodos(model: SessionModel): { content: string; status?: string }[] | null {
  for (const message of [...model.transcript.messages].reverse()) {
    void message.version.value;
    for (const part of [...message.parts].reverse()) {
      const todos = model.transcript.views.get(part.id)?.todos;
      if (todos?.length) return todos;
    }
  }
  return null;
}

function Processes({ model, onError }: { model: SessionModel; onError: (error: unknown) => void }) {
  const [processes, setProcesses] = useState<(Process & { output: string })[] | null>(null);
  const [sure, setSure] = useState("");
  const path = `${sessionPath(model.id)}/processes`;
  const load = async (): Promise<void> => {
    const found = await get<Process[]>(path);
    const outputs = await Promise.all(
      found.map(({ id }) =>
        get<{ text: string }>(`${path}/${encodeURIComponent(id)}/output`).then(
          ({ text }) => text,
          () => "",
        ),
      ),
    );
    setProcesses(found.map((process, index) => ({ ...process, output: outputs[index]! })));
  };
  useEffect(() => {
    load().catch(onError);
    const timer = setInterval(() => {
      if (!document.hidden) load().catch(() => {});
    }, 2000);
    return () => clearInterval(timer);
  }, [model.id]);
  if (!processes) return null;
  if (!processes.length) return <p class="note">No process runs in this session.</p>;
  const act = (process: Process, action: string): void =>
    void post(`${path}/${encodeURIComponent(process.id)}/${action}`)
      .then(load)
      .catch(onError);
  return (
    <>
      {processes.map((process) => {
        const isRunning = process.ending === null;
        return (
          <details class="call" open={isRunning} key={process.id}>
            <summary>
              <span class="subject">{process.command}</span>
              <span class={`status ${isRunning ? "calling" : "done"}`}>{isRunning ? "running" : "ended"}</span>
            </summary>
            <div class="inside">
              <pre tabIndex={0}>{process.output || "(no output)"}</pre>
              {isRunning ? (
                <div class="buttons">
                  {process.backgrounded ? null : (
                    <button onClick={() => act(process, "background")}>To the background</button>
                  )}
                  <button
                    class="danger"
                    onClick={() => (sure === process.id ? act(process, "kill") : setSure(process.id))}
                  >
                    {sure === process.id ? "Really end it?" : "End it"}
                  </button>
                </div>
              ) : null}
            </div>
          </details>
        );
      })}
    </>
  );
}

function Usage({ onError }: { onError: (error: unknown) => void }) {
  const [by, setBy] = useState("day");
  const [rows, setRows] = useState<UsageRow[]>([]);
  useEffect(() => void get<UsageRow[]>("/usage", { by }).then(setRows, onError), [by]);
  const total = ({ tokens }: UsageRow): number =>
    tokens.input + tokens.output + tokens.reasoning + tokens.cache.read + tokens.cache.write;
  const columns = by === "tool" ? ["tool", "calls"] : [by, "answers", "tokens", "cost"];
  const cells = (row: UsageRow): string[] =>
    by === "tool" ? [row.key, String(row.calls)] : [row.key, String(row.messages), row.view.tokens, row.view.cost];
  return (
    <>
      <select aria-label="Usage by" value={by} onChange={(event) => setBy(event.currentTarget.value)}>
        {["day", "model", "agent", "tool"].map((name) => (
          <option value={name}>by {name}</option>
        ))}
      </select>
      {rows.length ? null : <p class="note">Nothing has been used yet.</p>}
      {by === "day" && rows.some((row) => Number(row.cost)) ? (
        <Plot name="Cost" days={rows.map((row) => [row.key, Number(row.cost), row.view.cost])} />
      ) : null}
      {by === "day" && rows.length ? (
        <Plot name="Tokens" days={rows.map((row) => [row.key, total(row), row.view.tokens])} />
      ) : null}
      {rows.length ? (
        <table class="usage">
          <thead>
            <tr>
              {columns.map((name) => (
                <th scope="col">{name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr>
                {cells(row).map((cell) => (
                  <td>{cell}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
    </>
  );
}

const PLOTTED_DAYS = 30;

function Plot({ name, days }: { name: string; days: [string, number, string][] }) {
  const shown = days.slice(-PLOTTED_DAYS);
  const [, most, text] = shown.reduce((found, day) => (day[1] > found[1] ? day : found));
  const width = 300 / Math.max(shown.length, 12);
  const caption = `${name} by day, at most ${text}`;
  const ends = shown.length > 1 ? `${shown[0]![0]} to ${shown.at(-1)![0]}` : shown[0]![0];
  return (
    <figure class="plot">
      <figcaption>{caption}</figcaption>
      <svg viewBox="0 0 300 92" preserveAspectRatio="none" role="img" aria-label={`${caption}, ${ends}`}>
        {shown.map(([key, value, label], index) => {
          const height = Math.max(1, (value / (most || 1)) * 90);
          return (
            <rect x={index * width + 1} y={92 - height} width={Math.max(1, width - 2)} height={height} rx={1.5}>
              <title>{`${key}: ${label}`}</title>
            </rect>
          );
        })}
      </svg>
      <p class="axis">{ends}</p>
    </figure>
  );
}
