// An agent that was called: its conversation inside of its caller's. It is read again and again while it works and is
// looked at; a feed for each of many agents would use up the few connections that a browser opens to one server.
import { get } from "./api.js";
import { h } from "./dom.js";
import { Transcript } from "./transcript.js";

const LOOK = 1000; // milliseconds

export class CalledAgent {
  // `works` tells whether its call is under way, `draw` makes a conversation of a place, a transcript and a way back.
  constructor(part, view, works, draw) {
    this.path = `/sessions/${encodeURIComponent(view.child_session_id)}/messages`;
    this.works = works;
    this.draw = draw;
    this.log = h("div", { class: "inside", "aria-label": `What ${view.title} does` });
    this.element = h("details", { class: "called", "data-part": part.id, open: works() },
      h("summary", {}, h("span", { class: "tool" }, `▸ ${view.title}`), h("span", { class: "subject" }, view.subject)),
      this.log);
    this.element.addEventListener("toggle", () => this.look());
  }

  async look() {
    if (this.looking || !this.element.open || !this.element.isConnected) return;
    this.looking = true;
    const works = this.works(); // before it is read: the last look comes after the end
    try {
      if (!document.hidden) this.show(await get(this.path, { limit: 60, views: true }));
    } catch (error) {
      if (!this.transcript) this.log.replaceChildren(h("p", { class: "note" }, works ? "…" : error.message));
    }
    this.looking = false;
    clearTimeout(this.timer);
    if (works) this.timer = setTimeout(() => this.look(), LOOK);
  }

  show(page) {
    if (this.transcript) return this.update(page);
    this.transcript = new Transcript();
    this.transcript.load(page);
    this.conversation = this.draw(this.log, this.transcript, async () => {
      this.transcript.load(await get(this.path, { limit: 60, views: true, before: this.transcript.messages[0].id }), { before: true });
      this.conversation.drawEarlier();
    });
  }

  update({ session, messages, part_views: parts, message_views: views }) {
    if (session.seq === this.transcript.session.seq) return;
    this.transcript.session = session;
    for (const message of messages) {
      const { message: known, added } = this.transcript.change({ type: "message", message, view: views[message.id] });
      if (added || message.error) this.conversation.soon(known);
      for (const part of message.parts) {
        if (JSON.stringify(part) === JSON.stringify(this.transcript.parts.get(part.id))) continue;
        this.transcript.put(part, parts[part.id]);
        this.conversation.soon(known, part);
      }
    }
  }
}
