/** Pause, resume, cancel and delete, one job or many: the last two are final, so they ask. */
import { html, useState } from "../shell/dom.js";
import { JOBS, post, remove } from "../data/api.js";
import { Dialog, Failure, isFinal, useWork } from "../shell/parts.js";
import { go, href } from "../shell/router.js";

export function Actions({ job, onDone }) {
  const [asking, setAsking] = useState(false);
  const [hours, setHours] = useState("");
  const { busy, error, attempt } = useWork();
  const ask = (what, body) => attempt(() => post(`${JOBS}/${job.id}/${what}`, body).then(onDone));
  const onYes = () => {
    setAsking(false);
    if (!isFinal(job)) return ask("cancel");
    return attempt(() => remove(`${JOBS}/${job.id}`).then(() => go(href([]))));
  };
  const wantsToRun = job.weir.requested === "run" && !isFinal(job);
  const canResume = job.weir.requested === "pause" && !isFinal(job);
  const { gpu_hours: spent, budget_gpu_hours: budget } = job.weir.bill ?? {};
  const isSpent = budget && spent >= budget && (canResume || job.status === "failed");
  return html`
    <span class="actions">
      ${
        isSpent &&
        html`<label class="field"
          >New budget, hours<input
            type="number"
            min=${spent}
            step="any"
            value=${hours}
            onInput=${(event) => setHours(event.target.value)}
        /></label>`
      }
      ${
        (job.fine_tuned_model || job.status === "running") &&
        html`<a class="button" href=${href(["chat"], { model: job.id })}>Chat</a>`
      }
      ${wantsToRun && html`<button disabled=${busy} onClick=${() => ask("pause")}>Pause</button>`}
      ${
        (canResume || job.status === "failed") &&
        html`<button disabled=${busy} onClick=${() => ask("resume", isSpent ? { budget_gpu_hours: Number(hours) } : undefined)}>Resume</button>`
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
    ${error && html`<${Failure} error=${error} />`}
    ${asking && html`<${Question} verb=${isFinal(job) ? "Delete" : "Cancel"} onYes=${onYes} onNo=${() => setAsking(false)} />`}
  `;
}

/** Deletes the jobs that the filters find, as far as they have ended. */
export function DeleteFound({ filters, onDone }) {
  const [asking, setAsking] = useState(false);
  const { busy, error, attempt } = useWork();
  const erase = async () => {
    while ((await remove(JOBS, filters)).has_more);
  };
  const onYes = () => {
    setAsking(false);
    attempt(() => erase().finally(onDone));
  };
  return html`
    <button class="danger" disabled=${busy} onClick=${() => setAsking(true)}>Delete all found</button>
    ${error && html`<${Failure} error=${error} />`}
    ${asking && html`<${Question} verb="Delete" what="all found jobs that have ended" onYes=${onYes} onNo=${() => setAsking(false)} />`}
  `;
}

const MEANS = {
  Cancel: "It ends after its present step and a checkpoint, and cannot be resumed. Checkpoints and samples stay.",
  Delete: "Record, events, samples, checkpoints and model go, and cannot be brought back.",
};

const Question = ({ verb, what = "the job", onYes, onNo }) =>
  html`<${Dialog} label=${`${verb} ${what}`} onClose=${onNo}>
    <h2>${verb} ${what}?</h2>
    <p>${MEANS[verb]}</p>
    <p class="bar">
      <button autofocus onClick=${onNo}>Keep it</button
      ><button class="danger" onClick=${onYes}>${verb} ${what}</button>
    </p>
  <//>`;
