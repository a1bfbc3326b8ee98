// Review of what a session changed: by turn, file and hunk, with line comments, exact undo and commits.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, sessionPath } from "./api";
import type { SessionModel } from "./session-model";
import type { ChangeReview, RestoreResult, ReviewFile, ReviewHunk, ReviewLine } from "./types";

interface LineComment {
  path: string;
  hunk: string;
  line: number; // index in the hunk
  place: string;
  excerpt: string;
  text: string;
}

const SIGNS: Record<ReviewLine["kind"], string> = { added: "+", removed: "−", context: " " };

// Comments are stored by the browser until they are sent.
function useComments(sessionId: string): [LineComment[], (comments: LineComment[]) => void] {
  const key = `comments:${sessionId}`;
  const [comments, setComments] = useState<LineComment[]>(
    () => JSON.parse(localStorage.getItem(key) ?? "[]") as LineComment[],
  );
  const store = (next: LineComment[]): void => {
    setComments(next);
    if (next.length) localStorage.setItem(key, JSON.stringify(next));
    else localStorage.removeItem(key);
  };
  return [comments, store];
}

// A button that asks once more before it acts.
export function SureButton({
  label,
  question,
  onSure,
  name,
  kind = "quiet",
}: {
  label: string;
  question: string;
  onSure: () => void;
  name?: string;
  kind?: string;
}) {
  const [isSure, setSure] = useState(false);
  return (
    <button
      class={isSure ? "danger" : kind}
      aria-label={isSure ? undefined : name}
      onBlur={() => setSure(false)}
      onClick={(event) => {
        event.preventDefault();
        if (isSure) onSure();
        setSure(!isSure);
      }}
    >
      {isSure ? question : label}
    </button>
  );
}

export function Review({ model }: { model: SessionModel }) {
  const path = sessionPath(model.id);
  const [turn, setTurn] = useState("");
  const [review, setReview] = useState<ChangeReview | null>(null);
  const [isSplit, setSplit] = useState(() => localStorage.getItem("split-diff") === "true");
  const [notice, setNotice] = useState("");
  const [comments, setComments] = useComments(model.id);
  const isBusy = model.isBusy.value;
  const request = useRef(0);
  const load = async (): Promise<void> => {
    const own = ++request.current;
    const found = await get<ChangeReview>(`${path}/review`, { turn });
    if (own === request.current) setReview(found);
  };
  useEffect(() => void load().catch(model.report), [model.id, turn, isBusy, model.transcript.order.value]);

  const undo = async (file: ReviewFile, hunk?: ReviewHunk): Promise<void> => {
    try {
      const result = await post<RestoreResult>(`${path}/review/undo`, {
        path: file.path,
        ...(hunk ? { hunk: hunk.id } : {}),
        ...(turn ? { turn } : {}),
      });
      setNotice(result.notice.text);
      await load();
    } catch (error) {
      model.report(error);
    }
  };
  const undoFrom = async (to: string): Promise<void> => {
    try {
      const result = await post<RestoreResult>(`${path}/files`, { direction: "undo", to });
      setNotice(result.notice.text);
      setTurn("");
      await load();
    } catch (error) {
      model.report(error);
    }
  };
  const sendComments = async (): Promise<void> => {
    const blocks = comments.map(
      ({ path: file, place, excerpt, text }) => `\`${file}\`, ${place}:\n\n\`\`\`diff\n${excerpt}\n\`\`\`\n\n${text}`,
    );
    try {
      await model.send([
        { type: "text", text: `Please address these comments on your changes.\n\n${blocks.join("\n\n")}` },
      ]);
      setComments([]);
    } catch (error) {
      model.report(error);
    }
  };
  if (!review) return <p class="note">…</p>;
  const { files, turns } = review;
  const total = (name: "added" | "removed"): number => files.reduce((sum, file) => sum + file[name], 0);
  return (
    <div class="review">
      <div class="review-bar">
        <select aria-label="Changes of" value={turn} onChange={(event) => setTurn(event.currentTarget.value)}>
          <option value="">the whole session</option>
          {turns.map(({ message_id, title }, index) => (
            <option value={message_id}>{`turn ${index + 1}: ${title.slice(0, 60)}`}</option>
          ))}
        </select>
        <label class="option">
          <input
            type="checkbox"
            checked={isSplit}
            onChange={(event) => {
              setSplit(event.currentTarget.checked);
              localStorage.setItem("split-diff", String(event.currentTarget.checked));
            }}
          />{" "}
          Side by side
        </label>
        <span class="counts">
          {files.length} {files.length === 1 ? "file" : "files"} <ins>+{total("added")}</ins>{" "}
          <del>−{total("removed")}</del>
        </span>
        {turn ? (
          <SureButton
            label="Undo from here on"
            question="Undo this turn and all later ones?"
            onSure={() => void undoFrom(turn)}
          />
        ) : null}
      </div>
      <p class="note" role="status">
        {notice}
      </p>
      {comments.length ? (
        <p class="pending-comments">
          <button class="primary" onClick={() => void sendComments()}>
            Send {comments.length} {comments.length === 1 ? "comment" : "comments"} to the agent
          </button>{" "}
          <SureButton label="Discard them" question="Really discard?" onSure={() => setComments([])} />
        </p>
      ) : null}
      {review.off ? <p class="note">{review.off}</p> : null}
      {files.length || review.off ? null : <p class="note">No file is changed.</p>}
      {files.map((file) => (
        <FileReview
          key={file.path}
          file={file}
          isSplit={isSplit}
          comments={comments.filter((comment) => comment.path === file.path)}
          onUndo={(hunk) => void undo(file, hunk)}
          onComment={(comment) =>
            setComments([
              ...comments.filter((one) => one.hunk !== comment.hunk || one.line !== comment.line),
              ...(comment.text ? [comment] : []),
            ])
          }
        />
      ))}
      {review.uncovered.length ? (
        <p class="note">These may have changed too, but are not recorded: {review.uncovered.join(", ")}</p>
      ) : null}
      {review.can_commit && files.length ? (
        <CommitForm
          model={model}
          files={files}
          onDone={(text) => {
            setNotice(text);
            void load().catch(model.report);
          }}
        />
      ) : null}
    </div>
  );
}

interface FileProps {
  file: ReviewFile;
  isSplit: boolean;
  comments: LineComment[];
  onUndo: (hunk?: ReviewHunk) => void;
  onComment: (comment: LineComment) => void;
}

const STATUS_TEXTS: Record<ReviewFile["status"], string> = { added: "new", changed: "", deleted: "deleted" };

function FileReview({ file, isSplit, comments, onUndo, onComment }: FileProps) {
  return (
    <details class="changes" open data-path={file.path}>
      <summary>
        <span class="path">{file.path}</span>{" "}
        <span class="about">
          {STATUS_TEXTS[file.status]}
          {file.changed_since ? " · changed again since" : ""}
        </span>{" "}
        <span class="counts">
          <ins>+{file.added}</ins> <del>−{file.removed}</del>
        </span>
      </summary>
      <div class="file-actions">
        {file.can_undo ? (
          <SureButton
            label="Undo the file"
            name={`Undo the file ${file.path}`}
            question="Really undo?"
            onSure={() => onUndo()}
          />
        ) : null}
        {file.note ? <span class="note">{file.note}</span> : null}
      </div>
      {file.hunks.map((hunk) => (
        <HunkReview
          key={hunk.id}
          file={file}
          hunk={hunk}
          isSplit={isSplit}
          comments={comments.filter((comment) => comment.hunk === hunk.id)}
          onUndo={() => onUndo(hunk)}
          onComment={onComment}
        />
      ))}
    </details>
  );
}

interface HunkProps extends Omit<FileProps, "onUndo"> {
  hunk: ReviewHunk;
  onUndo: () => void;
}

function HunkReview({ file, hunk, isSplit, comments, onUndo, onComment }: HunkProps) {
  const [at, setAt] = useState(-1);
  const [writing, setWriting] = useState(-1);
  const { lines } = hunk;
  const start = (index: number): void => setWriting(index);
  const placeOf = (line: ReviewLine): string => (line.kind === "removed" ? `old line ${line.old}` : `line ${line.new}`);
  const save = (index: number, text: string): void => {
    const line = lines[index]!;
    onComment({
      path: file.path,
      hunk: hunk.id,
      line: index,
      place: placeOf(line),
      excerpt: SIGNS[line.kind].replace("−", "-") + line.text,
      text: text.trim(),
    });
    setWriting(-1);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (step) setAt(Math.min(lines.length - 1, Math.max(0, at + step)));
    else if (event.key === "c" && at >= 0) start(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const below = (index: number) => {
    const comment = comments.find(({ line }) => line === index);
    if (writing === index)
      return (
        <CommentForm text={comment?.text ?? ""} onSave={(text) => save(index, text)} onCancel={() => setWriting(-1)} />
      );
    if (comment)
      return (
        <div class="comment">
          <span>{comment.text}</span>{" "}
          <button class="quiet" onClick={() => start(index)}>
            Edit
          </button>{" "}
          <button class="quiet" aria-label="Remove the comment" onClick={() => save(index, "")}>
            ✕
          </button>
        </div>
      );
    return null;
  };
  const button = (index: number) => (
    <button
      class="add-comment"
      tabIndex={-1}
      aria-label={`Comment on ${placeOf(lines[index]!)} of ${file.path}`}
      onClick={() => start(index)}
    >
      +
    </button>
  );
  const first = lines.find((line) => line.new) ?? lines[0]!;
  return (
    <div class="hunk" data-hunk={hunk.id}>
      <div class="hunk-bar">
        <span>{`line ${first.new || first.old}`}</span>
        {hunk.can_undo ? (
          <SureButton
            label="Undo"
            name={`Undo the change at line ${first.new || first.old} of ${file.path}`}
            question="Really undo?"
            onSure={onUndo}
          />
        ) : (
          <span>changed since</span>
        )}
      </div>
      <div
        class={isSplit ? "lines side-by-side" : "lines"}
        tabIndex={0}
        role="group"
        aria-label={`Change at line ${first.new || first.old} of ${file.path}. Arrow keys choose a line, c comments on it.`}
        onKeyDown={onKeyDown}
      >
        {isSplit
          ? splitPairs(lines).map(([left, right]) => (
              <>
                <div class="pair">
                  <Side lines={lines} index={left} number="old" selected={at} button={button} />
                  <Side lines={lines} index={right} number="new" selected={at} button={button} />
                </div>
                {left >= 0 && left !== right ? below(left) : null}
                {right >= 0 ? below(right) : null}
              </>
            ))
          : lines.map((line, index) => (
              <>
                <div class={`line ${line.kind}${at === index ? " selected" : ""}`}>
                  <span class="number">{line.old || ""}</span>
                  <span class="number">{line.new || ""}</span>
                  {button(index)}
                  <span class="sign">{SIGNS[line.kind]}</span>
                  <code>{line.text}</code>
                </div>
                {below(index)}
              </>
            ))}
      </div>
    </div>
  );
}

function Side({
  lines,
  index,
  number,
  selected,
  button,
}: {
  lines: ReviewLine[];
  index: number;
  number: "old" | "new";
  selected: number;
  button: (index: number) => unknown;
}) {
  const line = lines[index];
  if (!line) return <div class="line none" />;
  return (
    <div class={`line ${line.kind}${selected === index ? " selected" : ""}`}>
      <span class="number">{line[number] || ""}</span>
      {button(index) as never}
      <code>{line.text}</code>
    </div>
  );
}

// Pairs of line indexes, removed ones on the left and added ones on the right; -1 where a side has none.
function splitPairs(lines: ReviewLine[]): [number, number][] {
  const pairs: [number, number][] = [];
  let [removed, added]: [number[], number[]] = [[], []];
  const flush = (): void => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1)
      pairs.push([removed[at] ?? -1, added[at] ?? -1]);
    [removed, added] = [[], []];
  };
  lines.forEach((line, index) => {
    if (line.kind === "removed") removed.push(index);
    else if (line.kind === "added") added.push(index);
    else {
      flush();
      pairs.push([index, index]);
    }
  });
  flush();
  return pairs;
}

function CommentForm({
  text: initial,
  onSave,
  onCancel,
}: {
  text: string;
  onSave: (text: string) => void;
  onCancel: () => void;
}) {
  const [text, setText] = useState(initial);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  return (
    <form
      class="comment"
      onSubmit={(event) => {
        event.preventDefault();
        onSave(text);
      }}
    >
      <textarea
        ref={area}
        rows={2}
        aria-label="Comment"
        placeholder="What should be different? (Enter saves it)"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            onSave(text);
          }
          if (event.key === "Escape") {
            event.stopPropagation();
            onCancel();
          }
        }}
      />
      <div class="buttons">
        <button type="submit" class="primary">
          Save
        </button>
        <button type="button" onClick={onCancel}>
          Cancel
        </button>
      </div>
    </form>
  );
}

function CommitForm({
  model,
  files,
  onDone,
}: {
  model: SessionModel;
  files: ReviewFile[];
  onDone: (text: string) => void;
}) {
  const [message, setMessage] = useState("");
  const [left, setLeft] = useState<ReadonlySet<string>>(new Set());
  const [isSending, setSending] = useState(false);
  const [problem, setProblem] = useState("");
  const chosen = files.filter(({ path }) => !left.has(path)).map(({ path }) => path);
  const commit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!message.trim() || !chosen.length) return;
    setSending(true);
    setProblem("");
    try {
      const made = await post<{ hash: string }>(`${sessionPath(model.id)}/review/commit`, {
        message: message.trim(),
        paths: chosen,
      });
      setMessage("");
      onDone(`Committed as ${made.hash}.`);
    } catch (error) {
      setProblem((error as Error).message);
    } finally {
      setSending(false);
    }
  };
  return (
    <form class="commit" aria-label="Commit" onSubmit={commit}>
      <h2>Commit</h2>
      <textarea
        aria-label="Commit message"
        rows={2}
        placeholder="Commit message"
        value={message}
        onInput={(event) => setMessage(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void commit(event);
        }}
      />
      <fieldset class="files">
        <legend>Files</legend>
        {files.map(({ path }) => (
          <label class="option">
            <input
              type="checkbox"
              checked={!left.has(path)}
              onChange={(event) => {
                const next = new Set(left);
                if (event.currentTarget.checked) next.delete(path);
                else next.add(path);
                setLeft(next);
              }}
            />{" "}
            {path}
          </label>
        ))}
      </fieldset>
      {problem ? (
        <p class="failure" role="alert">
          {problem}
        </p>
      ) : null}
      <button type="submit" class="primary" disabled={isSending || !chosen.length || !message.trim()}>
        Commit {chosen.length} {chosen.length === 1 ? "file" : "files"}
      </button>
    </form>
  );
}
