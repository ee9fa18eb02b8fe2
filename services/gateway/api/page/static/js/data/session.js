/** The API key: of this tab, or of this browser if the person says so. */
const NAME = "weir.key";

export const savedKey = () => sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME);

/** @param {string} key @param {boolean} remember beyond this tab */
export function saveKey(key, remember) {
  sessionStorage.setItem(NAME, key);
  if (remember) localStorage.setItem(NAME, key);
}

/** Take the key of a link such as `#key=…`, which a browser sends to no server. */
export function takeLinkedKey() {
  if (!location.hash.startsWith("#key=")) return false;
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  saveKey(key, false);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

export function forgetKey() {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
  dispatchEvent(new Event("key-forgotten"));
}
