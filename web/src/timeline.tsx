// What a session did over time: a waterfall of answers and calls without idle gaps, and plots of context and cost.
import { useEffect, useState } from "preact/hooks";
import { get, sessionPath } from "./api";
import { formatCost, formatDuration, formatTokens } from "./formats";
import type { SessionModel } from "./session-model";
import type { ContextReport, TimelineEntry } from "./types";

const LONGEST_GAP = 0.01; // of the time in which something ran; a longer pause is shortened to this
const REFRESH = 2000; // milliseconds between two requests while a turn runs

// The timeline of the whole session. It is requested again while a turn runs.
function useTimeline(model: SessionModel): TimelineEntry[] | null {
  const [entries, setEntries] = useState<TimelineEntry[] | null>(null);
  const isBusy = model.isBusy.value;
  useEffect(() => {
    let isClosed = false;
    const load = (): void => {
      if (!document.hidden)
        get<TimelineEntry[]>(`${sessionPath(model.id)}/timeline`).then(
          (found) => isClosed || setEntries(found),
          (error) => isClosed || model.report(error),
        );
    };
    load();
    const timer = isBusy ? setInterval(load, REFRESH) : undefined;
    return () => {
      isClosed = true;
      clearInterval(timer);
    };
  }, [model.id, isBusy]);
  return entries;
}

export function Waterfall({ model }: { model: SessionModel }) {
  const entries = useTimeline(model);
  if (!entries) return <p class="note">…</p>;
  if (!entries.length) return <p class="note">Nothing has run yet.</p>;
  const now = Date.now();
  const { position, total, worked } = compressIdle(entries.map(({ start, end }) => ({ start, end: end ?? now })));
  return (
    <>
      <div class="waterfall">
        {entries.map((entry) => {
          const end = entry.end ?? now;
          const took = entry.end === undefined || entry.end === null ? "running" : formatDuration(end - entry.start);
          const depth = entry.depth ?? 0;
          const facts =
            entry.kind === "model"
              ? `, ${formatTokens(entry.prompt_tokens ?? 0)} tokens in, ${formatTokens(entry.output_tokens ?? 0)} out${entry.cost ? `, ${formatCost(Number(entry.cost))}` : ""}`
              : "";
          return (
            <button
              class="span"
              title={`${entry.agent ? `${entry.agent}: ` : ""}${entry.name}, ${took}${facts}`}
              onClick={() => void model.reveal(entry.message_id).catch(model.report)}
            >
              <span class="label" style={{ paddingLeft: `${depth + (entry.kind === "tool" ? 0.8 : 0)}rem` }}>
                {depth && entry.kind === "model" ? `${entry.agent} · ` : ""}
                {entry.name}
              </span>
              <span class="track">
                <span
                  class={`bar ${entry.failed ? "failed" : entry.kind}`}
                  style={{
                    left: `${(position(entry.start) / total) * 100}%`,
                    width: `${((position(end) - position(entry.start)) / total) * 100}%`,
                  }}
                />
              </span>
              <span class="took">{took}</span>
            </button>
          );
        })}
      </div>
      <p class="axis">{`${formatDuration(worked)} of work; pauses are left out`}</p>
    </>
  );
}

interface Interval {
  start: number;
  end: number;
}

// Maps times to positions without the pauses in which nothing ran, so that bars keep a readable width. `worked` is the
// time in which something ran.
export function compressIdle(spans: Interval[]): { position: (time: number) => number; total: number; worked: number } {
  const busy: { start: number; end: number; at: number }[] = [];
  for (const { start, end } of [...spans].sort((a, b) => a.start - b.start)) {
    const last = busy.at(-1);
    if (last && start <= last.end) last.end = Math.max(last.end, end);
    else busy.push({ start, end, at: 0 });
  }
  const worked = busy.reduce((sum, { start, end }) => sum + end - start, 0);
  busy.forEach((span, index) => {
    const before = busy[index - 1];
    if (before)
      span.at = before.at + before.end - before.start + Math.min(span.start - before.end, LONGEST_GAP * worked);
  });
  const position = (time: number): number => {
    const found = busy.findLast(({ start }) => start <= time) ?? busy[0]!;
    return found.at + Math.min(time, found.end) - found.start;
  };
  const last = busy.at(-1)!;
  return { position, total: Math.max(1, last.at + last.end - last.start), worked };
}

// Context and cost of the session, one point for each answer; called agents count towards the cost.
export function SessionPlots({ model }: { model: SessionModel }) {
  const entries = useTimeline(model);
  const answers = (entries ?? []).filter(({ kind }) => kind === "model");
  const own = answers.filter((entry) => !entry.depth && entry.prompt_tokens);
  if (own.length < 2) return null;
  const limit = model.status.value?.context_limit ?? null;
  let sum = 0;
  const costs = answers.map((entry) => (sum += Number(entry.cost ?? 0)));
  return (
    <>
      <LinePlot
        name="Context"
        values={own.map((entry) => entry.prompt_tokens!)}
        limit={limit}
        text={`${formatTokens(own.at(-1)!.prompt_tokens!)} tokens${limit ? ` of ${formatTokens(limit)}` : ""} in the last request`}
      />
      {sum ? <LinePlot name="Cost" values={costs} limit={null} text={`${formatCost(sum)} so far`} /> : null}
    </>
  );
}

function LinePlot({
  name,
  values,
  limit,
  text,
}: {
  name: string;
  values: number[];
  limit: number | null;
  text: string;
}) {
  const top = Math.max(...values, limit ?? 0) || 1;
  const x = (index: number): number => (index / Math.max(1, values.length - 1)) * 300;
  const y = (value: number): number => 90 - (value / top) * 86;
  const points = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return (
    <figure class="plot" data-plot={name.toLowerCase()}>
      <figcaption>
        {name}: {text}
      </figcaption>
      <svg viewBox="0 0 300 92" preserveAspectRatio="none" role="img" aria-label={`${name} by answer: ${text}`}>
        <polygon class="area" points={`0,92 ${points} 300,92`} />
        <polyline points={points} vector-effect="non-scaling-stroke" />
        {limit ? (
          <line class="limit" x1="0" x2="300" y1={y(limit)} y2={y(limit)} vector-effect="non-scaling-stroke" />
        ) : null}
      </svg>
    </figure>
  );
}

// What fills the last request, by source: the area of a box is its number of bytes. Built on demand, because the server builds the requests again.
export function ContextMap({ model }: { model: SessionModel }) {
  const [report, setReport] = useState<ContextReport | null>(null);
  const isBusy = model.isBusy.value;
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    if (isOpen && !isBusy) get<ContextReport>(`${sessionPath(model.id)}/context`).then(setReport, model.report);
  }, [model.id, isOpen, isBusy]);
  const last = report?.steps.findLast(({ recorded }) => recorded !== false);
  const shares = last?.sources ?? [];
  const boxes = report?.map ?? [];
  return (
    <details class="context-map" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>What fills the context</summary>
      {report && !shares.length ? <p class="note">No request of this session was recorded.</p> : null}
      {shares.length ? (
        <>
          <div
            class="treemap"
            role="img"
            aria-label={`Sources of the last request: ${boxes
              .slice(0, 5)
              .map(({ text }) => text)
              .join(", ")}`}
          >
            {boxes.map(({ left, top, width, height, hue, text }) => (
              <div
                title={text}
                style={{
                  left: `${left}%`,
                  top: `${top}%`,
                  width: `${width}%`,
                  height: `${height}%`,
                  background: `hsl(${hue} 45% 32%)`,
                }}
              >
                {text}
              </div>
            ))}
          </div>
          <p class="note">
            The last request: {formatTokens(shares.reduce((sum, { tokens }) => sum + tokens, 0))} tokens. `outrider
            context` shows the others.
          </p>
        </>
      ) : null}
    </details>
  );
}
