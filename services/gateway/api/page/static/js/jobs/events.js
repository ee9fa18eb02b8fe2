/** What a job has to say, newest first. */
import { html, useState } from "../shell/dom.js";
import { ago, moment } from "../shell/format.js";
import { Choice, Empty } from "../shell/parts.js";
import { setQuery } from "../shell/router.js";

const AT_ONCE = 200;
const LEVELS = ["info", "warn", "error"];

export function Events({ history, query }) {
  const [limit, setLimit] = useState(AT_ONCE);
  const least = Math.max(0, LEVELS.indexOf(query.level));
  const events = history.events.filter((event) => LEVELS.indexOf(event.level) >= least).reverse();
  return html`
    <div class="bar filters">
      <${Choice}
        label="Level"
        value=${query.level}
        options=${[
          ["", "all"],
          ["warn", "warnings and errors"],
          ["error", "errors"],
        ]}
        onChange=${(level) => setQuery({ level })}
      />
      <span class="soft small">Steps are in the curves.</span>
    </div>
    ${!events.length && html`<${Empty}>Nothing has been said.<//>`}
    <ol class="events">
      ${events.slice(0, limit).map(
        (event) =>
          html`<li key=${event.id} class=${event.level}>
            <time title=${moment(event.created_at)}>${ago(event.created_at)}</time>
            <span class="level">${event.level}</span>
            <span
              >${event.message}${
                event.data.evaluation && html` · accuracy ${event.data.evaluation.accuracy?.toFixed(3) ?? "–"}`
              }</span
            >
          </li>`,
      )}
    </ol>
    ${events.length > limit && html`<button onClick=${() => setLimit(limit + AT_ONCE)}>Earlier ones</button>`}
  `;
}
