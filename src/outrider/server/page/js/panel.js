// The details beside a conversation: facts and links, the trace as a waterfall, processes, usage.
import { get, post } from "./api.js";
import { word } from "./calls.js";
import { $, count, dollars, h, seconds, svg } from "./dom.js";

export const TABS = { session: "Session", trace: "Trace", processes: "Processes", usage: "Usage" };

export function facts(transcript) {
  const { session, usage } = transcript;
  const rows = {
    Folder: session.workspace_directory,
    Agent: session.agent,
    Messages: transcript.messages.length + (transcript.first ? "" : "+"),
    "Tokens in": count(usage.input),
    "Tokens out": count(usage.output),
    Cost: usage.priced ? dollars(usage.cost) : usage.cost ? `${dollars(usage.cost)} and unknown` : "unknown",
  };
  const at = `/api/sessions/${session.id}`;
  return [
    h("dl", { class: "facts" }, ...Object.entries(rows).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
    h("p", { class: "links" },
      h("a", { href: `${at}/export`, download: "" }, "Export"),
      h("a", { href: `${at}/share`, download: "" }, "Share as a page"),
      h("a", { href: `${at}/trace`, download: "" }, "Trace as a page")),
  ];
}

export function waterfall(transcript) {
  const spans = [];
  for (const message of transcript.messages) {
    if (message.role !== "assistant" || !message.time) continue;
    const end = message.time.completed ?? Date.now();
    spans.push({ label: message.model?.model ?? "model", start: message.time.created, end, kind: message.error ? "failed" : "model" });
    for (const part of message.parts) {
      if (part.type !== "tool" || !part.state?.time?.start) continue;
      spans.push({ label: `  ${part.tool}`, start: part.state.time.start, end: part.state.time.end ?? Date.now(), kind: word(part) === "errored" ? "failed" : "tool" });
    }
  }
  if (!spans.length) return [h("p", { class: "note" }, "Nothing has run yet.")];
  const start = Math.min(...spans.map((span) => span.start));
  const whole = Math.max(1, Math.max(...spans.map((span) => span.end)) - start);
  return [h("div", { class: "waterfall", role: "list" }, ...spans.map((span) => {
    const bar = h("div", { class: `bar ${span.kind}` });
    bar.style.left = `${((span.start - start) / whole) * 100}%`;
    bar.style.width = `${((span.end - span.start) / whole) * 100}%`;
    return h("div", { class: "span", role: "listitem", "aria-label": `${span.label.trim()}, ${seconds(span.end - span.start)}` },
      h("span", { class: "label" }, span.label), h("div", { class: "track" }, bar), h("span", { class: "took" }, seconds(span.end - span.start)));
  }))];
}

export async function processes(sessionId, complain, again) {
  const found = await get(`/sessions/${sessionId}/processes`);
  if (!found.length) return [h("p", { class: "note" }, "No process runs in this session.")];
  const act = (process, what) => async () => {
    try {
      await post(`/sessions/${sessionId}/processes/${encodeURIComponent(process.id)}/${what}`);
    } catch (error) {
      complain(error);
    }
    again();
  };
  const one = async (process) => {
    const output = await get(`/sessions/${sessionId}/processes/${encodeURIComponent(process.id)}/output`).catch(() => ({ text: "" }));
    const running = process.ending === null;
    return h("details", { class: "call", open: running },
      h("summary", {}, h("span", { class: "subject" }, process.command), h("span", { class: `status ${running ? "calling" : "done"}` }, running ? "runs" : "ended")),
      h("div", { class: "inside" }, h("pre", {}, output.text || "(no output)"),
        running ? h("div", { class: "buttons" },
          process.backgrounded ? null : h("button", { onclick: act(process, "background") }, "To the background"),
          h("button", { class: "danger", onclick: act(process, "kill") }, "End it")) : null));
  };
  return Promise.all(found.map(one));
}

export async function usage(by = "day") {
  const rows = await get("/usage", { by });
  const choose = h("select", { "aria-label": "Usage by", onchange: async (event) => $("panel-body").replaceChildren(...(await usage(event.target.value))) },
    ...["day", "model", "agent", "tool"].map((name) => h("option", { value: name, selected: name === by }, `by ${name}`)));
  const total = (row) => row.tokens.input + row.tokens.output + row.tokens.reasoning + row.tokens.cache.read + row.tokens.cache.write;
  if (!rows.length) return [choose, h("p", { class: "note" }, "Nothing has been used yet.")];
  const money = (row) => (!row.unpriced ? dollars(row.cost) : Number(row.cost) ? `${dollars(row.cost)} + unknown` : "unknown");
  const shown = (row) => (by === "tool" ? { tool: row.key, calls: String(row.calls) } : { [by]: row.key, answers: String(row.messages), tokens: count(total(row)), cost: money(row) });
  const made = [choose];
  if (by === "day" && rows.some((row) => Number(row.cost))) made.push(plot(rows.map((row) => [row.key, Number(row.cost)]), "Cost", dollars));
  if (by === "day" && rows.length) made.push(plot(rows.map((row) => [row.key, total(row)]), "Tokens", count));
  made.push(h("table", { class: "usage" },
    h("thead", {}, h("tr", {}, ...Object.keys(shown(rows[0])).map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...Object.values(shown(row)).map((cell) => h("td", {}, cell)))))));
  return made;
}

const DAYS = 30;

// Bars by day, the last one at the right; the words stand outside of the picture, so that nothing bends them.
function plot(pairs, name, written) {
  const shown = pairs.slice(-DAYS);
  const most = Math.max(...shown.map(([, value]) => value));
  const wide = 300 / Math.max(shown.length, 12);
  const bars = shown.map(([key, value], at) => {
    const height = Math.max(1, (value / (most || 1)) * 90);
    const bar = svg("rect", { x: at * wide + 1, y: 92 - height, width: Math.max(1, wide - 2), height, rx: 1.5 });
    const title = svg("title");
    title.textContent = `${key}: ${written(value)}`;
    bar.append(title);
    return bar;
  });
  const told = `${name} by day, at most ${written(most)}`;
  const ends = shown.length > 1 ? `${shown[0][0]} to ${shown[shown.length - 1][0]}` : shown[0][0];
  return h("figure", { class: "plot" }, h("figcaption", {}, told),
    svg("svg", { viewBox: "0 0 300 92", preserveAspectRatio: "none", role: "img", "aria-label": `${told}, ${ends}` }, ...bars), h("p", { class: "axis" }, ends));
}
