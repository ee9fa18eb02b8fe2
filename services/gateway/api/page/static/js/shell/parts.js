/** Small pieces that several views show. */
import { html, useEffect, useRef, useState } from "./dom.js";

/** OpenAI's words for a job's state, and Weir's own; the symbol says it without colour. */
const SYMBOLS = {
  queued: "○",
  running: "●",
  pausing: "◐",
  paused: "‖",
  cancelling: "◐",
  succeeded: "✓",
  failed: "✗",
  cancelled: "–",
};
const FINAL = ["succeeded", "failed", "cancelled"];

export const isFinal = (job) => FINAL.includes(job.status);

export const Status = ({ job }) =>
  html`<span class="status ${job.status}"><i aria-hidden="true">${SYMBOLS[job.status]}</i>${job.status}</span>`;

export function StepBar({ job }) {
  const { step, steps } = job.weir;
  if (steps === 0) return html`<span class="steps">evaluation</span>`;
  return html`<span class="steps">
    ${steps && html`<progress max=${steps} value=${step} aria-label="steps done"></progress>`}
    <span>${step.toLocaleString("en")}${steps && ` / ${steps.toLocaleString("en")}`}</span>
  </span>`;
}

/** What went wrong, or that something is not there yet. */
export function Failure({ error, what }) {
  if (error.status === 404 && what) return html`<p class="empty">${what}</p>`;
  return html`<p role="alert" class="error">${error.message}</p>`;
}

/** What a person asks for now and then: whether it is under way, and how the last one failed. */
export function useWork() {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const attempt = async (work) => {
    setBusy(true);
    setError(null);
    await work().catch(setError);
    setBusy(false);
  };
  return { busy, error, attempt };
}

/** @param {[string, (row: object) => any, (string | ((row: object) => string))?][]} props.columns name, content, class */
export const Table = ({ label, columns, rows, className }) =>
  html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class=${className}>
      <thead>
        <tr>
          ${columns.map(([name, , kind]) => html`<th scope="col" class=${kind?.call ? "num" : kind}>${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) =>
            html`<tr>
              ${columns.map(
                ([name, show, kind], place) =>
                  html`<${place ? "td" : "th"} scope=${place ? null : "row"} class=${kind?.call ? kind(row) : kind} data-label=${name}
                    >${show(row)}<//
                  >`,
              )}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;

/** Names and what they stand for. */
export const Facts = ({ facts, className = "settings" }) =>
  html`<dl class=${className}>
    ${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** A dialog on top of everything; Escape closes it. */
export function Dialog({ onClose, label, children }) {
  const box = useRef(null);
  useEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} aria-label=${label} onClose=${onClose}>${children}</dialog>`;
}

/** A row of links of which one is where we are. */
export const Tabs = ({ label, tabs, here }) => html`
  <nav class="tabs" aria-label=${label}>
    ${tabs.map(([name, text, link]) => html`<a href=${link} aria-current=${name === here ? "page" : null}>${text}</a>`)}
  </nav>
`;

/** @param {[string, string | Array][]} props.options value and text, or the name of a group and its options */
const Options = ({ value, options }) =>
  options.map(([name, content]) =>
    Array.isArray(content)
      ? html`<optgroup label=${name}><${Options} value=${value} options=${content} /></optgroup>`
      : html`<option value=${name} selected=${name === value}>${content}</option>`,
  );

/** A select whose value lies in the view's query. */
export const Choice = ({ label, value = "", options, onChange }) => html`
  <label class="field"
    >${label}
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      <${Options} value=${value} options=${options} />
    </select>
  </label>
`;
