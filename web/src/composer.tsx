// The input: drafts per session, attachments, `@` files, `/` commands, `!` shell commands and the input queue.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { get, patch, post, sessionPath } from "./api";
import { knownFiles, readDraft, readFiles, writeDraft, writeFiles, type AttachedFile } from "./drafts";
import { ClipIcon, FolderIcon } from "./parts";
import type { ServerCompletion, ServerOffers } from "./types";
import type { SessionModel } from "./session-model";

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

interface Offer {
  name: string;
  description: string;
}

interface ResourceOffer extends Offer {
  insert: string;
}

// Names in the metadata of a session under which the server stores what was chosen for it.
const CHOSEN_MODEL = "outrider.model";
const CHOSEN_EFFORT = "outrider.effort";
const MAX_FILE_BYTES = 8 * 1024 * 1024;

function readFile(file: File): Promise<AttachedFile> {
  return new Promise((resolve, reject) => {
    if (file.size > MAX_FILE_BYTES) {
      reject(new Error(`${file.name} is larger than 8 MB`));
      return;
    }
    const reader = new FileReader();
    reader.onload = () =>
      resolve({
        filename: file.name || "pasted",
        mime: file.type || "application/octet-stream",
        url: String(reader.result),
      });
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

// The prompts of MCP servers are commands too, and their resources are mentioned like files: the server replaces
// `/SERVER:PROMPT ARGUMENTS` and `@SERVER:URI` in the input.
let offered: { at: number; offers: Promise<ServerOffers> } | null = null;
const OFFER_MS = 10_000;
const MAX_RESOURCES = 8;
const VALUES_MS = 150; // after the last key

function loadServerOffers(): Promise<ServerOffers> {
  if (!offered || Date.now() - offered.at > OFFER_MS) {
    offered = {
      at: Date.now(),
      offers: get<ServerOffers>("/mcp-servers/offers").catch(() => ({ prompts: [], resources: [] })),
    };
  }
  return offered.offers;
}

const loadPrompts = async (): Promise<Offer[]> =>
  (await loadServerOffers()).prompts.map(({ server, name, description, arguments: given = [] }) => {
    const words = given.map((one) => (one.required ? one.name.toUpperCase() : `[${one.name.toUpperCase()}]`)).join(" ");
    return {
      name: `${server}:${name}`,
      description: [words, description].filter(Boolean).join(" · ") || "a prompt",
    };
  });

// What MCP servers complete before the cursor: the arguments of a prompt, and values in the address of a resource.
async function loadValues(before: string): Promise<ServerCompletion> {
  const { prompts, resources } = await loadServerOffers();
  const command = /^\/([\w.-]+:[\w./-]+)\s/.exec(before)?.[1];
  const uri = /(?:^|\s)@(\S*)$/.exec(before)?.[1];
  const isPrompt = command !== undefined && prompts.some(({ server, name }) => `${server}:${name}` === command);
  const isTemplate =
    uri !== undefined && resources.some((one) => one.is_template && uri.startsWith(templateStart(one)));
  if (!isPrompt && !isTemplate) return { start: 0, choices: [] };
  await new Promise((resolve) => setTimeout(resolve, VALUES_MS));
  return get<ServerCompletion>("/mcp-servers/completions", { text: before });
}

const templateStart = ({ server, uri }: ServerOffers["resources"][number]): string => `${server}:${uri.split("{")[0]}`;

// A template has places for values. Its beginning is inserted; the server completes the rest.
async function loadResources(word: string): Promise<ResourceOffer[]> {
  const sought = word.toLowerCase();
  return (await loadServerOffers()).resources
    .map((one) => ({
      name: `${one.server}:${one.uri}`,
      description: [one.name, one.description].filter(Boolean).join(" · "),
      insert: one.is_template ? `@${templateStart(one)}` : `@${one.server}:${one.uri} `,
    }))
    .filter(({ name, description }) => `${name} ${description}`.toLowerCase().includes(sought))
    .slice(0, MAX_RESOURCES);
}

// The commands that the user or the project defines in Markdown files; the server has their texts.
const loadCustomCommands = (sessionId: string): Promise<Offer[]> =>
  get<{ name: string; description: string; hint: string; origin: string }[]>(
    `${sessionPath(sessionId)}/custom-commands`,
  ).then(
    (found) =>
      found.map(({ name, description, hint, origin }) => ({
        name,
        description: [hint, description, origin].filter(Boolean).join(" · "),
      })),
    () => [],
  );

interface Suggestion {
  label: string;
  detail: string;
  insert: string;
  start?: number; // of the text that it replaces, if it is not the word
  isOpen?: boolean; // more follows: the next completions are shown
  isHint?: boolean; // Enter sends the input, unless a suggestion was selected
}

// The word before the cursor that can be completed: `@path` anywhere, `/name` at the beginning, and then its arguments.
interface CompletableWord {
  kind: "@" | "/" | "=";
  word: string;
  start: number;
}

function completableWord(text: string, cursor: number): CompletableWord | null {
  const before = text.slice(0, cursor);
  const file = /(?:^|\s)@([^\s@]*)$/.exec(before);
  if (file) return { kind: "@", word: file[1]!, start: cursor - file[1]!.length - 1 };
  if (/^\/[\w.-]+:[\w./-]+\s/.test(before)) return { kind: "=", word: before, start: cursor };
  const command = /^\/([\w:./-]*)$/.exec(before);
  return command ? { kind: "/", word: command[1]!, start: 0 } : null;
}

export interface InputProps {
  id: string; // of the session, for the draft
  inputId: string;
  label: string;
  placeholder: string;
  commands: Offer[]; // that the page carries out
  loadOffers?: () => Promise<Offer[]>; // that the server expands
  loadValues?: (before: string) => Promise<ServerCompletion>;
  loadPaths?: (word: string) => Promise<string[]>;
  loadResources?: (word: string) => Promise<ResourceOffer[]>;
  onSend: (text: string, files: AttachedFile[], options: { isQueued: boolean }) => Promise<boolean>; // whether the files were sent
  onError: (error: unknown) => void;
  controls: ComponentChildren;
  buttons: (send: (isQueued?: boolean) => void, isEmpty: boolean) => ComponentChildren;
  minRows?: number;
}

// The card with the input: attachments above the text, settings and buttons below it.
export function InputCard({
  id,
  inputId,
  label,
  placeholder,
  commands,
  loadOffers,
  loadValues,
  loadPaths,
  loadResources,
  onSend,
  onError,
  controls,
  buttons,
  minRows = 1,
}: InputProps) {
  const [text, setText] = useState(() => readDraft(id));
  const [files, setShownFiles] = useState<AttachedFile[]>(() => knownFiles(id));
  const [suggestions, setSuggestions] = useState<Suggestion[]>([]);
  const [selected, setSelected] = useState(0);
  const [hasMoved, setMoved] = useState(false); // a suggestion was selected with the arrow keys
  const [isDropping, setDropping] = useState(false);
  const input = useRef<HTMLTextAreaElement>(null);
  const chooser = useRef<HTMLInputElement>(null);

  const update = (value: string): void => {
    setText(value);
    writeDraft(id, value);
  };
  const setFiles = (value: AttachedFile[]): void => {
    setShownFiles(value);
    void writeFiles(id, value);
  };
  useEffect(() => {
    void readFiles(id).then(setShownFiles);
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
        setFiles([...knownFiles(id), read]);
      } catch (error) {
        onError(error);
      }
    }
  };

  const suggest = async (): Promise<void> => {
    const element = input.current!;
    const found = completableWord(element.value, element.selectionStart);
    const isCurrent = (): boolean => {
      const now = completableWord(element.value, element.selectionStart);
      return now !== null && now.kind === found?.kind && now.word === found.word;
    };
    // Suggestions by MCP servers, unless the text has changed meanwhile.
    const showValues = async (others: Suggestion[]): Promise<void> => {
      const { start, choices } = (await loadValues?.(element.value.slice(0, element.selectionStart)).catch(
        () => null,
      )) ?? { start: 0, choices: [] };
      if (!isCurrent()) return;
      const listed = choices.map(({ text, note, is_open: isOpen = false }) => ({
        label: text,
        detail: note ?? "",
        insert: isOpen ? text : `${text} `,
        start,
        isOpen,
        isHint: true,
      }));
      if (listed.length || found?.kind === "=") setSuggestions([...listed, ...others]);
    };
    setSelected(0);
    setMoved(false);
    if (found?.kind === "/") {
      const listed = (known: Offer[]): Suggestion[] =>
        known
          .filter(({ name }) => name.startsWith(found.word))
          .map(({ name, description }) => ({ label: `/${name}`, detail: description, insert: `/${name} ` }));
      setSuggestions(listed(commands));
      const offers = (await loadOffers?.()) ?? [];
      if (offers.length && isCurrent())
        setSuggestions([
          ...listed(commands),
          ...listed(offers.filter(({ name }) => commands.every((own) => own.name !== name))),
        ]);
    } else if (found?.kind === "=") {
      await showValues([]);
    } else if (found && loadPaths) {
      const [paths, resources] = await Promise.all([
        loadPaths(found.word).catch(() => []),
        loadResources?.(found.word) ?? [],
      ]);
      const listed: Suggestion[] = paths.map((path) => ({ label: path, detail: "", insert: `@${path} ` }));
      listed.push(
        ...resources.map(({ name, description, insert }) => ({
          label: name,
          detail: description,
          insert,
          isOpen: !insert.endsWith(" "),
        })),
      );
      if (isCurrent()) setSuggestions(listed);
      await showValues(listed);
    } else {
      setSuggestions([]);
    }
  };
  const accept = (suggestion: Suggestion): void => {
    const element = input.current!;
    const found = completableWord(element.value, element.selectionStart);
    if (!found) return;
    const start = suggestion.start ?? found.start;
    const value = element.value.slice(0, start) + suggestion.insert + element.value.slice(element.selectionStart);
    const cursor = start + suggestion.insert.length;
    element.value = value; // at once and not with the next frame: keys may follow before it
    element.focus();
    element.setSelectionRange(cursor, cursor);
    update(value);
    setSuggestions([]);
    if (found.kind !== "@" || suggestion.isOpen) void suggest(); // the next argument, or the value
  };

  const send = async (isQueued = false): Promise<void> => {
    const [value, attached] = [text, files];
    if (!value.trim() && !attached.length) return;
    setSuggestions([]);
    update("");
    setFiles([]);
    try {
      if (!(await onSend(value, attached, { isQueued })) && attached.length) setFiles(attached);
    } catch (error) {
      update(input.current?.value || value);
      setFiles(knownFiles(id).length ? knownFiles(id) : attached);
      onError(error);
    }
  };

  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.isComposing) return; // the keys belong to the input method
    if (suggestions.length) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const next = (selected + step + suggestions.length) % suggestions.length;
        setSelected(next);
        setMoved(true);
        document.getElementById(`suggestion-${next}`)?.scrollIntoView({ block: "nearest" });
        return;
      }
      // Enter sends a command that is written completely.
      const isComplete = event.key === "Enter" && suggestions[selected]!.label === input.current!.value;
      if (
        event.key === "Tab" ||
        (event.key === "Enter" && !event.shiftKey && !isComplete && (hasMoved || !suggestions[selected]!.isHint))
      ) {
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
    if (event.key === "Enter" && !event.shiftKey && !isTouch) {
      event.preventDefault();
      void send(event.altKey);
    }
  };
  return (
    <div
      class={isDropping ? "card dropping" : "card"}
      onDragOver={(event) => {
        event.preventDefault();
        setDropping(true);
      }}
      onDragLeave={() => setDropping(false)}
      onDrop={(event) => {
        event.preventDefault();
        setDropping(false);
        void addFiles(event.dataTransfer?.files ?? []);
      }}
    >
      {files.length ? (
        <ul class="attachments" aria-label="Attached files">
          {files.map((file, index) => (
            <li>
              {file.mime.startsWith("image/") ? <img src={file.url} alt="" /> : <ClipIcon />}
              <span class="name">{file.filename}</span>
              <button
                type="button"
                class="quiet"
                aria-label={`Remove ${file.filename}`}
                onClick={() => setFiles(files.filter((_, at) => at !== index))}
              >
                ✕
              </button>
            </li>
          ))}
        </ul>
      ) : null}
      {suggestions.length ? (
        <ul class="suggestions" role="listbox" id="suggestions" aria-label="Suggestions">
          {suggestions.map((suggestion, index) => (
            <li
              role="option"
              id={`suggestion-${index}`}
              aria-selected={index === selected}
              onPointerDown={(event) => {
                event.preventDefault();
                accept(suggestion);
              }}
            >
              <span>{suggestion.label}</span> <span class="about">{suggestion.detail}</span>
            </li>
          ))}
        </ul>
      ) : null}
      <textarea
        id={inputId}
        class="input"
        ref={input}
        rows={minRows}
        aria-label={label}
        autocomplete="off"
        value={text}
        aria-controls={suggestions.length ? "suggestions" : undefined}
        aria-autocomplete="list"
        aria-activedescendant={suggestions.length ? `suggestion-${selected}` : undefined}
        placeholder={placeholder}
        onInput={(event) => {
          update(event.currentTarget.value);
          void suggest();
        }}
        onKeyDown={onKeyDown}
        onBlur={() => setSuggestions([])}
        onPaste={(event) => {
          const pasted = [...(event.clipboardData?.files ?? [])];
          if (!pasted.length) return;
          event.preventDefault();
          void addFiles(pasted);
        }}
      />
      <div class="row">
        <button
          type="button"
          class="quiet attach"
          aria-label="Attach files"
          title="Attach files"
          onClick={() => chooser.current?.click()}
        >
          +
        </button>
        <input
          ref={chooser}
          type="file"
          multiple
          hidden
          aria-label="Files to attach"
          onChange={(event) => {
            void addFiles([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        {controls}
        <span class="sends">{buttons((isQueued) => void send(isQueued), !text.trim() && !files.length)}</span>
      </div>
    </div>
  );
}

export const toParts = (text: string, files: AttachedFile[]): unknown[] => [
  ...(text.trim() ? [{ type: "text", text }] : []),
  ...files.map((file) => ({ type: "file", ...file })),
];

export function Composer({
  model,
  commands,
  choices,
  onFolder,
}: {
  model: SessionModel;
  commands: PageCommand[];
  choices: PageChoices;
  onFolder: () => void;
}) {
  const busy = model.isBusy.value;
  const hasCommand = model.commands.value.some((command) => !command.status);
  const loadOffers = async (): Promise<Offer[]> =>
    (await Promise.all([loadCustomCommands(model.id), loadPrompts()])).flat();
  const onSend = async (text: string, files: AttachedFile[], { isQueued }: { isQueued: boolean }): Promise<boolean> => {
    const [, name = "", argument = ""] = /^\/([\w:.-]+)\s*([^]*)$/.exec(text.trim()) ?? [];
    const known = commands.find((command) => command.name === name);
    if (known) {
      await known.run(argument.trim());
      return false;
    }
    if (/^!\s*\S/.test(text)) {
      void model.runCommand(text.slice(1).trim());
      return false;
    }
    const custom = name && (await loadCustomCommands(model.id)).some((command) => command.name === name);
    const words = custom
      ? (
          await post<{ text: string }>(`${sessionPath(model.id)}/custom-commands`, {
            name,
            argument: argument.trim(),
          })
        ).text
      : text;
    await model.send(toParts(words, files), { isQueued });
    return true;
  };
  return (
    <form id="composer" onSubmit={(event) => event.preventDefault()}>
      <ul id="queue" aria-label="Queued input">
        {model.queue.value.map((item) => (
          <li class="waiting" key={item.id}>
            <span>queued: {item.text}</span>
            <button
              type="button"
              class="quiet"
              aria-label={`Withdraw: ${item.text}`}
              onClick={() => model.withdraw(item).catch(model.report)}
            >
              ✕
            </button>
          </li>
        ))}
      </ul>
      <InputCard
        id={model.id}
        inputId="input"
        label="Message"
        placeholder={busy ? "Steer the agent: it reads this before its next step" : "What should be done?"}
        commands={commands}
        loadOffers={loadOffers}
        loadValues={loadValues}
        loadResources={loadResources}
        onSend={onSend}
        onError={model.report}
        loadPaths={(word) => get<string[]>(`${sessionPath(model.id)}/workspace`, { query: word, limit: 8 })}
        controls={<SessionControls model={model} choices={choices} onFolder={onFolder} />}
        buttons={(send) => (
          <>
            {busy || hasCommand ? (
              <button type="button" id="abort" class="danger" title="Stop the turn (Esc)" onClick={() => model.stop()}>
                Stop
              </button>
            ) : null}
            {busy ? (
              <button
                type="button"
                id="enqueue"
                title="Send this when the turn is done (Alt+Enter)"
                onClick={() => send(true)}
              >
                Queue
              </button>
            ) : null}
            <button type="button" id="send" class="primary" title="Enter" onClick={() => send()}>
              {busy ? "Steer" : "Send"}
            </button>
          </>
        )}
      />
      <p class="hint">
        @ files · / commands · ! shell command · Shift+Enter new line · Alt+Enter queue · Ctrl+K all actions
      </p>
    </form>
  );
}

export interface AgentInfo {
  name: string;
  model: string; // PROVIDER/MODEL
}

let agentList: Promise<AgentInfo[]> | null = null;

function useAgents(): AgentInfo[] {
  const [agents, setAgents] = useState<AgentInfo[]>([]);
  useEffect(() => {
    agentList ??= get<AgentInfo[]>("/agents");
    agentList.then(setAgents, () => (agentList = null));
  }, []);
  return agents;
}

const modelName = (name: string): string => name.split("/").slice(1).join("/") || name;

export interface ChosenSettings {
  model: string;
  mode: string;
  approval: string;
  effort: string;
  agent: string;
}

interface ControlProps {
  value: ChosenSettings;
  choices: PageChoices;
  isNew?: boolean; // an empty value is the default of the server
  folder: string;
  folderLabel: string;
  onChange: (name: keyof ChosenSettings, value: string) => void;
  onFolder: () => void;
  onError: (error: unknown) => void;
}

// The pickers below an input. The models are requested when the picker is opened.
export function Controls({
  value,
  choices,
  isNew = false,
  folder,
  folderLabel,
  onChange,
  onFolder,
  onError,
}: ControlProps) {
  const [models, setModels] = useState<string[]>([]);
  const agents = useAgents();
  const agent = agents.find(({ name }) => name === value.agent) ?? agents[0];
  const loadModels = (): void => {
    if (!models.length) void get<string[]>("/models").then(setModels, onError);
  };
  const select = (name: keyof ChosenSettings, label: string, options: [string, string, string?][]) => (
    <select
      id={isNew ? `new-${name}` : name}
      aria-label={label}
      title={label}
      value={value[name]}
      onChange={(event) => onChange(name, event.currentTarget.value)}
    >
      {options.map(([key, text, title]) => (
        <option value={key} title={title}>
          {text}
        </option>
      ))}
    </select>
  );
  const own = agent ? modelName(agent.model) : "model";
  const others = models.filter((name) => name !== value.model);
  return (
    <div class="controls">
      <select
        id={isNew ? "new-model" : "model"}
        aria-label="Model"
        title="Model"
        value={value.model}
        onFocus={loadModels}
        onPointerDown={loadModels}
        onChange={(event) => onChange("model", event.currentTarget.value)}
      >
        <option value="">{own}</option>
        {value.model ? <option value={value.model}>{modelName(value.model)}</option> : null}
        {others.map((name) => (
          <option value={name}>{name}</option>
        ))}
      </select>
      {select("mode", "Mode", [
        ...(isNew ? [["", "mode"] as [string, string]] : []),
        ...Object.entries(choices.modes).map(([name, text]): [string, string, string] => [name, name, text]),
      ])}
      {isNew || value.mode === "agent"
        ? select("approval", "Approval level", [
            ...(isNew ? [["", "approval"] as [string, string]] : []),
            ...Object.entries(choices.approvals).map(([name, text]): [string, string, string] => [
              name,
              name,
              `asks about ${text}`,
            ]),
          ])
        : null}
      {select("effort", "Reasoning effort", [
        ["", "effort"],
        ...choices.efforts.map((name): [string, string] => [name, name]),
      ])}
      {agents.length > 1
        ? select("agent", "Agent", [
            ...(isNew ? [["", "agent"] as [string, string]] : []),
            ...agents.map(({ name }): [string, string] => [name, name]),
          ])
        : null}
      <button
        type="button"
        id={isNew ? "new-folder" : "folder"}
        class="quiet folder"
        title={folder}
        aria-label={folderLabel}
        onClick={onFolder}
      >
        <FolderIcon /> {folder.split("/").pop() || folder || "folder"}
      </button>
    </div>
  );
}

function SessionControls({
  model,
  choices,
  onFolder,
}: {
  model: SessionModel;
  choices: PageChoices;
  onFolder: () => void;
}) {
  const session = model.transcript.session.value!;
  const stored = session.metadata ?? {};
  const value: ChosenSettings = {
    model: String(stored[CHOSEN_MODEL] ?? ""),
    mode: session.mode,
    approval: session.approval,
    effort: String(stored[CHOSEN_EFFORT] ?? ""),
    agent: session.agent,
  };
  const onChange = (name: keyof ChosenSettings, chosen: string): void => {
    const work =
      name === "model"
        ? model.setModel(chosen)
        : name === "effort"
          ? model.setEffort(chosen)
          : patch(sessionPath(model.id), { [name]: chosen });
    work.catch(model.report);
  };
  return (
    <Controls
      value={value}
      choices={choices}
      folder={session.workspace_directory}
      onChange={onChange}
      onFolder={onFolder}
      onError={model.report}
      folderLabel={`Folder ${session.workspace_directory}. Start a session in another folder`}
    />
  );
}
