// The files of the workspace: a tree that loads folders when they are opened, and a viewer with highlighting.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, sessionPath } from "./api";
import { formatBytes } from "./formats";
import { highlightElement } from "./markdown";
import type { SessionModel } from "./session-model";
import type { FileView, FolderListing } from "./types";

export function Files({ model }: { model: SessionModel }) {
  const [path, setPath] = useState("");
  return (
    <div class="file-browser">
      {path ? <Viewer model={model} path={path} onClose={() => setPath("")} /> : null}
      <ul class="tree" role="tree" aria-label="Files of the workspace" hidden={Boolean(path)} onKeyDown={moveInTree}>
        <Folder model={model} path="" onOpen={setPath} />
      </ul>
    </div>
  );
}

// Arrow keys move between the visible entries; right and left open and close a folder.
function moveInTree(event: KeyboardEvent): void {
  const items = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=treeitem]")];
  const at = items.indexOf(document.activeElement as HTMLElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const isOpen = items[at]?.getAttribute("aria-expanded");
  if (step) items[at + step]?.focus();
  else if (event.key === "Home") items[0]?.focus();
  else if (event.key === "End") items.at(-1)?.focus();
  else if ((event.key === "ArrowRight" && isOpen === "false") || (event.key === "ArrowLeft" && isOpen === "true"))
    items[at]!.click();
  else return;
  event.preventDefault();
}

function Folder({ model, path, onOpen }: { model: SessionModel; path: string; onOpen: (path: string) => void }) {
  const [listing, setListing] = useState<FolderListing | null>(null);
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  useEffect(
    () => void get<FolderListing>(`${sessionPath(model.id)}/tree`, { path }).then(setListing, model.report),
    [model.id, path, model.isBusy.value],
  );
  if (!listing) return null;
  if (!listing.entries.length)
    return (
      <li class="note" role="none">
        (empty)
      </li>
    );
  return (
    <>
      {listing.entries.map(({ name, kind, size, hidden }, index) => {
        const full = path ? `${path}/${name}` : name;
        const isFolder = kind === "folder";
        const isOpen = opened.has(name);
        const act = (): void => {
          if (hidden) return;
          if (!isFolder) return onOpen(full);
          const next = new Set(opened);
          if (!next.delete(name)) next.add(name);
          setOpened(next);
        };
        return (
          <li role="none" key={name}>
            <div
              role="treeitem"
              class={hidden ? "entry hidden-entry" : "entry"}
              tabIndex={!path && !index ? 0 : -1}
              aria-expanded={isFolder && !hidden ? isOpen : undefined}
              aria-disabled={hidden || undefined}
              data-path={full}
              title={hidden ? "It may hold secrets, or a rule forbids to read it" : full}
              onClick={act}
              onKeyDown={(event) => {
                if (event.key === "Enter" || event.key === " ") {
                  event.preventDefault();
                  act();
                }
              }}
            >
              <span aria-hidden="true">{isFolder ? (isOpen ? "▾ " : "▸ ") : "  "}</span>
              {name}
              {kind === "link" ? " →" : ""}
              {kind === "file" ? <span class="size">{formatBytes(size)}</span> : null}
              {hidden ? <span class="size">hidden</span> : null}
            </div>
            {isFolder && isOpen ? (
              <ul role="group" aria-label={name}>
                <Folder model={model} path={full} onOpen={onOpen} />
              </ul>
            ) : null}
          </li>
        );
      })}
      {listing.truncated ? (
        <li class="note" role="none">
          There are more entries.
        </li>
      ) : null}
    </>
  );
}

function Viewer({ model, path, onClose }: { model: SessionModel; path: string; onClose: () => void }) {
  const [file, setFile] = useState<FileView | null>(null);
  const [first, setFirst] = useState(1);
  const code = useRef<HTMLElement>(null);
  const close = useRef<HTMLButtonElement>(null);
  useEffect(() => close.current?.focus(), []);
  useEffect(
    () =>
      void get<FileView>(`${sessionPath(model.id)}/file`, { path, first }).then(setFile, (error) => {
        model.report(error);
        onClose();
      }),
    [path, first],
  );
  useEffect(() => {
    if (!file || !code.current) return;
    code.current.textContent = file.text;
    void highlightElement(code.current, path.split(".").pop() ?? "");
  }, [file]);
  const count = file?.text ? file.text.split("\n").length : 0;
  return (
    <section
      class="viewer"
      aria-label={path}
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          onClose();
        }
      }}
    >
      <div class="viewer-bar">
        <button class="quiet" ref={close} onClick={onClose}>
          ← Files
        </button>
        <span class="path">{path}</span>
        <button class="quiet" onClick={() => mention(path)}>
          Mention
        </button>
      </div>
      {file?.note ? <p class="note">{`${formatBytes(file.size)}, ${file.note}`}</p> : null}
      {count ? (
        <div class="source" tabIndex={0} role="group" aria-label={`Contents of ${path}`}>
          <pre class="numbers" aria-hidden="true">
            {Array.from({ length: count }, (_, index) => (file?.first ?? 1) + index).join("\n")}
          </pre>
          <pre>
            <code ref={code} />
          </pre>
        </div>
      ) : null}
      {file?.truncated || (file && file.first > 1) ? (
        <p class="buttons">
          {file.first > 1 ? <button onClick={() => setFirst(Math.max(1, first - 5000))}>Earlier lines</button> : null}
          {file.truncated ? (
            <button onClick={() => setFirst(file.first + count)}>
              Later lines{file.total ? ` (${file.total} in all)` : ""}
            </button>
          ) : null}
        </p>
      ) : null}
    </section>
  );
}

// Adds the file to what the user is writing.
function mention(path: string): void {
  const input = document.getElementById("input") as HTMLTextAreaElement | null;
  if (!input) return;
  input.value += `${input.value && !input.value.endsWith(" ") ? " " : ""}@${path} `;
  input.dispatchEvent(new Event("input", { bubbles: true }));
  input.focus();
}
