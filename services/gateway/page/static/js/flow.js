/** Where a job's time goes, who waits for whom, and the ledger. */
import { html, useMemo } from "./dom.js";
import { duration, percent, words } from "./format.js";
import { Empty, Failure, isFinal } from "./parts.js";
import { Plot } from "./plot.js";
import { stacked, sum } from "./series.js";
import { useWhy } from "./why.js";

export function Flow({ job, history }) {
  return html`
    <${Phases} history=${history} />
    ${!isFinal(job) && html`<${Waiting} id=${job.id} />`}
    <${Ledgers} ledgers=${history.ledgers} />
  `;
}

function Phases({ history }) {
  const names = [...history.phases.keys()].sort((a, b) => sum(history.phase(b)) - sum(history.phase(a)));
  const totals = names.map((name) => sum(history.phase(name)));
  const all = sum(totals);
  const data = useMemo(() => {
    const piled = stacked(names.map((name) => history.phase(name)));
    return [[...history.steps], ...piled.reverse()];
  }, [history.num, names.join()]);
  const options = useMemo(
    () => (colour) => ({
      series: [{}, ...names.map((_, place) => area(colour(`--line-${names.length - place}`))) ],
    }),
    [names.join()],
  );
  if (!names.length) return html`<section class="panel"><h2>Time per phase</h2><${Empty}>The job's steps do not tell where their time went.<//></section>`;
  return html`<section class="panel">
    <h2>Seconds of each step, by phase</h2>
    <${Plot} options=${options} data=${data} height=${220} label=${`Seconds of each step: ${names.map((name, place) => `${words(name)} ${percent(totals[place] / all)}`).join(", ")}`} />
    <ul class="legend">
      ${names.map((name, place) => html`<li><i class="swatch line-${place + 1}"></i>${words(name)} <b>${percent(totals[place] / all)}</b><span class="soft">${duration(totals[place])}</span></li>`)}
    </ul>
  </section>`;
}

/** Areas lie on top of one another, the tallest first, so each covers what is not its own. */
const area = (stroke) => ({ stroke, fill: stroke, width: 0, points: { show: false } });

function Waiting({ id }) {
  const { value: why, error } = useWhy(id);
  return html`<section class="panel">
    <h2>Who waits for whom</h2>
    ${error && html`<${Failure} error=${error} what="This gateway does not tell." />`}
    ${why && html`
      <p>${why.because ?? (why.moving ? "Everything moves." : "Nothing moves, and no reason is known.")} <span class="soft">Last movement ${duration(why.still_s)} ago.</span></p>
      <div class="scroll" tabindex="0" role="region" aria-label="Services">
        <table>
          <thead><tr><th scope="col">Service</th><th scope="col">Does</th><th scope="col" class="num">For</th></tr></thead>
          <tbody>${why.services.map((one) => html`<tr key=${one.name}><th scope="row">${one.name}</th><td>${one.ready ? "" : "not ready: "}${one.doing}</td><td class="num">${duration(one.for_s)}</td></tr>`)}</tbody>
        </table>
      </div>
      <div class="scroll" tabindex="0" role="region" aria-label="Streams">
        <table>
          <thead><tr><th scope="col">Stream</th><th scope="col" class="num">Waiting</th><th scope="col" class="num">Claimed</th><th scope="col" class="num">Oldest</th></tr></thead>
          <tbody>${why.streams.map((one) => html`<tr key=${one.stream}><th scope="row">${one.stream}</th><td class="num">${one.waiting}</td><td class="num">${one.claimed}</td><td class="num">${duration(one.oldest_s)}</td></tr>`)}</tbody>
        </table>
      </div>`}
  </section>`;
}

function Ledgers({ ledgers }) {
  const purposes = Object.entries(ledgers);
  if (!purposes.length) return null;
  return html`<section class="panel">
    <h2>Ledger</h2>
    <p class="soft">Every group that was asked for: trained, dropped for a reason, or under way.</p>
    ${purposes.map(([purpose, { asked, trained, dropped, under_way }]) => html`
      <p class="ledger"><strong>${purpose}</strong>${[["asked", asked], ["trained", trained], ["dropped", sum(Object.values(dropped))], ["under way", under_way]].map(([name, value], place) => html`
        <span class="sign" aria-hidden="true">${["", "=", "+", "+"][place]}</span><span><b>${value.toLocaleString("en")}</b> ${name}</span>`)}</p>
      ${Object.keys(dropped).length > 0 && html`<ul class="legend">${Object.entries(dropped).map(([reason, count]) => html`<li>${words(reason)} <b>${count.toLocaleString("en")}</b></li>`)}</ul>`}
    `)}
  </section>`;
}
