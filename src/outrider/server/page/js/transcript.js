// A session as this page knows it: what was kept, by id, and what is being written now.

export class Transcript {
  constructor() {
    this.session = null;
    this.messages = [];
    this.byId = new Map();
    this.parts = new Map();
    this.views = new Map(); // what the server says to show of messages and parts, by id; null for what is not shown
    this.first = true;
  }

  load(page, { before = false } = {}) {
    this.session = page.session;
    for (const views of [page.part_views, page.message_views]) for (const [id, view] of Object.entries(views)) this.views.set(id, view);
    const added = page.messages.filter((message) => !this.byId.has(message.id));
    for (const message of added) {
      this.byId.set(message.id, message);
      for (const part of message.parts) this.parts.set(part.id, part);
    }
    this.messages = before ? [...added, ...this.messages] : [...this.messages, ...added];
    this.first = page.first;
    return added;
  }

  change(change) {
    switch (change.type) {
      case "session":
        this.session = change.session;
        return { session: true };
      case "message": {
        this.views.set(change.message.id, change.view);
        const known = this.byId.get(change.message.id);
        if (known) {
          Object.assign(known, { ...change.message, parts: known.parts, begun: false });
          return { message: known };
        }
        const message = { ...change.message, parts: [] };
        this.byId.set(message.id, message);
        this.messages.splice(this.placeOf(message), 0, message);
        return { message, added: true };
      }
      case "part":
        return this.put(change.part, change.view);
      default:
        return {};
    }
  }

  // A message that changed has its last number only, so its parts may come before it; until then it is one that is
  // being written. One that is older than what is shown (ids have the order of time) is not shown.
  messageOf(id) {
    if (!this.byId.has(id) && !(id < this.messages.at(-1)?.id)) {
      const message = { id, role: "assistant", parts: [], begun: true };
      this.byId.set(id, message);
      this.messages.push(message);
    }
    return this.byId.get(id);
  }

  // An answer is shown as it is written, perhaps a moment before the words that it answers have come.
  placeOf(message) {
    let at = this.messages.length;
    while (at > 0 && this.messages[at - 1].begun && message.id < this.messages[at - 1].id) at -= 1;
    return at;
  }

  put(part, view) {
    this.views.set(part.id, view);
    const message = this.messageOf(part.message_id);
    if (!message) return {};
    const at = message.parts.findIndex((known) => known.id === part.id);
    if (at < 0) message.parts.push(part);
    else message.parts[at] = part;
    this.parts.set(part.id, part);
    return { message, part };
  }

  // A delta of a part that may not have been kept yet: it shows at once, and its full value follows.
  delta(event) {
    const message = this.messageOf(event.message_id);
    if (!message) return {};
    let part = this.parts.get(event.part_id);
    if (!part) {
      part = { type: event.field === "reasoning" ? "reasoning" : "text", id: event.part_id, message_id: event.message_id, text: "" };
      this.put(part, null);
    }
    if (part.type === "text" || part.type === "reasoning") {
      part.text = (part.text ?? "") + event.delta;
      if (!this.views.get(part.id)) this.views.set(part.id, { kind: part.type, title: "thinking…" });
    }
    return { message, part };
  }
}
