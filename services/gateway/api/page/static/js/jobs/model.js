/** What a job has made: its model, to be downloaded, and its checkpoints, to go on from. */
import { html, useState } from "../shell/dom.js";
import { JOBS, get, post, request } from "../data/api.js";
import { ago, number } from "../shell/format.js";
import { Empty, Failure, isFinal, useWork } from "../shell/parts.js";
import { usePolled } from "../data/poll.js";
import { go, href } from "../shell/router.js";

const bytes = (size) => (size < 1e6 ? `${Math.ceil(size / 1e3)} kB` : `${number(size / 1e6)} MB`);

export function Model({ job }) {
  const { busy, error, attempt } = useWork();
  const [rate, setRate] = useState(job.weir.recipe.optimizer?.learning_rate);
  const path = `${JOBS}/${job.id}/model`;
  const hasModel = job.fine_tuned_model !== null;
  const files = usePolled(async (signal) => hasModel && get(path, {}, signal), [job.id, hasModel]);
  const kept = usePolled((signal) => get(`${JOBS}/${job.id}/checkpoints`, {}, signal), [job.id, job.weir.step]);
  const download = (names) =>
    attempt(async () => {
      for (const name of names) save(name, await (await request(`${path}/${name}`)).blob());
    });
  const fork = (model) => attempt(async () => go(href(["jobs", (await post(JOBS, forkOf(job, model, rate))).id])));
  return html`
    ${error && html`<${Failure} error=${error} />`}
    <section class="panel">
      <h2>Trained model</h2>
      ${!hasModel && html`<${Empty}>${isFinal(job) ? "The job has made none." : "There is one once the job has succeeded."}<//>`}
      ${files.error && html`<${Failure} error=${files.error} what="It was deleted." />`}
      ${
        files.value &&
        html`<p class="bar">
            <button class="primary" disabled=${busy} onClick=${() => download(files.value.data.map(({ name }) => name))}>
              Download all
            </button>
            <span>or <code>weir fetch ${job.id} DIR</code></span>
          </p>
          <ul class="files">
            ${files.value.data.map(
              ({ name, bytes: size }) =>
                html`<li>
                  <button disabled=${busy} onClick=${() => download([name])}>Download ${name}</button> ${bytes(size)}
                </li>`,
            )}
          </ul>`
      }
    </section>
    <section class="panel">
      <h2>Checkpoints</h2>
      <p class="soft">A fork is a new job with this recipe that starts from a checkpoint.</p>
      <label class="field"
        >Its learning rate<input
          type="number"
          min="0"
          step="any"
          value=${rate}
          onInput=${(event) => setRate(event.target.valueAsNumber)}
      /></label>
      ${kept.error && html`<${Failure} error=${kept.error} />`}
      ${kept.value && !kept.value.data.length && html`<${Empty}>None is kept yet.<//>`}
      <ul class="files">
        ${kept.value?.data.map(
          (one) =>
            html`<li>
              <b>step ${one.step_number}</b> <span class="soft">${ago(one.created_at)}</span>
              ${one.metrics.reward !== undefined && html`<span>reward ${number(one.metrics.reward)}</span>`}
              <a class="button" href=${href(["chat"], { model: `${job.id}@${one.step_number}` })}>Chat</a>
              <button disabled=${busy} onClick=${() => fork(one.id)}>Fork from step ${one.step_number}</button>
            </li>`,
        )}
      </ul>
    </section>
  `;
}

/** The body of a job by the recipe and the tasks of another, from another model at its own rate. */
function forkOf({ training_file, validation_file, weir }, model, learning_rate) {
  const { tasks: { train, held_out, ...tasks }, model: { path, ...own }, ...tables } = weir.recipe;
  const files = { ...(training_file && { training_file }), validation_file };
  return { model, ...files, recipe: { ...tables, tasks, optimizer: { ...tables.optimizer, learning_rate }, model: own } };
}

/** A link could not carry the key. */
function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
