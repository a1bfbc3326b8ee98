// A client with the official TypeScript SDK: unsaved buffers, a terminal, a question, a fork and a deletion.
// Usage: node sdk_client.mjs SDK WORKSPACE COMMAND...; prints one JSON object.
import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [sdk, workspace, command, ...args] = process.argv.slice(2);
const acp = await import(pathToFileURL(sdk).href);
const notes = join(workspace, "notes.txt");
const buffers = new Map([[notes, "remember the bread\n"]]);
const terminals = new Map();
const report = { written: [], updates: [], printed: "", exitCode: null, forms: [], asked: 0 };

const app = acp
  .client({ name: "test" })
  .onRequest(acp.methods.client.session.requestPermission, ({ params }) => {
    report.asked += 1;
    const allowed = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: allowed.optionId } };
  })
  .onRequest(acp.methods.client.fs.readTextFile, async ({ params }) => ({
    content: buffers.get(params.path) ?? (await readFile(params.path, "utf8")),
  }))
  .onRequest(acp.methods.client.fs.writeTextFile, async ({ params }) => {
    report.written.push([params.path.slice(workspace.length + 1), params.content]);
    buffers.delete(params.path);
    await writeFile(params.path, params.content);
    return {};
  })
  .onRequest(acp.methods.client.elicitation.create, ({ params }) => {
    report.forms.push(params.message);
    return { action: "accept", content: { choice: ["0"], text: "and water" } };
  })
  .onRequest(acp.methods.client.terminal.create, ({ params }) => {
    const child = spawn(params.command, params.args ?? [], { cwd: params.cwd ?? undefined });
    child.stdout.on("data", (chunk) => (report.printed += chunk));
    const exited = new Promise((resolve) => child.on("close", (code) => resolve({ exitCode: code })));
    terminals.set("t1", { child, exited });
    return { terminalId: "t1" };
  })
  .onRequest(acp.methods.client.terminal.waitForExit, ({ params }) => terminals.get(params.terminalId).exited)
  .onRequest(acp.methods.client.terminal.release, async ({ params }) => {
    terminals.get(params.terminalId).child.kill();
    return {};
  })
  .onNotification(acp.methods.client.session.update, ({ params }) => {
    const update = params.update;
    report.updates.push([update.sessionUpdate, update.content?.[0]?.type ?? null]);
  });

const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
await app.connectWith(stream, async (peer) => {
  const methods = acp.methods.agent;
  const offered = await peer.request(methods.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: {
      fs: { readTextFile: true, writeTextFile: true },
      terminal: true,
      elicitation: { form: {} },
      auth: { terminal: true },
    },
  });
  report.auth = offered.authMethods.map((method) => method.id);
  const { sessionId } = await peer.request(methods.session.new, { cwd: workspace, mcpServers: [] });
  const text = "do it";
  report.stop = (
    await peer.request(methods.session.prompt, { sessionId, prompt: [{ type: "text", text }] })
  ).stopReason;
  report.exitCode = (await terminals.get("t1").exited).exitCode;
  const fork = await peer.request(methods.session.fork, { sessionId, cwd: workspace, mcpServers: [] });
  report.forked = fork.sessionId !== sessionId;
  report.fork = (
    await peer.request(methods.session.prompt, { sessionId: fork.sessionId, prompt: [{ type: "text", text: "again" }] })
  ).stopReason;
  await peer.request(methods.session.delete, { sessionId });
  const listed = await peer.request(methods.session.list, { cwd: workspace });
  report.listed = listed.sessions.map((session) => session.sessionId === fork.sessionId);
});
agent.stdin.end();
console.log(JSON.stringify(report));
process.exit(0);
