/** The API key: of this tab, or of this browser if the person says so. */
const NAME = "weir.key";

export const savedKey = () => sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME);

/** @param {string} key @param {boolean} remember beyond this tab */
export function saveKey(key, remember) {
  sessionStorage.setItem(NAME, key);
  if (remember) localStorage.setItem(NAME, key);
}

export function forgetKey() {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
  dispatchEvent(new Event("key-forgotten"));
}
