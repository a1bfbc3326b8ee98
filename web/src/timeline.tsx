// What a session did over time: a waterfall of answers and calls without idle gaps, and plots of context and cost.
import { useEffect, useState } from "preact/hooks";
import { get, sessionPath } from "./api";
import type { SessionModel } from "./session-model";
import type { TimelineEntry } from "./types";

const LONGEST_GAP = 1000; // milliseconds; a longer pause between two steps is shortened to this
const REFRESH = 2000; // milliseconds between two requests while a turn runs

// The timeline of the whole session. It is requested again while a turn runs.
function useTimeline(model: SessionModel): TimelineEntry[] | null {
  const [entries, setEntries] = useState<TimelineEntry[] | null>(null);
  const isBusy = model.isBusy.value;
  useEffect(() => {
    let isClosed = false;
    const load = (): void => {
      if (!document.hidden) get<TimelineEntry[]>(`${sessionPath(model.id)}/timeline`).then((found) => isClosed || setEntries(found), (error) => isClosed || model.report(error));
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

const formatTime = (milliseconds: number): string => {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(1)} s`;
  return `${Math.floor(milliseconds / 60_000)} min ${Math.round((milliseconds % 60_000) / 1000)} s`;
};

export function Waterfall({ model }: { model: SessionModel }) {
  const entries = useTimeline(model);
  if (!entries) return <p class="note">…</p>;
  if (!entries.length) return <p class="note">Nothing has run yet.</p>;
  const now = Date.now();
  const { position, total } = compressIdle(entries.map(({ start, end }) => ({ start, end: end ?? now })));
  return (
    <>
      <div class="waterfall">
        {entries.map((entry) => {
          const end = entry.end ?? now;
          const took = entry.end === undefined || entry.end === null ? "running" : formatTime(end - entry.start);
          const depth = entry.depth ?? 0;
          const facts = entry.kind === "model" ? `, ${formatTokens(entry.prompt_tokens ?? 0)} tokens in, ${formatTokens(entry.output_tokens ?? 0)} out${entry.cost ? `, $${Number(entry.cost).toFixed(4)}` : ""}` : "";
          return (
            <button class="span" title={`${entry.agent ? `${entry.agent}: ` : ""}${entry.name}, ${took}${facts}`} onClick={() => void model.reveal(entry.message_id).catch(model.report)}>
              <span class="label" style={{ paddingLeft: `${depth + (entry.kind === "tool" ? 0.8 : 0)}rem` }}>{depth && entry.kind === "model" ? `${entry.agent} · ` : ""}{entry.name}</span>
              <span class="track"><span class={`bar ${entry.failed ? "failed" : entry.kind}`} style={{ left: `${(position(entry.start) / total) * 100}%`, width: `${((position(end) - position(entry.start)) / total) * 100}%` }} /></span>
              <span class="took">{took}</span>
            </button>
          );
        })}
      </div>
      <p class="axis">{`${formatTime(total)} of work; pauses are left out`}</p>
    </>
  );
}

const formatTokens = (count: number): string => (count < 1000 ? String(count) : count < 1_000_000 ? `${(count / 1000).toFixed(count < 10_000 ? 1 : 0)}k` : `${(count / 1_000_000).toFixed(1)}M`);

interface Interval {
  start: number;
  end: number;
}

// Maps times to positions without the pauses in which nothing ran, so that bars keep a readable width.
export function compressIdle(spans: Interval[]): { position: (time: number) => number; total: number } {
  const busy: { start: number; end: number; at: number }[] = [];
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    const last = busy.at(-1);
    if (last && span.start <= last.end) {
      last.end = Math.max(last.end, span.end);
      continue;
    }
    if (last) at += last.end - last.start + Math.min(span.start - last.end, LONGEST_GAP);
    busy.push({ start: span.start, end: span.end, at });
  }
  const position = (time: number): number => {
    const found = busy.findLast(({ start }) => start <= time) ?? busy[0]!;
    return found.at + Math.min(time, found.end) - found.start;
  };
  const last = busy.at(-1)!;
  return { position, total: Math.max(1, last.at + last.end - last.start) };
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
      <LinePlot name="Context" values={own.map((entry) => entry.prompt_tokens!)} limit={limit} text={`${formatTokens(own.at(-1)!.prompt_tokens!)} tokens${limit ? ` of ${formatTokens(limit)}` : ""} in the last request`} />
      {sum ? <LinePlot name="Cost" values={costs} limit={null} text={`$${sum.toFixed(4)} so far`} /> : null}
    </>
  );
}

function LinePlot({ name, values, limit, text }: { name: string; values: number[]; limit: number | null; text: string }) {
  const top = Math.max(...values, limit ?? 0) || 1;
  const x = (index: number): number => (index / Math.max(1, values.length - 1)) * 300;
  const y = (value: number): number => 90 - (value / top) * 86;
  const points = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return (
    <figure class="plot" data-plot={name.toLowerCase()}>
      <figcaption>{name}: {text}</figcaption>
      <svg viewBox="0 0 300 92" preserveAspectRatio="none" role="img" aria-label={`${name} by answer: ${text}`}>
        <polygon class="area" points={`0,92 ${points} 300,92`} />
        <polyline points={points} vector-effect="non-scaling-stroke" />
        {limit ? <line class="limit" x1="0" x2="300" y1={y(limit)} y2={y(limit)} vector-effect="non-scaling-stroke" /> : null}
      </svg>
    </figure>
  );
}
