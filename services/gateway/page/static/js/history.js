/** What a job's events have told so far: curves, evaluations, the ledger, messages. */
import { useEffect, useRef, useState } from "./dom.js";
import { followEvents } from "./stream.js";

const REDRAW_MS = 250;

export class History {
  /** Steps in ascending order, and beside them every number of their events: null where not told. */
  steps = [];
  /** @type {Map<string, (number|null)[]>} */
  curves = new Map();
  /** @type {Map<string, (number|null)[]>} seconds of each phase, by step */
  phases = new Map();
  /** @type {Map<number, object>} by step */
  evaluations = new Map();
  ledgers = {};
  events = [];
  num = 0;

  absorb(event) {
    this.num += 1;
    const { data, type } = event;
    if (type === "metrics" && data.evaluation) this.evaluations.set(data.evaluation.step, data.evaluation);
    else if (type === "metrics" && data.pretrain_step !== undefined) this.ledgers.pretrain = data.groups;
    else if (type === "metrics" && Number.isFinite(data.step)) return this.#step(data);
    this.events.push(event);
  }

  #step(data) {
    const place = this.#placeOf(data.step);
    if (place < 0) return;
    for (const [name, value] of Object.entries(data)) {
      if (typeof value === "number" && name !== "step") put(this.curves, name, place, value);
    }
    for (const [name, value] of Object.entries(data.phase_seconds ?? {})) put(this.phases, name, place, value);
    if (data.groups) this.ledgers.train = data.groups;
  }

  /** Where a step stands; a new one goes to the end, one that is told again keeps its place. */
  #placeOf(step) {
    if (!this.steps.length || step > this.steps.at(-1)) return this.steps.push(step) - 1;
    return this.steps.indexOf(step);
  }

  /** A curve as long as the steps are. */
  curve(name) {
    return filled(this.curves.get(name) ?? [], this.steps.length);
  }

  phase(name) {
    return filled(this.phases.get(name) ?? [], this.steps.length);
  }

  last(name) {
    return this.curve(name).findLast((value) => value !== null) ?? null;
  }
}

function put(columns, name, place, value) {
  if (!columns.has(name)) columns.set(name, []);
  columns.get(name)[place] = value;
}

const filled = (values, length) => Array.from({ length }, (_, place) => values[place] ?? null);

/**
 * The histories of several jobs, followed while the view is open.
 * @param {{id: string, live: boolean}[]} jobs
 * @returns {{histories: Map<string, History>, error: Error|null, isUp: boolean, loaded: boolean}}
 */
export function useHistories(jobs) {
  const histories = useRef(new Map());
  const [state, setState] = useState({ error: null, isUp: true, version: 0 });
  const wanted = jobs.map(({ id, live }) => `${id}:${live}`).join(",");
  useEffect(() => {
    const stop = new AbortController();
    const redraw = throttled(() => setState((last) => ({ ...last, version: last.version + 1 })));
    for (const { id, live } of jobs) {
      const history = new History();
      const onEvents = (events) => {
        histories.current.set(id, history);
        events.forEach((event) => history.absorb(event));
        redraw();
      };
      followEvents(id, onEvents, { signal: stop.signal, live, onLine: (isUp) => setState((last) => ({ ...last, isUp })) })
        .then(() => onEvents([]))
        .catch((error) => stop.signal.aborted || setState((last) => ({ ...last, error })));
    }
    return () => stop.abort();
  }, [wanted]);
  return { histories: histories.current, ...state };
}

/** Calls at once, and then at most every REDRAW_MS. */
function throttled(work) {
  let timer = null;
  let again = false;
  const run = () => {
    if (timer) return void (again = true);
    work();
    timer = setTimeout(() => {
      timer = null;
      if (again) [again] = [false, run()];
    }, REDRAW_MS);
  };
  return run;
}
