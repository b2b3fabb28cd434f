// The theme: the system's theme unless the user chooses another. A classic script, because a module
// would run after the first paint.
(() => {
  const KEY = "penstock.theme";
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;

  // If storage is disabled, the choice lasts until the page is closed.
  let choice = "system";
  try {
    const stored = localStorage.getItem(KEY);
    if (CHOICES.includes(stored)) choice = stored;
  } catch {}
  apply();

  function apply() {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-button");
    const show = () => {
      document.getElementById("theme").textContent = choice;
      button.setAttribute("aria-label", `Theme: ${choice}`);
    };
    button.addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try {
        localStorage.setItem(KEY, choice);
      } catch {}
      apply();
      show();
      // CSS does not affect plots: they redraw on this event.
      window.dispatchEvent(new Event("themechange"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      window.dispatchEvent(new Event("themechange"));
    });
    show();
  });
})();
