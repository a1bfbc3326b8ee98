// Background runs: the list with a form for a new one, and one run with what it does and its result.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, remove } from "./api";
import { Conversation } from "./conversation";
import { Diff, Markdown } from "./parts";
import { Questions } from "./questions";
import { SessionModel } from "./session-model";
import type { Approval, Job, JobDetails, Schedule } from "./types";

const POLL = 2000; // milliseconds
const ENDED = ["done", "failed", "canceled"];
const DELAYS: [string, string][] = [
  ["0", "at once"],
  ["3600", "in an hour"],
  ["28800", "in eight hours"],
  ["86400", "tomorrow"],
  ["schedule", "on a schedule"],
];

// `load` requests the state and returns a function that shows it. The returned function is called after the user has changed
// something: a response to an earlier request may have the state before the change, and is not shown.
function usePolling(load: () => Promise<() => void>, onError: (error: unknown) => void, key: string): () => void {
  const changes = useRef(0);
  useEffect(() => {
    let isClosed = false;
    let timer: ReturnType<typeof setTimeout>;
    const poll = async (): Promise<void> => {
      const before = changes.current;
      if (!document.hidden)
        await load().then(
          (show) => isClosed || changes.current !== before || show(),
          (error) => isClosed || onError(error),
        );
      if (!isClosed) timer = setTimeout(poll, POLL);
    };
    void poll();
    return () => {
      isClosed = true;
      clearTimeout(timer);
    };
  }, [key]);
  return () => void changes.current++;
}

export function Badge({ state }: { state: string }) {
  return (
    <span class="badge" data-state={state}>
      {state}
    </span>
  );
}

export function JobList({ onError }: { onError: (error: unknown) => void }) {
  const [jobs, setJobs] = useState<Job[] | null>(null);
  const [schedules, setSchedules] = useState<Schedule[]>([]);
  const discardResponse = usePolling(
    async () => {
      const [runs, scheduled] = await Promise.all([get<Job[]>("/jobs", { limit: 100 }), get<Schedule[]>("/schedules")]);
      return () => (setJobs(runs), setSchedules(scheduled));
    },
    onError,
    "list",
  );
  const showSchedules = (changed: Schedule[]): void => (discardResponse(), setSchedules(changed));
  return (
    <section id="conversation" aria-label="Background jobs" tabIndex={0}>
      <div class="board">
        <JobForm
          onError={onError}
          onScheduled={() => void get<Schedule[]>("/schedules").then(showSchedules, onError)}
        />
        <ScheduleTable schedules={schedules} onChange={showSchedules} onError={onError} />
        {jobs && !jobs.length ? (
          <p class="note">No runs yet. A submitted run continues when this page is closed.</p>
        ) : null}
        {jobs?.length ? (
          <table class="jobs">
            <thead>
              <tr>
                {["State", "Run", "Submitted", "Cost"].map((name) => (
                  <th scope="col">{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.id} data-run={job.id}>
                  <td>
                    <Badge state={job.state} />
                  </td>
                  <td>
                    <a href={`#/jobs/${job.id}`}>{job.prompt}</a>
                  </td>
                  <td>{job.created ? new Date(job.created).toLocaleString() : ""}</td>
                  <td>{job.view.cost}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : null}
      </div>
    </section>
  );
}

function JobForm({ onError, onScheduled }: { onError: (error: unknown) => void; onScheduled: () => void }) {
  const [prompt, setPrompt] = useState("");
  const [priority, setPriority] = useState("100");
  const [after, setAfter] = useState("0");
  const [cron, setCron] = useState("0 7 * * *");
  const [worktree, setWorktree] = useState(true);
  const [isSending, setSending] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!prompt.trim()) return area.current?.focus();
    setSending(true);
    const order = { prompt, priority: Number(priority) || 100, worktree };
    try {
      if (after === "schedule") {
        await post("/schedules", {
          ...order,
          cron,
          timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
        });
        setPrompt("");
        onScheduled();
      } else {
        location.hash = `#/jobs/${(await post<Job>("/jobs", { ...order, after: Number(after) })).id}`;
      }
    } catch (error) {
      onError(error);
    } finally {
      setSending(false);
    }
  };
  return (
    <form class="new-job" aria-label="New run" onSubmit={submit}>
      <textarea
        id="job-prompt"
        ref={area}
        rows={3}
        required
        aria-label="What should be done in the background?"
        placeholder="What should be done in the background?"
        value={prompt}
        onInput={(event) => setPrompt(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void submit(event);
        }}
      />
      <div class="row">
        <label>
          Start{" "}
          <select id="job-after" value={after} onChange={(event) => setAfter(event.currentTarget.value)}>
            {DELAYS.map(([value, text]) => (
              <option value={value}>{text}</option>
            ))}
          </select>
        </label>
        {after === "schedule" ? (
          <label>
            at{" "}
            <input
              id="job-cron"
              class="cron"
              value={cron}
              aria-label="Minute, hour, day, month and weekday"
              title="Minute, hour, day, month and weekday: 0 7 * * 1-5 is seven o'clock on working days"
              onInput={(event) => setCron(event.currentTarget.value)}
            />
          </label>
        ) : null}
        <label>
          Priority{" "}
          <input
            type="number"
            min={1}
            max={1000}
            id="job-priority"
            value={priority}
            onInput={(event) => setPriority(event.currentTarget.value)}
          />
        </label>
        <label title="In a repository, work in a separate checkout">
          <input
            type="checkbox"
            id="job-worktree"
            checked={worktree}
            onChange={(event) => setWorktree(event.currentTarget.checked)}
          />{" "}
          own worktree
        </label>
        <button class="primary" type="submit" disabled={isSending}>
          Submit
        </button>
      </div>
      <p class="hint">Ctrl+Enter submits. A smaller priority starts earlier among your own runs.</p>
    </form>
  );
}

interface ScheduleProps {
  schedules: Schedule[];
  onChange: (schedules: Schedule[]) => void;
  onError: (error: unknown) => void;
}

function ScheduleTable({ schedules, onChange, onError }: ScheduleProps) {
  const [sure, setSure] = useState("");
  const isBusy = useRef(false); // a disabled button would lose the keyboard focus
  const act = async (schedule: Schedule, work: () => Promise<Schedule | null>): Promise<void> => {
    if (isBusy.current) return;
    isBusy.current = true;
    try {
      const changed = await work();
      onChange(schedules.flatMap((one) => (one.id !== schedule.id ? [one] : changed ? [changed] : [])));
    } catch (error) {
      onError(error);
    } finally {
      isBusy.current = false;
    }
  };
  return (
    <section class="schedules" aria-label="Schedules" hidden={!schedules.length}>
      <h2>Schedules</h2>
      <table class="jobs">
        <thead>
          <tr>
            {["Actions", "Run", "Next", "Cron"].map((name) => (
              <th scope="col">{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {schedules.map((schedule) => {
            const words = schedule.prompt.slice(0, 60);
            const path = `/schedules/${encodeURIComponent(schedule.id)}`;
            const action = schedule.paused ? "Resume" : "Pause";
            const next = new Date(schedule.due);
            return (
              <tr key={schedule.id} data-schedule={schedule.id}>
                <td class="acts">
                  <button
                    class="quiet"
                    aria-label={`${action} the schedule of ${words}`}
                    onClick={() => act(schedule, () => post<Schedule>(`${path}/${action.toLowerCase()}`))}
                  >
                    {action}
                  </button>
                  <button
                    class="quiet"
                    aria-label={`Delete the schedule of ${words}`}
                    onBlur={() => setSure("")}
                    onClick={() => (sure === schedule.id ? act(schedule, () => remove(path)) : setSure(schedule.id))}
                  >
                    {sure === schedule.id ? "Really?" : "Delete"}
                  </button>
                </td>
                <td title={schedule.workspace}>{schedule.prompt}</td>
                <td>
                  {schedule.paused ? (
                    <span class="badge">paused</span>
                  ) : (
                    <time datetime={next.toISOString()}>{next.toLocaleString()}</time>
                  )}
                </td>
                <td title={schedule.timezone}>{schedule.cron}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

export function JobView({
  id,
  onError,
  onTitle,
}: {
  id: string;
  onError: (error: unknown) => void;
  onTitle: (title: string, state: string) => void;
}) {
  const [details, setDetails] = useState<JobDetails | null>(null);
  const [model, setModel] = useState<SessionModel | null>(null);
  const path = `/jobs/${encodeURIComponent(id)}`;
  useEffect(() => {
    setDetails(null);
    return () => setModel((known) => (known?.close(), null));
  }, [id]);
  const show = (found: JobDetails): void => {
    setDetails(found);
    onTitle(found.run.prompt, found.run.state);
    setModel((known) => {
      const current = known ?? new SessionModel(id);
      if (!known) void current.load().catch(onError);
      current.approvals.value = new Map(found.approvals.map((approval: Approval) => [approval.id, approval]));
      return current;
    });
  };
  const discardResponse = usePolling(() => get<JobDetails>(path).then((found) => () => show(found)), onError, id);
  const act = (action: string): void =>
    void post<Job>(`${path}/${action}`).then((run) => {
      discardResponse();
      setDetails((known) => (known ? { ...known, run } : known));
    }, onError);
  return (
    <>
      <section id="conversation" aria-label="Background run" tabIndex={0}>
        <div class="board">
          <p>
            <a href="#/jobs">← All jobs</a>
          </p>
          {details ? <JobSummary details={details} act={act} /> : null}
          {model ? <Conversation model={model} actions={{}} isNested /> : null}
        </div>
      </section>
      {model ? <Questions model={model} /> : null}
    </>
  );
}

function JobSummary({ details, act }: { details: JobDetails; act: (action: string) => void }) {
  const { run, diff_rows: rows, stat, branch, worktree } = details;
  const { outcome, view } = run;
  const facts: [string, string | number | undefined][] = [
    ["Submitted", run.created ? new Date(run.created).toLocaleString() : ""],
    [
      "Starts",
      run.begins
        ? new Date(run.begins).toLocaleString()
        : run.after_run
          ? `after the run ${run.after_run.slice(-8)}`
          : "",
    ],
    ["Duration", view.duration],
    ["Steps", outcome?.steps],
    ["Tokens", view.tokens],
    ["Cost", view.cost],
    ["Workers so far", run.attempts || ""],
    ["Queue", run.queue === "runs" ? "" : run.queue],
    ["Branch", branch],
    ["Worktree", worktree],
  ];
  const isEnded = ENDED.includes(run.state);
  return (
    <section class="run" aria-label="Run">
      <p class="line">
        <Badge state={run.state} />
        <strong>{run.prompt}</strong>
      </p>
      <dl class="facts">
        {facts
          .filter(([, value]) => value !== "" && value !== undefined)
          .flatMap(([name, value]) => [<dt>{name}</dt>, <dd>{value}</dd>])}
      </dl>
      <div class="buttons">
        {isEnded ? null : (
          <button class="danger" onClick={() => act("cancel")}>
            Cancel
          </button>
        )}
        {["failed", "canceled"].includes(run.state) ? (
          <button class="primary" onClick={() => act("retry")}>
            Retry
          </button>
        ) : null}
      </div>
      {outcome?.error ? <p class="failure">{outcome.error}</p> : null}
      {isEnded && outcome?.output ? (
        <div class="outcome">
          <Markdown text={outcome.output} />
        </div>
      ) : null}
      {rows.length ? (
        <details class="changes" open>
          <summary>{stat.trim().split("\n").pop() || "What it changed"}</summary>
          <Diff rows={rows} />
        </details>
      ) : null}
    </section>
  );
}
