import assert from "node:assert/strict";
import { test } from "node:test";
import { Transcript } from "../src/transcript";
import type { Change, Message, Part } from "../src/types";

const message = (id: string, role: Message["role"], rest: Partial<Message> = {}): Change => ({
  type: "message",
  message: { id, role, parts: [], ...rest },
  view: {},
});
const text = (id: string, messageId: string, content: string): Change => ({
  type: "part",
  part: { id, message_id: messageId, type: "text", text: content } as Part,
  view: { kind: "text" },
});

test("parts that arrive before their message are shown in it", () => {
  const transcript = new Transcript();
  transcript.apply(message("2", "user"));
  transcript.apply(text("a", "3", "said"));
  transcript.apply(text("b", "1", "older than what is loaded"));
  transcript.apply(message("3", "assistant", { finish: "stop" }));
  assert.deepEqual(
    transcript.messages.map((one) => [one.id, one.role, one.finish ?? "", one.parts.map((part) => part.text)]),
    [
      ["2", "user", "", []],
      ["3", "assistant", "stop", ["said"]],
    ],
  );
});

test("a prompt that arrives after the first words of its answer stands before them", () => {
  const transcript = new Transcript();
  transcript.apply(message("1", "user"));
  transcript.applyDelta({
    type: "PartDeltaEvent",
    session_id: "s",
    message_id: "4",
    part_id: "a",
    field: "text",
    delta: "the answer",
  });
  transcript.apply(message("3", "user"));
  transcript.apply(message("4", "assistant", { finish: "stop" }));
  transcript.apply(message("5", "user"));
  assert.deepEqual(
    transcript.messages.map((one) => one.id),
    ["1", "3", "4", "5"],
  );
});

test("deltas are appended to their part until the stored part replaces it", () => {
  const transcript = new Transcript();
  const delta = (content: string): void =>
    transcript.applyDelta({
      type: "PartDeltaEvent",
      session_id: "s",
      message_id: "1",
      part_id: "a",
      field: "text",
      delta: content,
    });
  delta("one ");
  delta("two");
  assert.equal(transcript.messages[0]!.parts[0]!.text, "one two");
  transcript.apply(text("a", "1", "one two three"));
  assert.equal(transcript.messages[0]!.parts[0]!.text, "one two three");
  assert.equal(transcript.messages[0]!.parts.length, 1);
});
