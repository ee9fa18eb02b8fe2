/** The recipe of a job, table by table, with its defaults. */
import { html } from "../shell/dom.js";
import { moment } from "../shell/format.js";

export function Recipe({ job }) {
  const { recipe } = job.weir;
  const own = Object.entries(recipe).filter(([, value]) => !isTable(value));
  const tables = Object.entries(recipe).filter(([, value]) => isTable(value));
  const facts = {
    id: job.id,
    submitted: moment(job.created_at),
    model: job.model,
    attempt: job.weir.attempt,
    "trained model": job.fine_tuned_model,
    ...job.metadata,
  };
  return html`<div class="tables">
    <${Settings} name="Job" settings=${Object.entries(facts)} />
    <${Settings} name="Recipe" settings=${own} />
    ${tables.map(([name, table]) => html`<${Settings} name=${name} settings=${Object.entries(table)} />`)}
  </div>`;
}

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const text = (value) =>
  typeof value === "string" ? value : JSON.stringify(value, null, 1)?.replace(/\n */g, " ");

const Settings = ({ name, settings }) =>
  html`<section class="panel">
    <h2>${name}</h2>
    <dl class="settings">
      ${settings.map(
        ([key, value]) =>
          value !== null &&
          value !== undefined &&
          html`<div>
            <dt>${key}</dt>
            <dd>${text(value)}</dd>
          </div>`,
      )}
    </dl>
  </section>`;
