// A session as the page knows it: stored messages by id, and what is being written now.
import { signal, type Signal } from "@preact/signals";
import type { Change, ItemView, LiveEvent, Message, MessagePage, MessageView, Notice, Part, Session } from "./types";

// A message with a counter that its component subscribes to. `isDraft` is set until the stored message arrives.
export interface ShownMessage extends Message {
  isDraft: boolean;
  version: Signal<number>;
}

export class Transcript {
  readonly session = signal<Session | null>(null);
  readonly order = signal(0); // changes when messages are added
  readonly isComplete = signal(true); // whether the first message is loaded
  readonly notices = signal<Notice[]>([]); // about stored rows that cannot be read
  messages: ShownMessage[] = [];
  readonly views = new Map<string, ItemView | null>();
  readonly messageViews = new Map<string, MessageView>();
  readonly outputs = new Map<string, string>(); // live output by call id
  private readonly byId = new Map<string, ShownMessage>();
  private readonly parts = new Map<string, Part>();

  load(page: MessagePage, { before = false } = {}): void {
    for (const [id, view] of Object.entries(page.part_views)) this.views.set(id, view);
    for (const [id, view] of Object.entries(page.message_views)) this.messageViews.set(id, view);
    const added = page.messages.filter((message) => !this.byId.has(message.id)).map((message) => this.add(message));
    this.messages = before ? [...added, ...this.messages] : [...this.messages, ...added];
    if (page.notices.length)
      this.notices.value = before ? [...page.notices, ...this.notices.value] : [...this.notices.value, ...page.notices];
    this.isComplete.value = page.first;
    this.session.value = page.session;
    this.order.value += 1;
  }

  apply(change: Change): void {
    switch (change.type) {
      case "session":
        this.session.value = change.session;
        break;
      case "message":
        this.putMessage(change.message, change.view);
        break;
      case "part":
        this.putPart(change.part, change.view);
        break;
      default:
        break; // handled by the session's model
    }
  }

  putPart(part: Part, view: ItemView | null): void {
    this.views.set(part.id, view);
    const message = this.messageOf(part.message_id);
    if (!message) return;
    const at = message.parts.findIndex((known) => known.id === part.id);
    if (at < 0) message.parts.push(part);
    else message.parts[at] = part;
    this.parts.set(part.id, part);
    message.version.value += 1;
  }

  // A delta may arrive before its part is stored: it is shown at once, and the stored value follows.
  applyDelta(event: LiveEvent): void {
    const { message_id: messageId, part_id: partId } = event;
    const message = messageId && partId ? this.messageOf(messageId) : undefined;
    if (!message || !messageId || !partId) return;
    let part = this.parts.get(partId);
    if (!part) {
      const type = event.field === "reasoning" ? "reasoning" : "text";
      part = { type, id: partId, message_id: messageId, text: "" };
      message.parts.push(part);
      this.parts.set(partId, part);
    }
    if (part.type !== "text" && part.type !== "reasoning") return;
    part.text = (part.text ?? "") + (event.delta ?? "");
    if (!this.views.get(partId)) this.views.set(partId, { kind: part.type, title: "thinking…" });
    message.version.value += 1;
  }

  applyOutput(event: LiveEvent): void {
    const callId = event.call_id ?? "";
    this.outputs.set(callId, ((this.outputs.get(callId) ?? "") + (event.output ?? "")).slice(-20_000));
    const message = this.messages.slice(-4).find((one) => one.parts.some((part) => part.call_id === callId));
    if (message) message.version.value += 1;
  }

  private add(message: Message, isDraft = false): ShownMessage {
    const shown: ShownMessage = { ...message, parts: message.parts ?? [], isDraft, version: signal(0) };
    this.byId.set(shown.id, shown);
    for (const part of shown.parts) this.parts.set(part.id, part);
    return shown;
  }

  private putMessage(message: Message, view: MessageView): void {
    this.messageViews.set(message.id, view);
    const known = this.byId.get(message.id);
    if (known) {
      Object.assign(known, { ...message, parts: known.parts, isDraft: false });
      known.version.value += 1;
      return;
    }
    const last = this.messages.at(-1);
    if (last && !last.isDraft && message.id < last.id) return; // on a page of earlier messages that is not loaded
    const shown = this.add({ ...message, parts: [] });
    this.messages.splice(this.placeOf(shown), 0, shown);
    this.order.value += 1;
  }

  // A stored message has the number of its last change, so its parts may arrive before it: until then it
  // is a draft. Ids are ordered by time; a part of a message before the loaded ones is not shown.
  private messageOf(id: string): ShownMessage | undefined {
    const last = this.messages.at(-1);
    if (!this.byId.has(id) && !(last && id < last.id)) {
      this.messages.push(this.add({ id, role: "assistant", parts: [] }, true));
      this.order.value += 1;
    }
    return this.byId.get(id);
  }

  private placeOf(message: ShownMessage): number {
    let at = this.messages.length;
    while (at > 0 && this.messages[at - 1]!.isDraft && message.id < this.messages[at - 1]!.id) at -= 1;
    return at;
  }
}
