// The command palette: every action of the page by name.
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export interface PaletteEntry {
  name: string;
  key?: string;
  run: () => void;
}

const SHOWN = 30;

// `more` are entries that are offered once something is typed.
export function CommandPalette({
  entries,
  more,
  onClose,
}: {
  entries: PaletteEntry[];
  more: () => PaletteEntry[];
  onClose: () => void;
}) {
  const [query, setQuery] = useState("");
  const [selected, setSelected] = useState(0);
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => dialog.current?.showModal(), []); // at once, so that it gets the next key
  const wanted = query.trim().toLowerCase();
  const fitting = [...entries, ...(wanted ? more() : [])]
    .filter(({ name }) => name.toLowerCase().includes(wanted))
    .slice(0, SHOWN);
  const run = (entry: PaletteEntry | undefined): void => {
    onClose();
    entry?.run();
  };
  return (
    <dialog
      id="palette"
      ref={dialog}
      aria-label="Command palette"
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
    >
      <input
        type="search"
        aria-label="Command"
        placeholder="What do you want to do?"
        autocomplete="off"
        value={query}
        onInput={(event) => {
          setQuery(event.currentTarget.value);
          setSelected(0);
        }}
        onKeyDown={(event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step && fitting.length) {
            event.preventDefault();
            setSelected((selected + step + fitting.length) % fitting.length);
          }
          if (event.key === "Enter") {
            event.preventDefault();
            run(fitting[selected]);
          }
          if (event.key === "Escape") {
            event.stopPropagation();
            onClose();
          }
        }}
      />
      <ul role="listbox" aria-label="Commands" tabIndex={0}>
        {fitting.map((entry, index) => (
          <li role="option" aria-selected={index === selected} onClick={() => run(entry)}>
            {entry.name}
            {entry.key ? <kbd>{entry.key}</kbd> : null}
          </li>
        ))}
      </ul>
    </dialog>
  );
}
