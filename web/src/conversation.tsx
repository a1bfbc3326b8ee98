// The list of messages. Only messages near the visible area are in the document; the others are represented by their
// height. The list follows its end until the user scrolls up.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { MessageItem, NoticeLine, type MessageActions } from "./parts";
import type { SessionModel, UserCommand } from "./session-model";

const ALWAYS_RENDERED = 80; // a conversation of at most this many messages is rendered completely
const ESTIMATED_HEIGHT = 160; // pixels of a message that was not rendered yet
const MARGIN = 1500; // pixels that are rendered above and below the visible area
const HOLD_MS = 5000; // for which a search hit stays in view while the messages around it are rendered
const END_DISTANCE = 80; // pixels from the end within which scrolling down jumps to the end
const AT_END = 2; // pixels from the end that are its end: positions have fractions

// `isNested` is set for a conversation inside a page that scrolls as a whole.
export function Conversation({
  model,
  actions,
  isNested = false,
}: {
  model: SessionModel;
  actions: MessageActions;
  isNested?: boolean;
}) {
  const { transcript } = model;
  const area = useRef<HTMLElement>(null);
  const heights = useRef(new Map<string, number>());
  const isFollowing = useRef(true);
  const lastUserScroll = useRef(0);
  const held = useRef(""); // the message that stays in view until the user scrolls
  const lastTop = useRef(0);
  const isLoading = useRef(false);
  const [range, setRange] = useState<[number, number]>([0, ALWAYS_RENDERED]);
  const [isDetached, setDetached] = useState(false);
  const order = transcript.order.value;
  const { messages } = transcript;
  const heightOf = (index: number): number => heights.current.get(messages[index]!.id) ?? ESTIMATED_HEIGHT;

  const scrollToEnd = (): void => {
    const element = area.current;
    if (element) element.scrollTop = element.scrollHeight;
  };
  const scrollToHeld = (): void => {
    area.current?.querySelector(`[data-slot="${CSS.escape(held.current)}"]`)?.scrollIntoView({ block: "center" });
  };
  const follow = (): void => {
    held.current = "";
    isFollowing.current = true;
    setDetached(false);
    updateRange();
    scrollToEnd();
  };

  const updateRange = (): void => {
    const element = area.current;
    if (!element) return;
    if (isNested || messages.length <= ALWAYS_RENDERED) {
      setRange([0, messages.length]);
      return;
    }
    const index = held.current ? messages.findIndex(({ id }) => id === held.current) : -1;
    let top = 0;
    let start = 0;
    if (index >= 0) {
      const space = element.clientHeight + MARGIN;
      start = index;
      for (let height = 0; start > 0 && height < space;) height += heightOf(--start);
      let end = index + 1;
      for (let height = 0; end < messages.length && height < space;) height += heightOf(end++);
      setRange((known) => (known[0] === start && known[1] === end ? known : [start, end]));
      return;
    }
    if (isFollowing.current) {
      let height = 0;
      start = messages.length;
      while (start > 0 && height < element.clientHeight + MARGIN) height += heightOf(--start);
      setRange([start, messages.length]);
      return;
    }
    while (start < messages.length && top + heightOf(start) < element.scrollTop - MARGIN) top += heightOf(start++);
    let end = start;
    while (end < messages.length && top < element.scrollTop + element.clientHeight + MARGIN) top += heightOf(end++);
    setRange((known) => (known[0] === start && known[1] === end ? known : [start, end]));
  };

  const loadEarlier = async (): Promise<void> => {
    if (isLoading.current || transcript.isComplete.value) return;
    isLoading.current = true;
    const element = area.current!;
    const [before, count] = [element.scrollHeight - element.scrollTop, messages.length];
    try {
      await model.loadEarlier();
      if (transcript.messages.length > count) isFollowing.current = false;
      requestAnimationFrame(() => (element.scrollTop = element.scrollHeight - before));
    } catch (error) {
      model.report(error);
    } finally {
      isLoading.current = false;
    }
  };

  const onScroll = (): void => {
    const element = area.current;
    if (!element) return; // the event may arrive after the conversation was left
    const distance = element.scrollHeight - element.scrollTop - element.clientHeight;
    const isByUser = Date.now() - lastUserScroll.current < 500; // layout changes also scroll
    const isUp = element.scrollTop < lastTop.current;
    lastTop.current = element.scrollTop;
    if (held.current) return;
    if (isByUser && distance > AT_END && (isUp || distance >= END_DISTANCE)) isFollowing.current = false;
    else if (distance <= AT_END || (isByUser && !isUp && distance < END_DISTANCE)) isFollowing.current = true;
    setDetached(!isFollowing.current);
    updateRange();
    if (element.scrollTop < 400 && !isFollowing.current) void loadEarlier();
  };
  const onUserScroll = (): void => {
    lastUserScroll.current = Date.now();
    held.current = "";
  };

  useLayoutEffect(updateRange, [order]);
  useEffect(() => {
    if (model.sent.value) follow();
  }, [model.sent.value]);
  // Heights of rendered messages are measured; the position of what is visible is preserved when messages above it change.
  useLayoutEffect(() => {
    const element = area.current!;
    const content = element.querySelector(".messages")!;
    const observer = new ResizeObserver((entries) => {
      let shift = 0;
      for (const entry of entries) {
        const id = (entry.target as HTMLElement).dataset["slot"];
        if (!id) continue;
        const height = entry.borderBoxSize[0]!.blockSize;
        const target = entry.target as HTMLElement;
        if (target.offsetTop + height < element.scrollTop) shift += height - (heights.current.get(id) ?? height);
        heights.current.set(id, height);
      }
      if (isFollowing.current) scrollToEnd();
      else if (held.current) scrollToHeld();
      else if (shift) element.scrollTop += shift;
    });
    observer.observe(element);
    observer.observe(content);
    for (const slot of content.querySelectorAll("[data-slot]")) observer.observe(slot);
    return () => observer.disconnect();
  }, [range, order]);
  useEffect(() => {
    if (isFollowing.current) scrollToEnd();
    else if (held.current) scrollToHeld();
  });

  useEffect(() => {
    const { id } = model.revealed.value;
    if (!messages.some((message) => message.id === id)) return;
    isFollowing.current = false;
    held.current = id;
    setDetached(true);
    updateRange();
    requestAnimationFrame(scrollToHeld);
    const timer = setTimeout(() => (held.current = ""), HOLD_MS);
    return () => clearTimeout(timer);
  }, [model.revealed.value]);

  const [start, end] = [
    Math.min(range[0], messages.length),
    Math.min(Math.max(range[1], isFollowing.current ? messages.length : 0), messages.length),
  ];
  let above = 0;
  let below = 0;
  for (let index = 0; index < start; index += 1) above += heightOf(index);
  for (let index = end; index < messages.length; index += 1) below += heightOf(index);
  const extras = model.notices.value.length + model.commands.value.length;
  return (
    <>
      <section
        {...(isNested ? { class: "log" } : { id: "conversation" })}
        ref={area}
        aria-label={isNested ? "What the run does" : "Conversation"}
        tabIndex={0}
        onScroll={onScroll}
        onWheel={onUserScroll}
        onTouchMove={onUserScroll}
        onPointerDown={onUserScroll}
        onPointerMove={(event) => event.buttons && onUserScroll()}
        onKeyDown={onUserScroll}
      >
        {transcript.isComplete.value ? null : (
          <button class="earlier quiet" onClick={loadEarlier}>
            Show earlier messages
          </button>
        )}
        {messages.length || extras ? null : (
          <div class="empty">
            <p>{transcript.session.value ? "This session has no messages yet." : ""}</p>
          </div>
        )}
        {transcript.notices.value.map((notice) => (
          <NoticeLine notice={notice} />
        ))}
        <div class="messages">
          <div class="spacer" style={{ height: `${above}px` }} />
          {messages.slice(start, end).map((message, index) => (
            <div
              key={message.id}
              data-slot={message.id}
              class={message.id === model.revealed.value.id ? "found" : undefined}
            >
              <MessageItem
                message={message}
                transcript={transcript}
                actions={actions}
                previous={messages[start + index - 1]}
              />
            </div>
          ))}
          <div class="spacer" style={{ height: `${below}px` }} />
        </div>
        {model.commands.value.map((command) => (
          <CommandRow key={command.id} command={command} />
        ))}
        {model.notices.value.map((notice) => (
          <NoticeLine notice={notice} />
        ))}
      </section>
      {isDetached && !isNested ? (
        <button id="to-end" class="to-end" onClick={follow} aria-label="Go to the end">
          ↓ Latest
        </button>
      ) : null}
    </>
  );
}

function CommandRow({ command }: { command: UserCommand }) {
  const isRunning = !command.status;
  const state = isRunning ? "calling" : command.succeeded ? "done" : "errored";
  return (
    <details class="call by-hand" open>
      <summary>
        <span class="tool">!</span>
        <span class="subject">{command.command}</span>
        <span class={`status ${state}`} role="status">
          {isRunning ? "running" : command.status}
        </span>
      </summary>
      <div class="inside">
        <pre class="output" tabIndex={0}>
          {command.output || (isRunning ? "" : "(no output)")}
        </pre>
        {isRunning ? (
          <div class="buttons">
            <button class="danger" onClick={() => command.controller.abort()}>
              End it
            </button>
          </div>
        ) : null}
      </div>
    </details>
  );
}
