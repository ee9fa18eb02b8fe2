/** Small pieces that several views show. */
import { html, useEffect, useRef } from "./dom.js";

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
  return html`<span class="steps">
    <progress max=${steps || 1} value=${step} aria-label="steps done"></progress>
    <span>${step.toLocaleString("en")} / ${steps.toLocaleString("en")}</span>
  </span>`;
}

/** What went wrong, or that something is not there yet. */
export function Failure({ error, what }) {
  if (error.status === 404 && what) return html`<p class="empty">${what}</p>`;
  return html`<p role="alert" class="error">${error.message}</p>`;
}

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

/** A select whose value lies in the view's query. */
export const Choice = ({ label, value, options, onChange }) => html`
  <label class="field"
    >${label}
    <select value=${value ?? ""} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([name, text]) => html`<option value=${name} selected=${name === (value ?? "")}>${text}</option>`)}
    </select>
  </label>
`;
