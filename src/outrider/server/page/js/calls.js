// A call of a tool: its name, what it is about, one of six words, and inside what went in and what came out.
import { h, seconds } from "./dom.js";

export function word(part) {
  const state = part.state ?? {};
  switch (state.status) {
    case "pending":
      return state.phase === "streaming" ? "generating" : "generated";
    case "running":
      return "calling";
    case "completed":
      return "done";
    default:
      return state.reason === "canceled" || state.reason === "interrupted" ? "canceled" : "errored";
  }
}

export const hasEnded = (part) => ["completed", "error"].includes(part.state?.status);

export function subject(input) {
  for (const name of ["command", "path", "file_path", "pattern", "url", "query", "agent_name", "description", "name"]) {
    if (typeof input?.[name] === "string") return input[name];
  }
  const first = Object.values(input ?? {})[0];
  return first === undefined ? "" : typeof first === "string" ? first : JSON.stringify(first);
}

export function call(part, live, open) {
  const { state } = part;
  const said = word(part);
  const took = state?.time?.end ? seconds(state.time.end - state.time.start) : "";
  return h("details", { class: "call", open, "data-part": part.id },
    h("summary", {},
      h("span", { class: "tool" }, part.tool),
      h("span", { class: "subject" }, state?.title || subject(state?.input).split("\n")[0]),
      h("span", { class: `status ${said}` }, took ? `${said} · ${took}` : said)),
    h("div", { class: "inside" }, ...inside(part, live)));
}

function inside({ state }, live) {
  const made = [];
  const input = state?.input ?? {};
  if (state?.status === "pending" && state.raw && !Object.keys(input).length) made.push(h("pre", {}, state.raw));
  else if (difference(input)) made.push(diff(state?.metadata?.diff ?? difference(input)));
  else if (Object.keys(input).length) made.push(h("pre", {}, Object.keys(input).length === 1 && typeof Object.values(input)[0] === "string" ? Object.values(input)[0] : JSON.stringify(input, null, 2)));
  if (state?.metadata?.diff && !difference(input)) made.push(diff(state.metadata.diff));
  if (state?.output) made.push(h("pre", { class: "output" }, state.output));
  else if (live) made.push(h("pre", { class: "output" }, live));
  if (state?.error) made.push(h("p", { class: "failure" }, state.error));
  for (const file of state?.attachments ?? []) {
    if (file.url?.startsWith("data:image/") || file.data) made.push(image(file));
  }
  return made;
}

function image(file) {
  const type = file.mime_type ?? file.mime ?? "image/png";
  const source = file.url ?? `data:${type};base64,${file.data}`;
  return source.startsWith("data:image/") ? h("img", { src: source, alt: file.name || "an image" }) : h("span");
}

// What a call would do to a file, as lines that come and lines that go; "" where it does nothing of the kind.
export function difference(input) {
  if (typeof input.patch === "string") return input.patch;
  if (typeof input.content === "string" && typeof input.file_path === "string") return side(input.content, "+").join("\n");
  if (typeof input.old_string === "string" && typeof input.new_string === "string") {
    return [...side(input.old_string, "-"), ...side(input.new_string, "+")].join("\n");
  }
  return "";
}

const side = (text, mark) => (text ? text.replace(/\n$/, "").split("\n").map((line) => mark + line) : []);

export function diff(text) {
  const kind = (line) => (/^\+(?!\+\+ )/.test(line) ? "add" : /^-(?!-- )/.test(line) ? "remove" : /^(@@|\*\*\*|---|\+\+\+|diff )/.test(line) ? "at" : "");
  return h("pre", { class: "diff" }, ...text.split("\n").map((line) => (kind(line) ? h("span", { class: kind(line) }, line) : `${line}\n`)));
}

const SIGNS = { added: ["+", "add"], removed: ["-", "remove"], context: [" ", ""] };

// Files that a call would change, as the server read them from its arguments.
export function fileDiffs(files) {
  return h("div", {}, ...files.flatMap(({ old_path: old, new_path: path, hunks }) => [
    h("p", { class: "file" }, old === null ? `${path} (new)` : path === null ? `${old} (deleted)` : old === path ? path : `${old} → ${path}`),
    ...hunks.map(({ lines, heading }) => h("pre", { class: "diff" },
      heading ? h("span", { class: "at" }, `@@ ${heading}`) : null,
      ...lines.map(({ kind, text }) => {
        const [sign, style] = SIGNS[kind];
        return style ? h("span", { class: style }, sign + text) : `${sign}${text}\n`;
      }))),
  ]));
}
