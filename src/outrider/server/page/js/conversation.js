// Draws the conversation. Only the part that changed is drawn anew, and at most once a frame.
import { CalledAgent } from "./called.js";
import { h } from "./dom.js";
import { markdown } from "./markdown.js";
import { file, notice, row } from "./views.js";

const hasEnded = (part) => ["completed", "error"].includes(part.state?.status);

export class Conversation {
  constructor(place, transcript, onEarlier, asker = "you") {
    this.place = place;
    this.transcript = transcript;
    this.asker = asker;
    this.onEarlier = onEarlier;
    this.outputs = new Map();
    this.called = new Map();
    this.waiting = new Map();
    this.apart = []; // what stands below the messages and is none of them (yet)
    this.place.replaceChildren();
    this.drawAll();
    this.toEnd();
    this.following = true;
    this.place.onscroll = () => (this.following = this.atEnd());
    new ResizeObserver(() => this.following && this.toEnd()).observe(this.place);
  }

  drawAll() {
    const top = this.transcript.first ? [] : [h("button", { class: "earlier quiet", onclick: this.onEarlier }, "Show earlier messages")];
    const empty = this.transcript.messages.length || this.apart.length ? [] : [h("div", { class: "empty" }, h("p", {}, "Nothing has been said yet."))];
    this.place.replaceChildren(...top, ...empty, ...this.transcript.messages.map((message) => this.message(message)), ...this.apart);
  }

  // Show something below the messages, until what it stands for is said in one of them.
  beside(element) {
    this.place.querySelector(".empty")?.remove();
    this.apart.push(element);
    this.place.append(element);
    this.toEnd();
  }

  // A sentence of the program about an event, such as a limit that is reached; it goes with the next message.
  notice({ level, text }) {
    const last = this.apart.at(-1);
    if (last?.textContent === text) return; // an event that comes again and again is one line
    this.beside(h("p", { class: `note ${level}`, role: "status" }, text));
  }

  // What has ended is part of the next message.
  said(still) {
    for (const element of this.apart) if (!still(element)) element.remove();
    this.apart = this.apart.filter(still);
  }

  follow() {
    if (this.following) this.toEnd();
  }

  drawEarlier() {
    const height = this.place.scrollHeight;
    this.drawAll();
    this.place.scrollTop += this.place.scrollHeight - height;
  }

  // Ask for a message or one of its parts to be drawn with the next frame.
  soon(message, part) {
    if (!this.waiting.size) requestAnimationFrame(() => this.flush());
    const parts = this.waiting.get(message) ?? new Set();
    if (part) parts.add(part);
    else parts.add(null);
    this.waiting.set(message, parts);
  }

  flush() {
    const follow = this.following;
    const waiting = this.waiting;
    this.waiting = new Map();
    for (const [message, parts] of waiting) {
      const shown = this.place.querySelector(`[data-message="${CSS.escape(message.id)}"]`);
      if (!shown) {
        this.place.querySelector(".empty")?.remove();
        this.place.insertBefore(this.message(message), this.shownAfter(message));
      } else if (parts.has(null)) shown.replaceWith(this.message(message));
      else for (const part of parts) this.redraw(shown, message, part);
    }
    if (follow) this.toEnd();
  }

  shownAfter(message) {
    const next = this.transcript.messages[this.transcript.messages.indexOf(message) + 1];
    return next ? this.place.querySelector(`[data-message="${CSS.escape(next.id)}"]`) : (this.apart[0] ?? null);
  }

  redraw(shown, message, part) {
    const old = shown.querySelector(`[data-part="${CSS.escape(part.id)}"]`);
    const made = this.part(part, message, old?.open);
    if (!made) old?.remove();
    else if (old) old.replaceWith(made);
    else shown.append(made);
    for (const one of part.type === "retry" ? message.parts : []) {
      if (this.superseded(one, message)) shown.querySelector(`[data-part="${CSS.escape(one.id)}"]`)?.remove();
    }
  }

  message(message) {
    const who = message.role === "user" ? this.asker : message.agent || "assistant";
    const model = message.model ? ` · ${message.model.model}` : "";
    const parts = message.parts.map((part) => this.part(part, message)).filter(Boolean);
    const notices = (this.transcript.views.get(message.id)?.notices ?? []).map((one) => notice(one));
    return h("article", { class: `message ${message.role}`, "data-message": message.id, "aria-label": who },
      h("div", { class: "who" }, who + (message.role === "user" ? "" : model)), ...parts, ...notices);
  }

  part(part, message, open = false) {
    const view = this.transcript.views.get(part.id);
    if (!view || this.superseded(part, message)) return null; // for the program only
    const made = this.made(part, view, message, open);
    if (view.withdrawn) made.classList.add("withdrawn");
    return made;
  }

  // Failed attempts without anything between them are one line, which shows the last one.
  superseded(part, message) {
    if (part.type !== "retry") return false;
    const later = message.parts.slice(message.parts.indexOf(part) + 1).find((one) => this.transcript.views.get(one.id));
    return later?.type === "retry" && !later.model;
  }

  made(part, view, message, open) {
    switch (view.kind) {
      case "text":
        if (message.role === "user") return h("div", { class: "text", "data-part": part.id }, part.text);
        return this.marked(markdown(view.body ?? part.text ?? ""), part);
      case "reasoning":
        return h("details", { class: "reasoning", "data-part": part.id, open }, h("summary", {}, view.title), markdown(part.text ?? ""));
      case "agent":
        return this.agent(part, view, message);
      case "file":
        return file(view, part);
      case "notice":
        return notice({ level: view.level, text: view.subject, body: view.body }, part.id);
      default: // calls, commands, and kinds that are newer than this page
        return row(view, part, this.outputs.get(part.call_id), open);
    }
  }

  // One element for good: what was opened in it stays open when the message around it is drawn anew.
  agent(part, view, message) {
    if (!this.called.has(part.id)) {
      const calls = () => message.parts.filter((one) => one.type === "tool");
      const own = () => calls().find((one) => one.state?.metadata?.child_session_id === part.child_session_id);
      const works = () => (own() ? !hasEnded(own()) : !calls().every(hasEnded));
      const draw = (place, transcript, onEarlier) => new Conversation(place, transcript, onEarlier, message.agent || "assistant");
      this.called.set(part.id, new CalledAgent(part, view, works, draw));
    }
    return this.called.get(part.id).element;
  }

  marked(element, part) {
    element.setAttribute("data-part", part.id);
    return element;
  }

  output(event) {
    const text = ((this.outputs.get(event.call_id) ?? "") + event.output).slice(-20_000);
    this.outputs.set(event.call_id, text);
    for (const message of this.transcript.messages.slice(-4)) {
      const part = message.parts.find((one) => one.type === "tool" && one.call_id === event.call_id);
      if (part) this.soon(message, part);
    }
  }

  atEnd() {
    return this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight < 80;
  }

  toEnd() {
    this.place.scrollTop = this.place.scrollHeight;
  }
}
