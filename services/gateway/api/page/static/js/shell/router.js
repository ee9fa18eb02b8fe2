/** Every view has a link: `#/path?what=is&set=in&it`. */
import { useEffect, useState } from "./dom.js";

function parse() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** A part of a link; what is not encoded as links are stands for itself. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {string[]} path @param {Object<string, any>} [query] what is null, false or "" is left out */
export function href(path, query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== false && value !== "",
  );
  const suffix = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${suffix}`;
}

export const go = (link) => void (location.hash = link);

/** Change the query of the view that is open, without a step in the browser's history. */
export function setQuery(changes) {
  const { path, query } = parse();
  history.replaceState(null, "", href(path, { ...query, ...changes }));
  dispatchEvent(new Event("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(parse);
  useEffect(() => {
    const follow = () => setRoute(parse());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}
