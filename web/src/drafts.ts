// Unsent input by session: the text in local storage, attached files in the browser's database, because they may be large.

export interface AttachedFile {
  filename: string;
  mime: string;
  url: string;
}

export const HOME_DRAFT = "home";
const textKey = (id: string): string => `draft:${id}`;
const STORE = "files";
const known = new Map<string, AttachedFile[]>();
let database: Promise<IDBDatabase> | null = null;

export const readDraft = (id: string): string => localStorage.getItem(textKey(id)) ?? "";

// A text that does not fit into the storage stays in the input and is lost with the page.
export function writeDraft(id: string, text: string): void {
  try {
    if (text) localStorage.setItem(textKey(id), text);
    else localStorage.removeItem(textKey(id));
  } catch {
    localStorage.removeItem(textKey(id)); // an older text would be wrong
  }
}

function openDatabase(): Promise<IDBDatabase> {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("outrider-drafts", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return database;
}

async function inStore(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest): Promise<unknown> {
  try {
    const opened = await openDatabase();
    return await new Promise((resolve, reject) => {
      const request = work(opened.transaction(STORE, mode).objectStore(STORE));
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  } catch {
    return undefined; // a private window without a database: files last as long as the page
  }
}

// The files if they are known without a request.
export const knownFiles = (id: string): AttachedFile[] => known.get(id) ?? [];

export async function readFiles(id: string): Promise<AttachedFile[]> {
  if (!known.has(id)) {
    const stored = ((await inStore("readonly", (store) => store.get(id))) as AttachedFile[] | undefined) ?? [];
    if (!known.has(id)) known.set(id, stored);
  }
  return knownFiles(id);
}

export function writeFiles(id: string, files: AttachedFile[]): Promise<unknown> {
  known.set(id, files);
  return inStore("readwrite", (store) => (files.length ? store.put(files, id) : store.delete(id)));
}

export function forgetDraft(id: string): void {
  writeDraft(id, "");
  void writeFiles(id, []);
}
