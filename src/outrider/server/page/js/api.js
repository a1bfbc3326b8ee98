// Speaks to the server. The browser brings the cookie along; nothing is kept here.

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.type = error?.type ?? "";
  }
}

async function ask(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(`/api${path}`, options);
  } catch {
    throw new Refused(0, { message: "the server cannot be reached" });
  }
  if (answer.status === 204) return null;
  const read = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, read?.error);
  return read;
}

// An answer that goes on: each of its events is heard as it comes. Whoever aborts the signal ends it.
export async function stream(path, body, signal, hear) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const answer = await fetch(`/api${path}`, options);
  if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => null))?.error);
  const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) {
    const events = (rest + piece.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const [, name, data] = event.match(/^event: (.*)\ndata: (.*)$/) ?? [];
      if (name) hear(name, JSON.parse(data));
    }
  }
}

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return ask("GET", given.length ? `${path}?${new URLSearchParams(given)}` : path);
};
export const post = (path, body) => ask("POST", path, body);
export const patch = (path, body) => ask("PATCH", path, body);
export const remove = (path) => ask("DELETE", path);
