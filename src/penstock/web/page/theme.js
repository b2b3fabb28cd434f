// Light or dark: as the system has it, until somebody chooses. A plain script and no module, so
// that the choice holds before the first paint.
(() => {
  const KEY = "penstock.theme";
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;

  // Storage may be forbidden; a choice then lasts as long as the page.
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
      // Plots are painted, not styled: they have to be told.
      window.dispatchEvent(new Event("themechange"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      window.dispatchEvent(new Event("themechange"));
    });
    show();
  });
})();
