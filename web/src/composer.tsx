// The input: drafts per session, attachments, `@` files, `/` commands, `!` shell commands and the input queue.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, patch, sessionPath } from "./api";
import { FolderIcon } from "./parts";
import type { SessionModel } from "./session-model";

interface AttachedFile {
  filename: string;
  mime: string;
  url: string;
}

export interface PageChoices {
  modes: Record<string, string>;
  approvals: Record<string, string>;
  efforts: string[];
}

export interface PageCommand {
  name: string;
  description: string;
  run: (argument: string) => void | Promise<void>;
}

const MAX_FILE_BYTES = 8 * 1024 * 1024;
const draftKey = (id: string): string => `draft:${id}`;

function readFile(file: File): Promise<AttachedFile> {
  return new Promise((resolve, reject) => {
    if (file.size > MAX_FILE_BYTES) {
      reject(new Error(`${file.name} is larger than 8 MB`));
      return;
    }
    const reader = new FileReader();
    reader.onload = () => resolve({ filename: file.name || "pasted", mime: file.type || "application/octet-stream", url: String(reader.result) });
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

interface Suggestion {
  label: string;
  detail: string;
  insert: string;
}

// The word before the cursor that can be completed: `@path` anywhere, `/name` at the beginning.
function completableWord(text: string, cursor: number): { kind: "@" | "/"; word: string; start: number } | null {
  const before = text.slice(0, cursor);
  const file = /(?:^|\s)@([^\s@]*)$/.exec(before);
  if (file) return { kind: "@", word: file[1]!, start: cursor - file[1]!.length - 1 };
  const command = /^\/(\w*)$/.exec(before);
  return command ? { kind: "/", word: command[1]!, start: 0 } : null;
}

export function Composer({ model, commands, choices, onFolder }: { model: SessionModel; commands: PageCommand[]; choices: PageChoices; onFolder: () => void }) {
  const [text, setText] = useState(() => localStorage.getItem(draftKey(model.id)) ?? "");
  const [files, setFiles] = useState<AttachedFile[]>([]);
  const [suggestions, setSuggestions] = useState<Suggestion[]>([]);
  const [selected, setSelected] = useState(0);
  const input = useRef<HTMLTextAreaElement>(null);
  const chooser = useRef<HTMLInputElement>(null);

  const update = (value: string): void => {
    setText(value);
    if (value) localStorage.setItem(draftKey(model.id), value);
    else localStorage.removeItem(draftKey(model.id));
  };
  useEffect(() => {
    if (!matchMedia("(pointer: coarse)").matches) input.current?.focus(); // on a phone this would open the keyboard
  }, []);
  useLayoutEffect(() => {
    const element = input.current!;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight + 2}px`;
  }, [text]);

  const addFiles = async (added: Iterable<File>): Promise<void> => {
    for (const file of added) {
      try {
        const read = await readFile(file);
        setFiles((known) => [...known, read]);
      } catch (error) {
        model.report(error);
      }
    }
  };

  const suggest = async (): Promise<void> => {
    const element = input.current!;
    const found = completableWord(element.value, element.selectionStart);
    if (!found) {
      setSuggestions([]);
    } else if (found.kind === "/") {
      const fitting = commands.filter(({ name }) => name.startsWith(found.word));
      setSuggestions(fitting.map(({ name, description }) => ({ label: `/${name}`, detail: description, insert: `/${name} ` })));
    } else {
      const paths = await get<string[]>(`${sessionPath(model.id)}/workspace`, { query: found.word, limit: 8 }).catch(() => []);
      const now = completableWord(element.value, element.selectionStart);
      if (now?.word === found.word) setSuggestions(paths.map((path) => ({ label: path, detail: "", insert: `@${path} ` })));
    }
    setSelected(0);
  };
  const accept = (suggestion: Suggestion): void => {
    const element = input.current!;
    const found = completableWord(element.value, element.selectionStart);
    if (!found) return;
    const value = element.value.slice(0, found.start) + suggestion.insert + element.value.slice(element.selectionStart);
    update(value);
    setSuggestions([]);
    requestAnimationFrame(() => {
      element.focus();
      element.selectionStart = element.selectionEnd = found.start + suggestion.insert.length;
    });
  };

  const send = async ({ isQueued = false } = {}): Promise<void> => {
    const value = text;
    if (!value.trim() && !files.length) return;
    setSuggestions([]);
    const command = /^\/(\w+)\s*([^]*)$/.exec(value.trim());
    const known = command && commands.find(({ name }) => name === command[1]);
    const attached = files;
    update("");
    try {
      if (known) return void (await known.run(command[2]!.trim()));
      if (/^!\s*\S/.test(value)) return void (await model.runCommand(value.slice(1).trim()));
      setFiles([]);
      const parts = [...(value.trim() ? [{ type: "text", text: value }] : []), ...attached.map((file) => ({ type: "file", ...file }))];
      await model.send(parts, { isQueued });
    } catch (error) {
      update(input.current?.value || value);
      setFiles(attached);
      model.report(error);
    }
  };

  const onKeyDown = (event: KeyboardEvent): void => {
    if (suggestions.length) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        setSelected((selected + step + suggestions.length) % suggestions.length);
        return;
      }
      if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey)) {
        event.preventDefault();
        accept(suggestions[selected]!);
        return;
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        setSuggestions([]);
        return;
      }
    }
    const isTouch = matchMedia("(pointer: coarse)").matches;
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch) {
      event.preventDefault();
      void send({ isQueued: event.altKey });
    }
  };
  const busy = model.isBusy.value;
  const hasCommand = model.commands.value.some((command) => !command.status);
  return (
    <form id="composer" onSubmit={(event) => { event.preventDefault(); void send(); }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => { event.preventDefault(); void addFiles(event.dataTransfer?.files ?? []); }}>
      <ul id="queue" aria-label="Queued input">
        {model.queue.value.map((item) => (
          <li class="waiting" key={item.id}>
            <span>queued: {item.text}</span>
            <button type="button" class="quiet" aria-label={`Withdraw: ${item.text}`} onClick={() => model.withdraw(item).catch(model.report)}>✕</button>
          </li>
        ))}
      </ul>
      {files.length ? (
        <ul class="attachments" aria-label="Attached files">
          {files.map((file, index) => (
            <li>
              {file.mime.startsWith("image/") ? <img src={file.url} alt="" /> : "📎 "}{file.filename}
              <button type="button" class="quiet" aria-label={`Remove ${file.filename}`} onClick={() => setFiles(files.filter((_, at) => at !== index))}>✕</button>
            </li>
          ))}
        </ul>
      ) : null}
      {suggestions.length ? (
        <ul class="suggestions" role="listbox" id="suggestions" aria-label="Suggestions">
          {suggestions.map((suggestion, index) => (
            <li role="option" id={`suggestion-${index}`} aria-selected={index === selected} onPointerDown={(event) => { event.preventDefault(); accept(suggestion); }}>
              <span>{suggestion.label}</span> <span class="about">{suggestion.detail}</span>
            </li>
          ))}
        </ul>
      ) : null}
      <div class="row">
        <button type="button" class="quiet" aria-label="Attach files" title="Attach files" onClick={() => chooser.current?.click()}>+</button>
        <input ref={chooser} type="file" multiple hidden aria-label="Files to attach" onChange={(event) => { void addFiles(event.currentTarget.files ?? []); event.currentTarget.value = ""; }} />
        <textarea id="input" ref={input} rows={1} aria-label="Message" autocomplete="off" value={text}
          aria-controls={suggestions.length ? "suggestions" : undefined} aria-autocomplete="list"
          aria-activedescendant={suggestions.length ? `suggestion-${selected}` : undefined}
          placeholder={busy ? "Steer the agent: it reads this before its next step" : "What should be done?"}
          onInput={(event) => { update(event.currentTarget.value); void suggest(); }}
          onKeyDown={onKeyDown}
          onPaste={(event) => {
            const pasted = [...(event.clipboardData?.files ?? [])];
            if (!pasted.length) return;
            event.preventDefault();
            void addFiles(pasted);
          }} />
        <button type="submit" id="send" class="primary">{busy ? "Steer" : "Send"}</button>
        {busy ? <button type="button" id="enqueue" title="Send this when the turn is done (Alt+Enter)" onClick={() => void send({ isQueued: true })}>Queue</button> : null}
        {busy || hasCommand ? <button type="button" id="abort" class="danger" onClick={() => model.stop()}>Stop</button> : null}
      </div>
      <SessionControls model={model} choices={choices} onFolder={onFolder} />
      <p class="hint">Enter sends, Shift+Enter starts a line, @ names a file, / lists commands, ! runs a shell command, Esc stops · Ctrl+K opens the command palette</p>
    </form>
  );
}

function SessionControls({ model, choices, onFolder }: { model: SessionModel; choices: PageChoices; onFolder: () => void }) {
  const session = model.transcript.session.value!;
  const [models, setModels] = useState<string[]>([]);
  const usedModel = (void model.transcript.order.value, model.transcript.messages.findLast((message) => message.role === "assistant" && message.model)?.model?.model ?? "model");
  const change = (fields: Record<string, unknown>): void => void patch(sessionPath(model.id), fields).catch(model.report);
  const loadModels = (): void => {
    void get<string[]>("/models").then(setModels, model.report);
  };
  return (
    <div class="controls">
      <select id="model" aria-label="Model" value={model.status.value?.model ?? ""} onFocus={loadModels} onPointerDown={loadModels} onChange={(event) => void model.setModel(event.currentTarget.value).catch(model.report)}>
        <option value="">{model.status.value?.model.split("/").pop() ?? usedModel}</option>
        {models.map((name) => <option value={name}>{name}</option>)}
      </select>
      <select id="mode" aria-label="Mode" value={session.mode} onChange={(event) => change({ mode: event.currentTarget.value })}>
        {Object.entries(choices.modes).map(([name, text]) => <option value={name} title={text}>{name}</option>)}
      </select>
      {session.mode === "agent" ? (
        <select id="approval" aria-label="Approval level" value={session.approval} onChange={(event) => change({ approval: event.currentTarget.value })}>
          {Object.entries(choices.approvals).map(([name, text]) => <option value={name} title={`asks about ${text}`}>{name}</option>)}
        </select>
      ) : null}
      <select id="effort" aria-label="Reasoning effort" value={model.status.value?.effort ?? ""} onChange={(event) => void model.setEffort(event.currentTarget.value).catch(model.report)}>
        <option value="">effort</option>
        {choices.efforts.map((name) => <option value={name}>{name}</option>)}
      </select>
      <AgentChoice model={model} />
      <button type="button" id="folder" class="quiet" title={session.workspace_directory} aria-label={`Folder ${session.workspace_directory}. Start a session in another folder`} onClick={onFolder}><FolderIcon /> {session.workspace_directory.split("/").pop()}</button>
    </div>
  );
}

// The agent that answers, if there are several.
function AgentChoice({ model }: { model: SessionModel }) {
  const [agents, setAgents] = useState<string[]>([]);
  useEffect(() => void get<{ name: string }[]>("/agents").then((found) => setAgents(found.map(({ name }) => name)), () => {}), []);
  if (agents.length < 2) return null;
  return (
    <select id="agent" aria-label="Agent" value={model.transcript.session.value!.agent} onChange={(event) => void patch(sessionPath(model.id), { agent: event.currentTarget.value }).catch(model.report)}>
      {agents.map((name) => <option value={name}>{name}</option>)}
    </select>
  );
}
