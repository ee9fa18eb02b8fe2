/** What a job's events have told so far: curves, evaluations, the ledger, messages. */
import { useEffect, useRef, useState } from "../shell/dom.js";
import { followEvents } from "./stream.js";

const REDRAW_MS = 2000; // a dozen charts: more often takes time from a job on the same cores

/** Numbers told step by step: steps ascend, and a number is null where a step did not tell it. */
class Columns {
  steps = [];
  #values = new Map();

  get names() {
    return [...this.#values.keys()];
  }

  put(step, numbers) {
    const isNew = !this.steps.length || step > this.steps.at(-1);
    const place = isNew ? this.steps.push(step) - 1 : this.steps.indexOf(step);
    if (place < 0) return;
    for (const [name, value] of Object.entries(numbers)) {
      if (typeof value !== "number") continue;
      if (!this.#values.has(name)) this.#values.set(name, []);
      this.#values.get(name)[place] = value;
    }
  }

  /** @returns {(number|null)[]} as long as the steps are */
  column(name) {
    const values = this.#values.get(name) ?? [];
    return Array.from(this.steps, (_, place) => values[place] ?? null);
  }
}

const ALONE = "pretrain "; // begins the names of what the critic's own steps tell

export class History {
  num = 0;
  /** What is no step, as it came. */
  events = [];
  /** @type {Map<number, object>} results by step */
  evaluations = new Map();
  /** @type {Map<string, Map<number, object>>} those on further files, by name */
  otherEvaluations = new Map();
  /** The last account of each purpose. */
  ledgers = {};
  phases = new Columns();
  #train = new Columns();
  #pretrain = new Columns();

  absorb(event) {
    this.num += 1;
    const { step, pretrain_step: alone, evaluation, groups, phase_seconds: phases, ...numbers } = event.data;
    const { other_evaluation: other } = numbers;
    if (event.type === "metrics" && evaluation) {
      this.evaluations.set(evaluation.step, evaluation);
      this.ledgers.eval = groups;
    } else if (other) {
      if (!this.otherEvaluations.has(other.name)) this.otherEvaluations.set(other.name, new Map());
      this.otherEvaluations.get(other.name).set(other.step, other);
      this.ledgers.eval = groups;
    } else if (event.type === "metrics" && alone !== undefined) {
      this.#pretrain.put(alone, numbers);
      this.ledgers.pretrain = groups;
    } else if (event.type === "metrics" && step !== undefined) {
      this.#train.put(step, numbers);
      this.phases.put(step, phases ?? {});
      this.ledgers.train = groups;
      return;
    }
    this.events.push(event);
  }

  get names() {
    return [...this.#train.names, ...this.#pretrain.names.map((name) => ALONE + name)];
  }

  /** @returns {[number[], (number|null)[]]} the steps of a curve, and its values */
  curve(name) {
    const isAlone = name.startsWith(ALONE);
    const columns = isAlone ? this.#pretrain : this.#train;
    return [columns.steps, columns.column(isAlone ? name.slice(ALONE.length) : name)];
  }
}

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
      followEvents(id, onEvents, {
        signal: stop.signal,
        live,
        onLine: (isUp) => setState((last) => ({ ...last, isUp })),
      })
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
