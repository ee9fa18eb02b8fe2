/** The list of a job's samples under some filters: kept, so that its neighbours are known when one is open. */
import { JOBS, get } from "../data/api.js";
import { useEffect, useState } from "../shell/dom.js";

const PAGE = 100;
const FILTERS = "step purpose task fate correct ungradable truncated zero_advantage text order".split(" ");

/** The part of a view's query that filters samples. */
export const filtersOf = (query) =>
  Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));

let kept = { about: null };

function listOf(jobId, filters) {
  const about = JSON.stringify([jobId, filters]);
  if (kept.about !== about)
    kept = { about, rows: [], wanted: 1, summary: null, more: true, after: undefined, loading: null };
  return kept;
}

/** Ask for the next page of a list, once at a time. */
function loadMore(list, jobId, filters) {
  list.loading ??= get(`${JOBS}/${jobId}/samples`, { ...filters, limit: PAGE, after: list.after })
    .then((page) => {
      list.rows.push(...page.data);
      Object.assign(list, { summary: page.summary, more: page.has_more, after: page.last_id, error: null });
    })
    .catch((error) => Object.assign(list, { error, more: false }))
    .finally(() => (list.loading = null));
  return list.loading;
}

/**
 * What has been loaded of a list; `next` loads on, `again` begins anew. A search of texts may answer an empty page
 * and that there is more: it goes on until it finds something.
 * @returns {{rows: object[], summary: object|null, more: boolean, searching: boolean, error: Error|null}}
 */
export function useSampleList(jobId, filters) {
  const [, redraw] = useState(0);
  const list = listOf(jobId, filters);
  const searching = list.more && list.rows.length < list.wanted;
  const load = () => loadMore(list, jobId, filters).then(() => redraw((count) => count + 1));
  useEffect(() => {
    if (searching) load();
  }, [list, list.after, searching]);
  const next = () => {
    list.wanted = list.rows.length + 1;
    redraw((count) => count + 1);
  };
  const again = () => {
    kept = { about: null };
    redraw((count) => count + 1);
  };
  return { ...list, searching, next, again };
}

/** The groups of a list in its order, each once. */
export const groupsOf = (rows) => [...new Set(rows.map(({ key }) => key))];
