import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser } from "../src/api";

test("events are parsed from chunks that break anywhere", () => {
  const stream = ': comment\n\nid: 3\nevent: change\ndata: {"a":1}\n\nevent: live\ndata: [1]\n\n';
  for (let cut = 0; cut <= stream.length; cut += 1) {
    const parser = new EventParser();
    const events = [...parser.push(stream.slice(0, cut)), ...parser.push(stream.slice(cut))];
    assert.deepEqual(events, [
      { name: "change", id: "3", data: '{"a":1}' },
      { name: "live", id: "", data: "[1]" },
    ]);
  }
});
