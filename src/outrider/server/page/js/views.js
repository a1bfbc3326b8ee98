// Draws what the server says to show of a part (its view). The page decides only how it looks: titles, subjects, states,
// diffs and figures come as texts, and a kind that this page does not know is drawn from the same fields.
import { h } from "./dom.js";
import { markdown } from "./markdown.js";

export const diff = (rows) => h("pre", { class: "diff" }, ...rows.map(({ kind, text }) => h("span", { class: kind }, text)));

// A row that opens: a tool call, a command, or anything new.
export function row(view, part, live, open) {
  const text = [view.title, view.subject, view.status_text].some(Boolean);
  return h("details", { class: "call", open, "data-part": part.id },
    h("summary", {},
      h("span", { class: "tool" }, text ? view.title : view.kind),
      h("span", { class: "subject" }, view.subject),
      view.status_text ? h("span", { class: `status ${view.status ?? ""}` }, view.status_text) : null),
    h("div", { class: "inside" }, ...inside(view, part, live)));
}

function inside(view, { state }, live) {
  const output = view.output || state?.output || live;
  return [
    view.input ? h("pre", {}, view.input) : null,
    view.diff ? diff(view.diff) : null,
    view.todos ? todoList(view.todos) : null,
    view.body ? markdown(view.body) : null,
    output || view.kind === "command" ? h("pre", { class: "output" }, output || "(no output)") : null,
    state?.error ? h("p", { class: "failure" }, state.error) : null,
    ...(state?.attachments ?? []).map((file) => image(file.url ?? `data:${file.mime_type ?? file.mime};base64,${file.data}`, file.name)),
  ];
}

const todoList = (todos) => h("ul", { class: "todos" }, ...todos.map(({ content, status }) => h("li", { class: status ?? "pending" }, content)));

function image(source, name) {
  return source.startsWith("data:image/") ? h("img", { src: source, alt: name || "an image" }) : null;
}

export function file(view, part) {
  return h("p", { class: "note", "data-part": part.id }, image(part.url ?? "", part.filename) ?? `📎 ${view.subject}`);
}

// A sentence of the program itself, with more to read in it if there is a body.
export function notice({ level, text, body }, id) {
  if (!body) return h("p", { class: level === "error" ? "failure" : `note ${level}`, "data-part": id }, text);
  return h("details", { class: "reasoning", "data-part": id }, h("summary", {}, text), markdown(body));
}
