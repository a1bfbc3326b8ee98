// The state of one shown session: transcript, open questions, queue, usage and what is going on.
import { signal } from "@preact/signals";
import { get, post, readEvents, remove, sessionPath, ApiError } from "./api";
import { feed } from "./feed";
import { Transcript } from "./transcript";
import type {
  Approval,
  ApprovalView,
  Change,
  ItemView,
  LiveEvent,
  MessagePage,
  Notice,
  Part,
  Plan,
  Question,
  QueuedInput,
  SessionStatus,
  UsageRow,
} from "./types";

const PAGE_SIZE = 60; // messages
const IDLE_STATES = ["idle", "done", "failed", "aborted"];
const SHOWN_OUTPUT = 100_000; // characters of a command's output that are shown

// A command that the user runs with `!`.
export interface UserCommand {
  id: number;
  command: string;
  output: string;
  status: string; // empty while it runs
  succeeded: boolean;
  controller: AbortController;
}

export class SessionModel {
  readonly transcript = new Transcript();
  readonly isBusy = signal(false);
  readonly label = signal("");
  readonly ending = signal(""); // why the last turn ended before its work was done
  readonly wait = signal<{ text: string; until?: number; next?: string } | null>(null);
  readonly isAway = signal(false);
  readonly approvals = signal<ReadonlyMap<string, Approval>>(new Map());
  readonly questions = signal<ReadonlyMap<string, Question>>(new Map());
  readonly plan = signal<Plan | null>(null);
  readonly queue = signal<QueuedInput[]>([]);
  readonly usage = signal<UsageRow | null>(null);
  readonly status = signal<SessionStatus | null>(null);
  readonly notices = signal<Notice[]>([]); // live notices, shown below the messages until the next prompt
  readonly commands = signal<UserCommand[]>([]);
  readonly error = signal<Error | null>(null);
  readonly sent = signal(0); // messages that were sent here; each of them shows the end of the conversation
  readonly revealed = signal({ id: "" }); // the message that a search found; another object reveals it again
  private readonly path: string;
  private unfollow: (() => void) | null = null;
  private usageTimer: ReturnType<typeof setTimeout> | undefined;
  private isClosed = false;
  private commandCount = 0;

  constructor(readonly id: string) {
    this.path = sessionPath(id);
  }

  async load(): Promise<void> {
    const page = await get<MessagePage>(`${this.path}/messages`, { limit: PAGE_SIZE, views: true });
    if (this.isClosed) return;
    this.transcript.load(page);
    this.unfollow = feed.follow(this.id, page.session.seq, {
      onChange: (change) => this.applyChange(change),
      onLive: (events) => this.applyEvents(events),
      onConnected: (connected) => this.connectionChanged(connected),
    });
    this.refreshUsage(0);
    await Promise.all([this.loadQuestions(), this.loadQueue()]);
  }

  close(): void {
    this.isClosed = true;
    this.unfollow?.();
    clearTimeout(this.usageTimer);
    for (const command of this.commands.value) command.controller.abort();
  }

  async loadEarlier(limit = 200): Promise<void> {
    const first = this.transcript.messages[0];
    if (!first || this.transcript.isComplete.value) return;
    const page = await get<MessagePage>(`${this.path}/messages`, { limit, views: true, before: first.id });
    this.transcript.load(page, { before: true });
  }

  // Loads earlier messages until the message is among them, and shows it.
  async reveal(messageId: string): Promise<void> {
    const isLoaded = (): boolean => this.transcript.messages.some((message) => message.id === messageId);
    while (!isLoaded() && !this.transcript.isComplete.value && !this.isClosed) await this.loadEarlier(500);
    this.revealed.value = { id: messageId };
  }

  report = (error: unknown): void => {
    if (!this.isClosed) this.error.value = error as Error;
  };

  // Input during a turn steers it: the agent reads it before its next step. Queued input starts the next turn.
  async send(parts: unknown[], { isQueued = false } = {}): Promise<void> {
    const commands = this.commands.value.filter((command) => command.status);
    const ran = commands.map(({ command, output, status }) => ({ command, output, status }));
    const delivery = this.isBusy.value && !isQueued ? "steer" : "queue";
    this.sent.value += 1;
    await post(`${this.path}/prompt`, {
      parts,
      ...(ran.length ? { commands: ran } : {}),
      id: crypto.randomUUID(),
      delivery,
    });
    this.commands.value = this.commands.value.filter((command) => !commands.includes(command));
    this.notices.value = [];
    this.error.value = null;
  }

  stop(): void {
    for (const command of this.commands.value) command.controller.abort();
    if (this.isBusy.value) post(`${this.path}/abort`).catch(this.report);
  }

  // Whether the last turn ended without its work being done: it can be continued, also with another model.
  isStopped(): boolean {
    if (this.isBusy.value || this.isAway.value) return false;
    const state = feed.sessions.value.get(this.id)?.state;
    if (state === "failed" || state === "interrupted") return true;
    const last = this.transcript.messages.at(-1);
    return Boolean(this.ending.value || (last && this.transcript.messageViews.get(last.id)?.unfinished));
  }

  async continueTurn(): Promise<void> {
    const { broke_off } = (this.status.value = await post<SessionStatus>(`${this.path}/open`, {}));
    this.ending.value = "";
    this.error.value = null;
    if (broke_off)
      post(`${this.path}/continue`).catch(this.report); // the response comes at the end of the turn
    else await post(`${this.path}/prompt`, { text: "continue", id: crypto.randomUUID() });
    this.isBusy.value = true;
  }

  // Sends the last message of the user once more.
  async retryTurn(): Promise<void> {
    const last = this.transcript.messages.findLast(
      (message) =>
        message.role === "user" &&
        message.parts.some((part) => !part.synthetic && (part.type === "text" || part.type === "file")),
    );
    const parts = last?.parts.filter((part) => !part.synthetic && (part.type === "text" || part.type === "file")) ?? [];
    const content = parts.map(({ type, text, url, mime, filename }) =>
      type === "text" ? { type, text } : { type, url, mime, filename },
    );
    this.ending.value = "";
    await this.send(content);
    this.isBusy.value = true;
  }

  async takeOver(): Promise<void> {
    this.status.value = await post<SessionStatus>(`${this.path}/open`, { take_over: true });
    this.error.value = null;
  }

  async runCommand(text: string): Promise<void> {
    const command: UserCommand = {
      id: ++this.commandCount,
      command: text,
      output: "",
      status: "",
      succeeded: false,
      controller: new AbortController(),
    };
    this.commands.value = [...this.commands.value, command];
    const update = (changes: Partial<UserCommand>): void => {
      Object.assign(command, changes);
      this.commands.value = this.commands.value.map((one) => (one.id === command.id ? command : one));
    };
    let end = { words: "the connection ended", succeeded: false };
    try {
      await readEvents(
        "POST",
        `${this.path}/commands`,
        { command: text },
        command.controller.signal,
        ({ name, data }) => {
          if (name === "ended") end = JSON.parse(data) as typeof end;
          else
            update({
              output: (command.output + (JSON.parse(data) as { text: string }).text).slice(-SHOWN_OUTPUT),
            });
        },
      );
    } catch (error) {
      if (!command.controller.signal.aborted) {
        this.commands.value = this.commands.value.filter((one) => one.id !== command.id);
        this.report(error);
        return;
      }
      end = { words: "interrupted", succeeded: false };
    }
    update({ status: end.words, succeeded: end.succeeded });
  }

  async withdraw(input: QueuedInput): Promise<void> {
    await remove(`${this.path}/queue/${encodeURIComponent(input.id)}`);
    await this.loadQueue();
  }

  async answerApproval(id: string, answer: Record<string, unknown>): Promise<void> {
    this.putApproval(await post<Approval>(`/approvals/${encodeURIComponent(id)}`, answer));
  }

  async answerQuestion(id: string, answers: string[]): Promise<void> {
    try {
      await post(`/questions/${encodeURIComponent(id)}`, { answers });
    } catch (error) {
      this.report(error);
      if (!(error instanceof ApiError) || error.status !== 404) return;
    }
    this.settleQuestion(id);
  }

  // The plan stays open on the server: it is shown again when the page is loaded again. Another plan is shown at once.
  hidePlan(): void {
    if (this.plan.value) feed.hidePlan(this.id, this.plan.value.id);
    this.plan.value = null;
  }

  async answerPlan(answer: Record<string, unknown>): Promise<void> {
    this.plan.value = null;
    await post(`${this.path}/plan`, answer);
  }

  async setEffort(effort: string): Promise<void> {
    this.status.value = await post<SessionStatus>(`${this.path}/effort`, { effort: effort || null });
  }

  async setModel(model: string): Promise<void> {
    this.status.value = await post<SessionStatus>(`${this.path}/model`, { model });
  }

  private applyChange(change: Change): void {
    switch (change.type) {
      case "approval":
        this.putApproval(change.approval);
        break;
      case "inbox":
        this.loadQueue().catch(this.report);
        break;
      case "deleted":
        location.hash = "";
        break;
      case "session":
      case "message":
      case "part":
        this.transcript.apply(change);
        if (change.type === "message" && change.message.time?.completed) this.refreshUsage();
        break;
      default:
        this.addNotice(change.notice ?? { level: "detail", text: (change as { type: string }).type });
    }
  }

  private applyEvents(events: LiveEvent[]): void {
    for (const event of events) {
      this.applyEvent(event);
      if (event.notice && !event.shown_elsewhere) this.addNotice(event.notice);
    }
  }

  private applyEvent(event: LiveEvent): void {
    switch (event.type) {
      case "PartDeltaEvent":
        this.isBusy.value = true;
        this.wait.value = null;
        this.transcript.applyDelta(event);
        break;
      case "PartUpdatedEvent":
        this.transcript.putPart(event.part as Part, (event.view ?? null) as ItemView | null);
        break;
      case "SessionUpdatedEvent": {
        const { question, settled } = event.changes as { question?: Question; settled?: string };
        if (question) this.questions.value = new Map(this.questions.value).set(question.id, question);
        if (settled) this.settleQuestion(settled);
        break;
      }
      case "ToolApprovalRequestedEvent":
        // Approvals of this session arrive as stored changes; those of child sessions and other servers as events.
        if (event.session_id !== this.id || event.server)
          this.putApproval({
            id: event.approval_id!,
            tool: event.tool_name!,
            answer: "open",
            view: event.view as ApprovalView,
          });
        break;
      case "ToolApprovalResultEvent":
        this.putApproval({ id: event.approval_id!, answer: "given" });
        break;
      case "ToolOutputEvent":
        this.transcript.applyOutput(event);
        break;
      case "RetryScheduledEvent":
        this.wait.value = event.countdown
          ? { text: event.countdown, until: Date.now() + (event.delay_ms ?? 0), next: event.label ?? "" }
          : { text: event.notice?.text ?? "" };
        break;
      case "ModelSilentEvent":
        this.wait.value = { text: event.notice?.text ?? "no data" };
        break;
      case "ModelProgressEvent":
        this.wait.value = { text: event.label ?? "" };
        break;
      case "ToolInputDeltaEvent":
        this.wait.value = null; // the answer begins with a call
        break;
      case "StateChangedEvent":
        this.wait.value = null;
        this.label.value = event.label ?? "";
        this.isBusy.value = !IDLE_STATES.includes(event.new_state ?? "");
        break;
      case "LoopStartedEvent":
        this.isBusy.value = true;
        this.loadQueue().catch(this.report);
        break;
      case "LoopCompletedEvent":
        this.isBusy.value = false;
        this.ending.value = event.label ?? "";
        this.loadQuestions().catch(this.report);
        break;
      default:
        break; // its notice, if it has one, is shown
    }
  }

  addNotice(notice: Notice): void {
    if (this.notices.value.at(-1)?.text !== notice.text) this.notices.value = [...this.notices.value, notice];
  }

  private putApproval(approval: Approval): void {
    const approvals = new Map(this.approvals.value);
    if (approval.answer === "open") approvals.set(approval.id, approval);
    else approvals.delete(approval.id);
    this.approvals.value = approvals;
  }

  private settleQuestion(id: string): void {
    const questions = new Map(this.questions.value);
    questions.delete(id);
    this.questions.value = questions;
  }

  private async loadQuestions(): Promise<void> {
    const [approvals, questions, plan] = await Promise.all([
      get<Approval[]>("/approvals", { session_id: this.id }),
      get<Question[]>("/questions", { session_id: this.id }),
      this.transcript.session.value?.mode === "plan" ? get<Plan>(`${this.path}/plan`).catch(ignoreMissing) : null,
    ]);
    if (this.isClosed) return;
    this.approvals.value = new Map(approvals.map((approval) => [approval.id, approval]));
    this.questions.value = new Map(questions.map((question) => [question.id, question]));
    this.plan.value = plan && !feed.isPlanHidden(this.id, plan.id) ? plan : null;
  }

  private async loadQueue(): Promise<void> {
    const queue = await get<QueuedInput[]>(`${this.path}/queue`);
    if (!this.isClosed) this.queue.value = queue;
  }

  // The figures of the whole session, of which the page may have loaded only the last messages.
  private refreshUsage(delay = 300): void {
    clearTimeout(this.usageTimer);
    this.usageTimer = setTimeout(async () => {
      this.usage.value = await get<UsageRow>(`${this.path}/usage`).catch(() => this.usage.value);
    }, delay);
  }

  private connectionChanged(connected: boolean): void {
    const returned = connected && this.isAway.value;
    this.isAway.value = !connected;
    if (connected) this.reopen().catch(this.report);
    if (!returned) return;
    this.error.value = null;
    this.isBusy.value = false;
    this.loadQuestions().catch(this.report);
    this.loadQueue().catch(this.report);
  }

  // A question that was open when the server ended is asked again when the session is opened. A session of another
  // process is left to it.
  private async reopen(): Promise<void> {
    const isAsking = (part: Part) =>
      Boolean(part.metadata?.["asks"]) && ["pending", "running"].includes(part.state?.status ?? "");
    if (!this.transcript.messages.at(-1)?.parts.some(isAsking)) return;
    await post(`${this.path}/open`, {}).catch((error: ApiError) => {
      if (error.status !== 409 && error.status !== 403) throw error; // viewers do not open sessions
    });
    await this.loadQuestions();
  }
}

function ignoreMissing(error: unknown): null {
  if (error instanceof ApiError && (error.status === 404 || error.status === 409)) return null;
  throw error;
}
