// Syntax highlighting in a worker that is started with the first code block. A text that takes too long stays plain.
import { pageUrl } from "./api";
import type { HighlightRequest } from "./highlight-worker";

const LIMIT_MS = 3000; // of one text
const queue: { request: HighlightRequest; resolve: (html: string | null) => void }[] = [];
let worker: Worker | null = null;
let isBusy = false;
let count = 0;

export function highlightCode(text: string, language: string): Promise<string | null> {
  return new Promise((resolve) => {
    queue.push({ request: { id: ++count, text, language }, resolve });
    if (!isBusy) takeNext();
  });
}

function takeNext(): void {
  const next = queue.shift();
  isBusy = next !== undefined;
  if (!next) return;
  const finish = (html: string | null): void => {
    clearTimeout(timer);
    next.resolve(html);
    takeNext();
  };
  const giveUp = (): void => {
    worker?.terminate();
    worker = null;
    finish(null);
  };
  const timer = setTimeout(giveUp, LIMIT_MS);
  worker ??= new Worker(pageUrl("highlight-worker.js"), { type: "module", name: "highlight" });
  worker.onmessage = ({ data }: MessageEvent<{ id: number; html: string | null }>) => {
    if (data.id === next.request.id) finish(data.html);
  };
  worker.onerror = giveUp;
  worker.postMessage(next.request);
}
