/** Pause, resume, cancel and delete: the last two are final, so they ask. */
import { html, useState } from "../shell/dom.js";
import { JOBS, post, remove } from "../data/api.js";
import { Dialog, isFinal } from "../shell/parts.js";
import { go, href } from "../shell/router.js";

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
  async function erase() {
    setBusy(true);
    try {
      await remove(`${JOBS}/${job.id}`);
      go(href([]));
    } catch (refused) {
      setAsking(false);
      setError(refused.message);
      setBusy(false);
    }
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
      ${
        isFinal(job) &&
        html`<a class="button" href=${href(["jobs", job.id, "model"])}>Download or fork</a
          ><button class="danger" disabled=${busy} onClick=${() => setAsking(true)}>Delete</button>`
      }
    </span>
    ${error && html`<p role="alert" class="error">${error}</p>`}
    ${
      asking &&
      isFinal(job) &&
      html`<${Dialog} label="Delete the job" onClose=${() => setAsking(false)}>
        <h2>Delete this job?</h2>
        <p>Its record, events, samples, checkpoints and model go, and cannot be brought back.</p>
        <p class="bar">
          <button autofocus onClick=${() => setAsking(false)}>Keep it</button
          ><button class="danger" disabled=${busy} onClick=${erase}>Delete the job</button>
        </p>
      <//>`
    }
    ${
      asking &&
      !isFinal(job) &&
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
