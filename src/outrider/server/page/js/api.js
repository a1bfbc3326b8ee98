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

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return ask("GET", given.length ? `${path}?${new URLSearchParams(given)}` : path);
};
export const post = (path, body) => ask("POST", path, body);
export const patch = (path, body) => ask("PATCH", path, body);
export const remove = (path) => ask("DELETE", path);
