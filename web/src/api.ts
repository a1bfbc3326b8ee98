// Requests to the server.

export class ApiError extends Error {
  readonly status: number;
  readonly type: string;

  constructor(status: number, error?: { type?: string; message?: string }) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.type = error?.type ?? "";
  }
}

// Files of the page are served below page/, next to api/; a reverse proxy may serve both below a path.
const serverUrl = new URL("..", import.meta.url);
export const pageUrl = (name: string): URL => new URL(`page/${name}`, serverUrl);

// The secret of this browser. Local storage belongs to this origin alone; cookies are sent to every port of the host.
const CREDENTIAL_KEY = serverUrl.pathname === "/" ? "credential" : `credential ${serverUrl.pathname}`;
let credential = typeof localStorage === "undefined" ? "" : (localStorage.getItem(CREDENTIAL_KEY) ?? "");

export function storeCredential(secret: string): void {
  if (secret) localStorage.setItem(CREDENTIAL_KEY, secret);
  else localStorage.removeItem(CREDENTIAL_KEY);
  credential = secret;
}

export function setCredential(secret: string): void {
  credential = secret;
}

export const currentCredential = (): string => credential;

type Query = Record<string, string | number | boolean | null | undefined>;

async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = credential ? { Authorization: `Bearer ${credential}` } : {};
  const options: RequestInit = { method, headers };
  if (signal) options.signal = signal;
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response: Response;
  try {
    response = await fetch(new URL(`api${path}`, serverUrl), options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { message: "the server cannot be reached" });
  }
  if (!response.ok) {
    if (response.status === 401 && typeof document !== "undefined")
      document.dispatchEvent(new Event("outrider-signed-out"));
    const answer = (await response.json().catch(() => null)) as {
      error?: { type?: string; message?: string };
    } | null;
    throw new ApiError(response.status, answer?.error);
  }
  return response;
}

async function request<T>(method: string, path: string, body?: unknown): Promise<T> {
  const response = await send(method, path, body);
  return (response.status === 204 ? null : await response.json()) as T;
}

export function get<T>(path: string, query: Query = {}): Promise<T> {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return request<T>("GET", text ? `${path}?${text}` : path);
}

export const post = <T>(path: string, body?: unknown): Promise<T> => request<T>("POST", path, body);
export const patch = <T>(path: string, body: unknown): Promise<T> => request<T>("PATCH", path, body);
export const remove = (path: string): Promise<null> => request<null>("DELETE", path);
export const sessionPath = (id: string): string => `/sessions/${encodeURIComponent(id)}`;

export interface ServerEvent {
  name: string;
  id: string;
  data: string;
}

// Parses server-sent events from chunks of text.
export class EventParser {
  private rest = "";

  push(chunk: string): ServerEvent[] {
    const blocks = (this.rest + chunk).split("\n\n");
    this.rest = blocks.pop() ?? "";
    const events: ServerEvent[] = [];
    for (const block of blocks) {
      const event: ServerEvent = { name: "message", id: "", data: "" };
      for (const line of block.split("\n")) {
        const at = line.indexOf(": ");
        if (at <= 0) continue; // a comment
        const [field, value] = [line.slice(0, at), line.slice(at + 2)];
        if (field === "event") event.name = value;
        else if (field === "id") event.id = value;
        else if (field === "data") event.data += event.data ? `\n${value}` : value;
      }
      if (event.data) events.push(event);
    }
    return events;
  }
}

// Reads a stream of server-sent events until it ends or the signal is aborted.
export async function readEvents(
  method: string,
  path: string,
  body: unknown,
  signal: AbortSignal,
  onEvent: (event: ServerEvent) => void,
  onOpen?: () => void,
): Promise<void> {
  const response = await send(method, path, body, signal);
  onOpen?.();
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
    for (const event of parser.push(chunk.value)) onEvent(event);
  }
}

// Saves a document of the server as a file.
export async function download(path: string, filename: string): Promise<void> {
  const blob = await (await send("GET", path)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = filename;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
