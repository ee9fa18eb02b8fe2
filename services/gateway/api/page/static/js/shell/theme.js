/** Light or dark: the system's wish, or the person's. */
const NAME = "weir.theme";
const root = document.documentElement;
const systemDark = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

function announce() {
  dispatchEvent(new Event("theme-changed"));
}

export function toggleTheme() {
  const wanted = isDark() ? "light" : "dark";
  root.dataset.theme = wanted;
  localStorage.setItem(NAME, wanted);
  announce();
}

export function startTheme() {
  const saved = localStorage.getItem(NAME);
  if (saved) root.dataset.theme = saved;
  systemDark.addEventListener("change", announce);
}

const probe = document.createElement("i");
probe.hidden = true;

/** The colour that a custom property has now, as a canvas needs it. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
