// A session again: a replay with its recorded answers, a copy with another model, a comparison with another session.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, sessionPath } from "./api";
import { feed } from "./feed";
import type { Comparison, ReplayReport } from "./types";

export type CheckKind = "replay" | "what-if" | "compare";

const TITLES: Record<CheckKind, string> = {
  replay: "Replay with the recorded answers",
  "what-if": "What if another model had answered?",
  compare: "Compare with another session",
};

export function SessionCheck({
  sessionId,
  kind,
  onClose,
}: {
  sessionId: string;
  kind: CheckKind;
  onClose: () => void;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [words, setWords] = useState("");
  const [step, setStep] = useState("");
  const [isRunning, setRunning] = useState(false);
  const [report, setReport] = useState<ReplayReport | null>(null);
  const [comparison, setComparison] = useState<Comparison | null>(null);
  const [error, setError] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const others = [...feed.sessions.value.values()]
    .filter(({ id, deleted }) => id !== sessionId && !deleted)
    .sort((a, b) => b.updated - a.updated);
  const path = sessionPath(sessionId);
  const run = async (): Promise<void> => {
    setRunning(true);
    setError("");
    try {
      if (kind === "replay")
        setReport(await post<ReplayReport>(`${path}/replay`, { ignore: words.split(/[\s,]+/).filter(Boolean) }));
      else if (kind === "what-if")
        setComparison(
          await post<Comparison>(`${path}/what-if`, {
            model: words.trim(),
            at_step: step === "" ? null : Number(step),
          }),
        );
      else setComparison(await get<Comparison>(`${path}/compare`, { other: words || others[0]?.id }));
    } catch (failure) {
      setError((failure as Error).message);
    } finally {
      setRunning(false);
    }
  };
  return (
    <dialog
      id="session-check"
      class="dialog wide"
      ref={dialog}
      aria-label={TITLES[kind]}
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
      onKeyDown={(event) => {
        if (event.key === "Escape") event.stopPropagation();
      }}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void run();
        }}
      >
        <h2>{TITLES[kind]}</h2>
        {kind === "replay" ? (
          <label>
            Fields of requests that may differ{" "}
            <input
              value={words}
              placeholder="system"
              autocomplete="off"
              onInput={(event) => setWords(event.currentTarget.value)}
            />
          </label>
        ) : null}
        {kind === "what-if" ? (
          <>
            <label>
              Model{" "}
              <input
                required
                value={words}
                placeholder="provider/model"
                autocomplete="off"
                onInput={(event) => setWords(event.currentTarget.value)}
              />
            </label>
            <label>
              Answers to preserve{" "}
              <input
                type="number"
                min="0"
                value={step}
                placeholder="as many as possible"
                onInput={(event) => setStep(event.currentTarget.value)}
              />
            </label>
            <p class="note">
              A copy of the session runs with this model, and costs what it costs. Calls that need an approval are
              denied.
            </p>
          </>
        ) : null}
        {kind === "compare" && others.length ? (
          <label>
            Session{" "}
            <select value={words || others[0]?.id} onChange={(event) => setWords(event.currentTarget.value)}>
              {others.map(({ id, title }) => (
                <option value={id}>
                  {title || "Untitled"} ({id.slice(-8)})
                </option>
              ))}
            </select>
          </label>
        ) : null}
        {kind === "compare" && !others.length ? (
          <p class="note">There is no other session to compare with. “What if” and “Fork” create a copy of this one.</p>
        ) : null}
        <div class="buttons">
          <button type="submit" class="primary" disabled={isRunning || (kind === "compare" && !others.length)}>
            {isRunning ? "Running…" : "Run"}
          </button>
          <button type="button" onClick={onClose}>
            Close
          </button>
        </div>
      </form>
      {error ? <p class="failure">{error}</p> : null}
      {report ? (
        <pre class="report" tabIndex={0}>
          {report.text}
        </pre>
      ) : null}
      {comparison ? <ComparisonTable comparison={comparison} isCopy={kind === "what-if"} onOpen={onClose} /> : null}
    </dialog>
  );
}

function ComparisonTable({
  comparison,
  isCopy,
  onOpen,
}: {
  comparison: Comparison;
  isCopy: boolean;
  onOpen: () => void;
}) {
  return (
    <>
      <p class="note">
        {comparison.same ? "Answer and calls are the same." : "Answer or calls differ."}
        {comparison.shared ? ` The first ${comparison.shared} steps are shared.` : ""}{" "}
        {isCopy ? (
          <a href={`#/${comparison.session_id}`} onClick={onOpen}>
            Open the copy
          </a>
        ) : null}
      </p>
      <div class="report" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col" />
              <th scope="col">this session</th>
              <th scope="col">{isCopy ? "the copy" : "the other"}</th>
              <th scope="col">difference</th>
            </tr>
          </thead>
          <tbody>
            {comparison.rows.map(({ name, a, b, difference }) => (
              <tr>
                <th scope="row">{name}</th>
                <td>{a}</td>
                <td>{b}</td>
                <td>{difference ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
