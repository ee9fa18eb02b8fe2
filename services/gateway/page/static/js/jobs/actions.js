/** Pause, resume, and cancel: the last is final, so it asks. */
import { html, useState } from "../shell/dom.js";
import { JOBS, post } from "../data/api.js";
import { Dialog, isFinal } from "../shell/parts.js";

export function Actions({ job, onDone }) {
  const [asking, setAsking] = useState(false);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  async function ask(what) {
    setBusy(true);
    setAsking(false);
    try {
      await post(`${JOBS}/${job.id}/${what}`);
      setError(null);
      onDone();
    } catch (refused) {
      setError(refused.message);
    }
    setBusy(false);
  }
  const wantsToRun = job.weir.requested === "run" && !isFinal(job);
  const canResume = job.weir.requested === "pause" && !isFinal(job);
  return html`
    <span class="actions">
      ${wantsToRun && html`<button disabled=${busy} onClick=${() => ask("pause")}>Pause</button>`}
      ${
        (canResume || job.status === "failed") &&
        html`<button disabled=${busy} onClick=${() => ask("resume")}>Resume</button>`
      }
      ${
        !isFinal(job) &&
        job.status !== "cancelling" &&
        html`<button class="danger" disabled=${busy} onClick=${() => setAsking(true)}>Cancel</button>`
      }
    </span>
    ${error && html`<p role="alert" class="error">${error}</p>`}
    ${
      asking &&
      html`<${Dialog} label="Cancel the job" onClose=${() => setAsking(false)}>
        <h2>Cancel this job?</h2>
        <p>It ends after its present step and a checkpoint, and cannot be resumed. Checkpoints and samples stay.</p>
        <p class="bar">
          <button autofocus onClick=${() => setAsking(false)}>Keep it</button
          ><button class="danger" onClick=${() => ask("cancel")}>Cancel the job</button>
        </p>
      <//>`
    }
  `;
}
