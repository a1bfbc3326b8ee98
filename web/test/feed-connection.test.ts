import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { FeedConnection, type FeedMessage } from "../src/feed-connection";

// The streams of the server, in the order of their requests.
class Stream {
  readonly follow: string;
  isAborted = false;
  private controller!: ReadableStreamDefaultController<Uint8Array>;

  constructor(
    url: URL,
    readonly signal: AbortSignal,
  ) {
    this.follow = url.searchParams.get("follow") ?? "";
    signal.addEventListener("abort", () => {
      this.isAborted = true;
      this.controller.error(new Error("aborted"));
    });
  }

  readonly body = new ReadableStream<Uint8Array>({ start: (controller) => void (this.controller = controller) });

  send(...seqs: number[]): void {
    const data = seqs.map((seq) => `event: change\ndata: ${JSON.stringify({ session_id: "s", seq, change: {} })}\n\n`);
    this.controller.enqueue(new TextEncoder().encode(data.join("")));
  }

  end(): void {
    this.controller.close();
  }
}

let streams: Stream[] = [];
beforeEach(() => void (streams = []));
globalThis.fetch = (url, options) => {
  const stream = new Stream(url as URL, options!.signal!);
  streams.push(stream);
  return Promise.resolve(new Response(stream.body));
};

async function until(condition: () => boolean): Promise<void> {
  const end = Date.now() + 5_000;
  while (!condition()) {
    assert.ok(Date.now() < end, "it did not happen");
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

function openTab(connection: FeedConnection) {
  const received: FeedMessage[] = [];
  const request = connection.subscribe((message) => received.push(message));
  request({ kind: "start", credential: "" });
  const seqs = () => received.flatMap((message) => (message.kind === "change" ? [message.seq] : []));
  return { received, request, seqs };
}

test("a tab without a session connects after the last tab was closed", async () => {
  const connection = new FeedConnection();
  openTab(connection).request({ kind: "close" });
  const first = openTab(connection);
  await until(() => streams.length === 1);
  await until(() => first.received.length === 1);
  first.request({ kind: "close" });
  await until(() => streams[0]!.isAborted);
  await new Promise((resolve) => setTimeout(resolve, 700)); // longer than the delay of a reconnection
  const second = openTab(connection);
  assert.deepEqual(second.received, [], "it is not connected yet");
  await until(() => streams.length === 2);
  await until(() => second.received.length === 1);
  second.request({ kind: "close" });
});

test("a request of a tab that is closed changes nothing", async () => {
  const connection = new FeedConnection();
  const closed = openTab(connection);
  closed.request({ kind: "close" });
  closed.request({ kind: "follow", sessionId: "s", after: 1 });
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(streams.length, 0);
});

test("a tab that needs older changes gets all of them although a newer one arrives before the reconnection", async () => {
  const connection = new FeedConnection();
  const first = openTab(connection);
  first.request({ kind: "follow", sessionId: "s", after: 9 });
  await until(() => streams.length === 1);
  streams[0]!.send(10);
  await until(() => first.seqs().length === 1);
  const second = openTab(connection);
  streams[0]!.send(11);
  second.request({ kind: "follow", sessionId: "s", after: 4 });
  await until(() => streams.length === 2);
  assert.equal(streams[1]!.follow, "s:4");
  streams[1]!.send(5, 6);
  await until(() => second.seqs().length === 2);
  assert.deepEqual(second.seqs(), [5, 6]);
  streams[1]!.end();
  await until(() => streams.length === 3);
  assert.equal(streams[2]!.follow, "s:6");
  for (const tab of [first, second]) tab.request({ kind: "close" });
});

test("of more sessions than a stream takes the newest are followed, and another one when one of them is closed", async () => {
  const connection = new FeedConnection();
  const tab = openTab(connection);
  const ids = Array.from({ length: 51 }, (_, index) => `s${index}`);
  for (const id of ids) tab.request({ kind: "follow", sessionId: id, after: 1 });
  await until(() => streams.length === 1);
  assert.deepEqual(
    streams[0]!.follow.split(","),
    ids.slice(1).map((id) => `${id}:1`),
  );
  await until(() => tab.received.length === 1);
  tab.request({ kind: "unfollow", sessionId: "s7" });
  await until(() => streams.length === 2);
  assert.deepEqual(
    streams[1]!.follow.split(","),
    ids.filter((id) => id !== "s7").map((id) => `${id}:1`),
  );
  tab.request({ kind: "close" });
});

test("a session that had no room is followed when another tab opens it", async () => {
  const connection = new FeedConnection();
  const [first, second] = [openTab(connection), openTab(connection)];
  for (let index = 0; index <= 50; index++) first.request({ kind: "follow", sessionId: `s${index}`, after: 1 });
  await until(() => streams.length === 1);
  second.request({ kind: "follow", sessionId: "s0", after: 1 });
  await until(() => streams.length === 2);
  assert.equal(streams[1]!.follow.split(",").at(-1), "s0:1");
  for (const tab of [first, second]) tab.request({ kind: "close" });
});
