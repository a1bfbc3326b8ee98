// The details beside a conversation: facts and links, the trace as a waterfall, processes, usage.
import { get, post } from "./api.js";
import { $, h, svg } from "./dom.js";

export const TABS = { session: "Session", trace: "Trace", processes: "Processes", usage: "Usage" };

const RUNNING = "running";

export function facts(transcript, usage) {
  const { session } = transcript;
  const rows = {
    Folder: session.workspace_directory,
    Agent: session.agent,
    Messages: transcript.messages.length + (transcript.first ? "" : "+"),
    "Tokens in": usage?.view.tokens_in ?? "",
    "Tokens out": usage?.view.tokens_out ?? "",
    Cost: usage?.view.cost ?? "",
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
    const took = transcript.views.get(message.id)?.duration || RUNNING;
    spans.push({ label: message.model?.model ?? "model", start: message.time.created, end, took, kind: message.error ? "failed" : "model" });
    for (const part of message.parts) {
      if (part.type !== "tool" || !part.state?.time?.start) continue;
      const view = transcript.views.get(part.id);
      spans.push({ label: `  ${part.tool}`, start: part.state.time.start, end: part.state.time.end ?? Date.now(), took: view?.duration || RUNNING, kind: view?.status === "errored" ? "failed" : "tool" });
    }
  }
  if (!spans.length) return [h("p", { class: "note" }, "Nothing has run yet.")];
  const start = Math.min(...spans.map((span) => span.start));
  const whole = Math.max(1, Math.max(...spans.map((span) => span.end)) - start);
  return [h("div", { class: "waterfall", role: "list" }, ...spans.map((span) => {
    const bar = h("div", { class: `bar ${span.kind}` });
    bar.style.left = `${((span.start - start) / whole) * 100}%`;
    bar.style.width = `${((span.end - span.start) / whole) * 100}%`;
    return h("div", { class: "span", role: "listitem", "aria-label": `${span.label.trim()}, ${span.took}` },
      h("span", { class: "label" }, span.label), h("div", { class: "track" }, bar), h("span", { class: "took" }, span.took));
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
  const shown = (row) => (by === "tool" ? { tool: row.key, calls: String(row.calls) } : { [by]: row.key, answers: String(row.messages), tokens: row.view.tokens, cost: row.view.cost });
  const made = [choose];
  if (by === "day" && rows.some((row) => Number(row.cost))) made.push(plot(rows.map((row) => [row.key, Number(row.cost), row.view.cost]), "Cost"));
  if (by === "day" && rows.length) made.push(plot(rows.map((row) => [row.key, total(row), row.view.tokens]), "Tokens"));
  made.push(h("table", { class: "usage" },
    h("thead", {}, h("tr", {}, ...Object.keys(shown(rows[0])).map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...Object.values(shown(row)).map((cell) => h("td", {}, cell)))))));
  return made;
}

const DAYS = 30;

// Bars by day, the last one at the right; the words stand outside of the picture, so that nothing bends them.
function plot(days, name) {
  const shown = days.slice(-DAYS);
  const [, most, written] = shown.reduce((found, day) => (day[1] > found[1] ? day : found));
  const wide = 300 / Math.max(shown.length, 12);
  const bars = shown.map(([key, value, text], at) => {
    const height = Math.max(1, (value / (most || 1)) * 90);
    const bar = svg("rect", { x: at * wide + 1, y: 92 - height, width: Math.max(1, wide - 2), height, rx: 1.5 });
    const title = svg("title");
    title.textContent = `${key}: ${text}`;
    bar.append(title);
    return bar;
  });
  const told = `${name} by day, at most ${written}`;
  const ends = shown.length > 1 ? `${shown[0][0]} to ${shown[shown.length - 1][0]}` : shown[0][0];
  return h("figure", { class: "plot" }, h("figcaption", {}, told),
    svg("svg", { viewBox: "0 0 300 92", preserveAspectRatio: "none", role: "img", "aria-label": `${told}, ${ends}` }, ...bars), h("p", { class: "axis" }, ends));
}
