/** The recipe of a job as TOML, with its defaults told apart. */
import { html, useState } from "../shell/dom.js";
import { post } from "../data/api.js";
import { moment, percent } from "../shell/format.js";
import { usePolled } from "../data/poll.js";
import { href } from "../shell/router.js";
import { Facts } from "../shell/parts.js";
import { toml } from "./toml.js";

export function Recipe({ job }) {
  const { recipe, readable_solutions: readable = null } = job.weir;
  const [copied, setCopied] = useState(false);
  const { value: read } = usePolled(() => post("v1/page/recipe", { text: JSON.stringify(recipe) }), [job.id]);
  const text = toml(recipe, read?.changed ?? null);
  const facts = [
    ["id", job.id],
    ["submitted", moment(job.created_at)],
    ["model", job.model],
    ["attempt", job.weir.attempt],
    ["trained model", job.fine_tuned_model],
    ["tasks left out, answer unreadable", job.weir.unreadable_answers],
    ["solutions equation_steps can judge", readable === null ? null : percent(readable)],
    ...Object.entries(job.metadata),
  ];
  const copy = () => navigator.clipboard.writeText(text).then(() => setCopied(true));
  return html`
    <section class="panel">
      <h2>Job</h2>
      <${Facts} facts=${facts.filter(([, value]) => value !== null && value !== undefined)} />
    </section>
    <section class="panel">
      <div class="bar">
        <h2>Recipe</h2>
        <span class="grow"></span>
        ${navigator.clipboard && html`<button onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`}
        <a class="button" href=${href(["submit"], { like: job.id })}>Submit a changed copy</a>
      </div>
      <pre class="toml" tabindex="0" role="region" aria-label="Recipe as TOML">
${text.split("\n").map((line) => html`<span class=${line.endsWith("# default") ? "soft" : ""}>${line}</span>${"\n"}`)}</pre
      >
    </section>
  `;
}
