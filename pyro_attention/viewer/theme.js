"use strict";
// The page follows the system until its reader chooses.
(() => {
  const button = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = document.documentElement.dataset;
  const isDark = () => (chosen.theme ? chosen.theme === "dark" : system.matches);
  const show = () => button.setAttribute("aria-pressed", isDark());
  button.addEventListener("click", () => {
    chosen.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
})();
