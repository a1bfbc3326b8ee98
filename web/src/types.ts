// The values of the server's API that the page uses.

export type Mode = "chat" | "plan" | "agent" | "background";
export type ApprovalLevel = "ask" | "edits" | "auto";

export interface Session {
  id: string;
  title: string;
  workspace_directory: string;
  mode: Mode;
  agent: string;
  approval: ApprovalLevel;
  parent_id: string | null;
  metadata?: Record<string, unknown>;
  seq: number;
  time: { created: number; updated: number; archived?: number | null } | null;
}

export interface Notice {
  level: "detail" | "info" | "success" | "warning" | "error";
  text: string;
  body?: string;
}

export interface DiffRow {
  kind: "added" | "removed" | "context" | "file" | "place";
  text: string;
}

export interface Attachment {
  mime_type: string;
  data: string | null; // base64
  url: string | null;
  name: string | null;
}

export interface Part {
  id: string;
  message_id: string;
  type: string;
  text?: string;
  tool?: string;
  call_id?: string;
  url?: string;
  mime?: string;
  filename?: string | null;
  child_session_id?: string;
  synthetic?: boolean;
  metadata?: Record<string, unknown>;
  state?: {
    status: string;
    output?: string;
    error?: string;
    reason?: string;
    attachments?: Attachment[];
    metadata?: Record<string, unknown>;
    time?: { start?: number; end?: number };
  };
}

// What the server says to show of a part. A kind that the page does not know is drawn from the same fields.
export interface ItemView {
  kind: string;
  title?: string;
  subject?: string;
  level?: Notice["level"];
  status?: string;
  status_text?: string;
  status_facts?: { text: string; tone?: string; joined?: boolean }[];
  duration?: string;
  input?: string;
  diff?: DiffRow[];
  todos?: { content: string; status?: string }[];
  output?: string;
  body?: string | null;
  withdrawn?: boolean;
  unfinished?: boolean; // the answer that has it is not complete
  merges?: boolean; // it replaces a notice with the same title directly before it
  child_session_id?: string;
}

export interface MessageView {
  notices?: Notice[];
  duration?: string;
  unfinished?: boolean;
}

export interface Message {
  id: string;
  role: "user" | "assistant";
  agent?: string;
  model?: { provider: string; model: string } | null;
  time?: { created: number; completed?: number | null } | null;
  error?: unknown;
  finish?: string | null;
  tokens?: { input: number; output: number; reasoning: number; cache: { read: number; write: number } } | null;
  cost?: string | number | null;
  parts: Part[];
}

export interface MessagePage {
  session: Session;
  messages: Message[];
  first: boolean;
  part_views: Record<string, ItemView | null>;
  message_views: Record<string, MessageView>;
  notices: Notice[];
}

export interface Choice {
  id: string;
  kind: "allow" | "deny";
  scope: string;
  key: string;
  label: string;
  needs_reason: boolean;
  picks_files: boolean;
  choice: string;
  prompt: string; // for the reason or the files
}

export interface ApprovalView {
  title: string;
  heading?: string;
  reason: string;
  rule_text: string;
  rule_label: string; // empty if no answer can last
  choices: Choice[];
  group_choices: Choice[]; // for all questions of this kind; {count} in a label is their number
  agent?: string;
  input: string;
  diff: DiffRow[];
  marked_facts: { text: string; risky?: boolean }[];
  files?: string[];
  widths?: { id: string; label: string; rule_text: string; history?: string }[];
  effects?: { text: string; risky?: boolean }[];
  kind?: string;
  kind_label?: string;
  position?: number;
}

export interface Approval {
  id: string;
  session_id?: string;
  tool?: string;
  answer: string;
  view?: ApprovalView;
}

export interface LastingAnswer {
  id: string;
  tool: string;
  view: { title: string; text: string; scope: string };
}

export interface Question {
  id: string;
  session_id: string;
  text: string;
  options: string[];
  multiple: boolean;
  agent: string;
}

export interface PlanChoice {
  id: "accept" | "change" | "refuse" | "later";
  key: string;
  label: string;
  edits_plan?: boolean;
  takes_reason?: boolean;
}

export interface Plan {
  id: string;
  text: string;
  view: { title: string; question: string; reason: string; choices: PlanChoice[] };
}

export interface UsageView {
  tokens: string;
  tokens_in: string;
  tokens_out: string;
  cost: string;
}

export interface UsageRow {
  key: string;
  messages: number;
  calls?: number;
  unpriced: number;
  cost: string | number;
  tokens: { input: number; output: number; reasoning: number; cache: { read: number; write: number } };
  view: UsageView;
}

export interface SessionStatus {
  busy: boolean;
  broke_off: boolean;
  model: string;
  context_limit: number | null;
  effort: string;
}

export interface QueuedInput {
  id: string;
  text: string;
  delivery: string;
  sender: string;
}

export interface Process {
  id: string;
  command: string;
  backgrounded: boolean;
  alive: boolean;
  ending: unknown;
}

export interface SearchHit {
  session_id: string;
  title: string;
  kind: string;
  snippet: string;
  message_id: string;
}

// A stored change of a session.
export type Change =
  | { type: "session"; session: Session }
  | { type: "message"; message: Message; view: MessageView }
  | { type: "part"; part: Part; view: ItemView | null }
  | { type: "approval"; approval: Approval }
  | { type: "inbox" }
  | { type: "deleted" }
  | { type: "other"; notice?: Notice };

// A live event. Only the fields that the page reads are named.
export interface LiveEvent {
  type: string;
  session_id: string;
  message_id?: string;
  part_id?: string;
  call_id?: string;
  field?: string;
  delta?: string;
  output?: string;
  part?: Part;
  view?: unknown;
  label?: string;
  new_state?: string;
  delay_ms?: number;
  countdown?: string; // of a retry, with {left} for the rest of the wait
  termination_reason?: string;
  changes?: Record<string, unknown>;
  notice?: Notice;
  shown_elsewhere?: boolean;
  approval_id?: string;
  tool_name?: string;
  server?: string;
}

export type SessionState = "idle" | "working" | "waiting" | "failed" | "interrupted";

export interface Job {
  id: string;
  prompt: string;
  state: string;
  created: number | null;
  begins?: number | null;
  after_run?: string | null;
  attempts?: number;
  queue?: string;
  outcome?: { cost?: string; error?: string; output?: string; steps?: number } | null;
  view: { duration: string; tokens: string; cost: string };
}

export interface JobDetails {
  run: Job;
  approvals: Approval[];
  diff_rows: DiffRow[];
  stat: string;
  worktree: string;
  branch: string;
}

export interface Schedule {
  id: string;
  prompt: string;
  cron: string;
  timezone: string;
  workspace: string;
  due: string | number;
  paused: boolean;
}

// A session in the list. `state` is a stored fact, not a guess of the page.
export interface SessionSummary {
  id: string;
  title: string;
  workspace: string;
  mode: Mode;
  state: SessionState;
  updated: number;
  seq: number;
  deleted?: boolean;
  archived?: boolean;
  plan?: string; // the id of the plan for whose answer it waits
}

// The changes of a session or turn by file and hunk.
export interface ReviewLine {
  kind: "added" | "removed" | "context";
  text: string;
  old?: number;
  new?: number;
}

export interface ReviewHunk {
  id: string;
  lines: ReviewLine[];
  can_undo: boolean;
}

export interface ReviewFile {
  path: string;
  status: "added" | "changed" | "deleted";
  added: number;
  removed: number;
  hunks: ReviewHunk[];
  can_undo: boolean;
  changed_since: boolean;
  note: string;
}

export interface ChangeReview {
  files: ReviewFile[];
  turns: { message_id: string; title: string }[];
  uncovered: string[];
  can_commit: boolean;
  off: string;
}

export interface RestoreResult {
  notice: Notice;
}

// An answer or a call of a session, or of an agent that it called.
export interface TimelineEntry {
  kind: "model" | "tool";
  name: string;
  agent: string;
  message_id: string;
  start: number;
  end?: number | null;
  depth?: number;
  failed?: boolean;
  prompt_tokens?: number;
  output_tokens?: number;
  cost?: string | number | null;
}

export interface FolderListing {
  path: string;
  entries: { name: string; kind: "folder" | "file" | "link"; size: number; hidden: boolean }[];
  truncated: boolean;
}

export interface FileView {
  path: string;
  size: number;
  text: string;
  first: number;
  total: number | null;
  truncated: boolean;
  note: string;
}

export interface FolderChoice {
  path: string;
  parent: string;
  folders: string[];
  truncated: boolean;
}

export interface McpServerState {
  name: string;
  state: string;
  error: string;
  address: string;
  login: "" | "none" | "stored" | "by header" | "more rights needed";
  is_logging_in: boolean;
  login_error: string;
  enabled: boolean;
}

export interface ServerOffers {
  prompts: {
    server: string;
    name: string;
    description?: string;
    arguments?: { name: string; description?: string; required?: boolean }[];
  }[];
  resources: { server: string; uri: string; name: string; description?: string; is_template?: boolean }[];
}

export interface ServerCompletion {
  start: number;
  choices: { text: string; note?: string; is_open?: boolean }[];
}

export interface SettingsOverview {
  rules: { allow: string[]; ask: string[]; deny: string[] };
  servers: McpServerState[];
  server_notices: string[];
  needs_key?: boolean;
  providers: {
    name: string;
    kind: string;
    base_url: string | null;
    has_key: boolean;
    variable: string;
    is_stored: boolean;
  }[];
  has_jobs: boolean;
}

export interface FolderTrust {
  root: string;
  state: "trusted" | "untrusted" | "nothing to trust";
  items: { kind: string; name: string; content: string; executable: boolean }[];
  digest: string;
}

export interface ReplayReport {
  same: boolean;
  text: string;
}

export interface Comparison {
  same: boolean;
  shared: number;
  session_id: string;
  rows: { name: string; a: string; b: string; difference?: string }[];
}

export interface SourceShare {
  kind: string;
  name: string;
  bytes: number;
  tokens: number;
  cost?: string | null;
}

export interface ContextReport {
  steps: { step: number; recorded?: boolean; sources?: SourceShare[] }[];
  map?: { left: number; top: number; width: number; height: number; hue: number; text: string }[]; // of the last recorded step
}
