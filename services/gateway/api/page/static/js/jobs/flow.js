/** Where a job's time goes, who waits for whom, and the ledger. */
import { html, useMemo } from "../shell/dom.js";
import { duration, number, percent, words } from "../shell/format.js";
import { Empty, Facts, Failure, Table, isFinal } from "../shell/parts.js";
import { Plot } from "../charts/plot.js";
import { median, stacked, sum } from "../data/series.js";
import { useWhy } from "./why.js";

const USUAL_STEPS = 4;
const SERVICES = [
  ["Service", (one) => one.name],
  ["Does", (one) => `${one.ready ? "" : "not ready: "}${one.doing}`],
  ["For", (one) => duration(one.for_s), "num"],
  ["Parity gap", ({ parity }) => parity && `${number(parity.mean)} at ${parity.version}`, "num"],
];
const STREAMS = [
  ["Stream", (one) => one.stream],
  ["Waiting", (one) => one.waiting, "num"],
  ["Claimed", (one) => one.claimed, "num"],
  ["Oldest", (one) => duration(one.oldest_s), "num"],
];

export function Flow({ job, history }) {
  return html`
    <${Phases} history=${history} />
    ${job.weir.bill && html`<${Bill} bill=${job.weir.bill} />`}
    ${!isFinal(job) && html`<${Waiting} id=${job.id} />`}
    <${Ledgers} ledgers=${{ ...history.ledgers, ...finalLedgers(job.weir.result ?? {}) }} />
  `;
}

function Phases({ history }) {
  const { phases } = history;
  const spent = (name) => sum(phases.column(name));
  const names = phases.names.sort((a, b) => spent(b) - spent(a));
  const totals = names.map(spent);
  const all = sum(totals);
  const shares = names.map((name, place) => `${words(name)} ${percent(totals[place] / all)}`);
  const data = useMemo(() => {
    const piled = stacked(names.map((name) => phases.column(name)));
    return [[...phases.steps], ...piled.reverse()];
  }, [history.num, names.join()]);
  const options = useMemo(
    () => (colour) => ({
      series: [{}, ...names.map((_, place) => area(colour(`--line-${lineOf(names.length - 1 - place)}`)))],
      scales: { y: { range: (plot, least, most) => [0, Math.min(1.05 * most, highest(plot.data[1]))] } },
    }),
    [names.join()],
  );
  const isCut = names.length > 0 && Math.max(...data[1]) > highest(data[1]);
  if (!names.length)
    return html`<section class="panel">
      <h2>Time per phase</h2>
      <${Empty}>The job's steps do not tell where their time went.<//>
    </section>`;
  return html`<section class="panel">
    <div class="bar">
      <h2>Seconds of each step, by phase</h2>
      ${isCut && html`<span class="soft small">steps that took much longer than others are cut off</span>`}
    </div>
    <${Plot} options=${options} data=${data} height=${220} label=${`Seconds of each step: ${shares.join(", ")}`} />
    <ul class="legend">
      ${names.map(
        (name, place) =>
          html`<li>
            <i class="swatch line-${lineOf(place)}"></i>${words(name)} <b>${percent(totals[place] / all)}</b
            ><span class="soft">${duration(totals[place])}</span>
          </li>`,
      )}
    </ul>
  </section>`;
}

/** What the job has used, by service and phase, and what became of its tokens. */
function Bill({ bill }) {
  const { gpu_hours: hours, budget_gpu_hours: budget, price } = bill;
  const unit = Object.keys(bill.gpu_seconds).length ? "GPU-hours" : "hours of the machine";
  const facts = [[unit, hours], ["budget", budget], ["price", price]].filter(([, value]) => value !== null);
  return html`<section class="panel">
    <h2>Bill</h2>
    <${Facts} facts=${facts.map(([name, value]) => [name, number(value)])} />
    <${Parts} title="GPU-seconds by service" parts=${bill.gpu_seconds} />
    <${Parts} title="Core-seconds by service" parts=${bill.core_seconds} />
    <${Parts} title="Seconds by phase" parts=${bill.phase_seconds} />
    <${Tokens} tokens=${bill.tokens} />
  </section>`;
}

function Parts({ title, parts }) {
  const sorted = Object.entries(parts).sort(([, a], [, b]) => b - a);
  const all = sum(Object.values(parts));
  if (!sorted.length) return null;
  return html`<h3>${title}</h3>
    <ul class="legend" aria-label=${title}>
      <li>all <b>${duration(all)}</b></li>
      ${sorted.map(
        ([name, own]) =>
          html`<li>${words(name)} <b>${percent(own / all)}</b><span class="soft">${duration(own)}</span></li>`,
      )}
    </ul>`;
}

function Tokens({ tokens }) {
  if (!Object.keys(tokens).length) return null;
  return html`<h3>Tokens</h3>
    <ul class="legend" aria-label="Tokens">
      ${Object.entries(tokens).map(([name, count]) => html`<li>${words(name)} <b>${count.toLocaleString("en")}</b></li>`)}
    </ul>`;
}

/** Where the axis ends: a few long steps would flatten all others. */
const highest = (seconds) => USUAL_STEPS * median(seconds);

const lineOf = (place) => (place % 8) + 1;

/** Areas lie on top of one another, the tallest first, so each covers what is not its own. */
const area = (stroke) => ({ stroke, fill: stroke, width: 0, points: { show: false } });

function Waiting({ id }) {
  const { value: why, error } = useWhy(id);
  return html`<section class="panel">
    <h2>Who waits for whom</h2>
    ${error && html`<${Failure} error=${error} what="This gateway does not tell." />`}
    ${
      why &&
      html`<p>
          ${why.because ?? (why.moving ? "Everything moves." : "Nothing moves, and no reason is known.")}
          <span class="soft aside">Last movement ${duration(why.still_s)} ago.</span>
        </p>
        ${why.services.length > 0 && html`<${Table} label="Services" columns=${SERVICES} rows=${why.services} />`}
        <${Table} label="Streams" columns=${STREAMS} rows=${why.streams} />`
    }
  </section>`;
}

/** How it ended: what was left under way has been dropped since the last step. */
function finalLedgers({ groups: train, pretraining_groups: pretrain, evaluation_groups: evaluation }) {
  return Object.fromEntries(Object.entries({ train, pretrain, eval: evaluation }).filter(([, account]) => account));
}

function Ledgers({ ledgers }) {
  const purposes = Object.entries(ledgers).filter(([, account]) => account);
  if (!purposes.length) return null;
  return html`<section class="panel">
    <h2>Ledger</h2>
    <p class="soft">Every group that was asked for: used, dropped for a reason, or under way.</p>
    ${purposes.map(
      ([purpose, { asked, trained, dropped, under_way }]) => html`
        <p class="ledger">
          <strong>${purpose}</strong>${[
            ["asked", asked],
            ["used", trained],
            ["dropped", sum(Object.values(dropped))],
            ["under way", under_way],
          ].map(
            ([name, value], place) =>
              html`<span class="sign" aria-hidden="true">${["", "=", "+", "+"][place]}</span
                ><span><b>${value.toLocaleString("en")}</b> ${name}</span>`,
          )}
        </p>
        ${
          Object.keys(dropped).length > 0 &&
          html`<ul class="legend">
            ${Object.entries(dropped).map(
              ([reason, count]) => html`<li>${words(reason)} <b>${count.toLocaleString("en")}</b></li>`,
            )}
          </ul>`
        }
      `,
    )}
  </section>`;
}
