// Loaded first, before anything is painted: the colour scheme, and the nonce of style elements.
(() => {
  "use strict";
  const nonce = document.querySelector('meta[name="style-nonce"]').content;
  const create = Document.prototype.createElement;
  // Libraries style by elements that they make; the policy lets in only those with the nonce.
  Document.prototype.createElement = function (name, ...rest) {
    const element = create.call(this, name, ...rest);
    if (String(name).toLowerCase() === "style") element.setAttribute("nonce", nonce);
    return element;
  };

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const scheme = {
    choices: ["system", "light", "dark"],
    chosen() {
      const stored = localStorage.getItem("flopwatch-scheme");
      return this.choices.includes(stored) ? stored : "system";
    },
    apply() {
      const chosen = this.chosen();
      const shown = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
      document.documentElement.setAttribute("data-mantine-color-scheme", shown);
      dispatchEvent(new Event("flopwatch-scheme"));
    },
    choose(name) {
      localStorage.setItem("flopwatch-scheme", name);
      this.apply();
    },
  };
  dark.addEventListener("change", () => scheme.apply());
  window.flopwatch = { scheme };
  scheme.apply();
})();
