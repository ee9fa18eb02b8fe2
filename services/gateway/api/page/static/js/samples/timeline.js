/** One task's answers over the steps: a column for each time that it was asked. */
import { html } from "../shell/dom.js";
import { number } from "../shell/format.js";
import { href } from "../shell/router.js";
import { mean } from "../data/series.js";
import { filtersOf, groupsOf } from "./sampleList.js";
import { verdictOf } from "./samples.js";

export function Timeline({ job, task, rows, query }) {
  const groups = groupsOf(rows).map((key) => rows.filter((row) => row.key === key));
  groups.sort(([a], [b]) => a.step - b.step);
  return html`<section class="panel">
    <h2 title=${task}>${rows[0].prompt ?? task} <span class="soft small">its answers, step by step</span></h2>
    <ol class="timeline">
      ${groups.map((group) => {
        const [{ key, step, purpose }] = group;
        const right = group.filter((row) => verdictOf(row).kind === "right").length;
        const reward = number(mean(group.map((row) => row.reward)));
        const label = `${purpose} at step ${step}: ${right} of ${group.length} right, mean reward ${reward}`;
        return html`<li key=${key}>
          <a href=${href(["jobs", job.id, "samples", key], filtersOf(query))} aria-label=${label} title=${label}>
            <span class="column" aria-hidden="true"
              >${group.map((row) => html`<i class=${verdictOf(row).kind}>${verdictOf(row).symbol}</i>`)}</span
            >
            <span class="small soft">${step}</span>
          </a>
        </li>`;
      })}
    </ol>
  </section>`;
}
