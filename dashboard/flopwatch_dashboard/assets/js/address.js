// The address is the only state: links and controls write it, pages read it.
(() => {
  "use strict";
  const go = (pathname, search) => dash_clientside.set_props("url", { pathname, search });

  // Change keys of the query; an empty value takes the key out.
  flopwatch.setQuery = (changes) => {
    const query = new URLSearchParams(location.search);
    for (const [key, value] of Object.entries(changes)) {
      if (value === "") query.delete(key);
      else query.set(key, value);
    }
    const text = query.toString().replaceAll("%2C", ",");
    dash_clientside.set_props("url", { search: text ? `?${text}` : "" });
  };

  // With more than one cluster, links that keep it carry the one that is shown.
  const kept = (link, target) => {
    const cluster = document.querySelector(".picker[data-cluster]")?.dataset.cluster;
    if (cluster && (link.dataset.nav || link.dataset.keep)) target.searchParams.set("cluster", cluster);
    return target;
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='/']");
    const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
    if (!link || !plain || event.defaultPrevented) return;
    event.preventDefault();
    const target = kept(link, new URL(link.href));
    go(target.pathname, target.search);
    scrollTo(0, 0);
  });

  // Segments and chips: one value for one key.
  document.addEventListener("click", (event) => {
    const control = event.target.closest("[data-set]");
    if (control) flopwatch.setQuery({ [control.dataset.set]: control.dataset.value });
  });

  // Check boxes: a list of values for one key. Without any state, all are meant.
  document.addEventListener("click", (event) => {
    const box = event.target.closest("[data-toggle]");
    if (!box) return;
    const { toggle: key, value, chosen } = box.dataset;
    const values = new Set(chosen ? chosen.split(",") : []);
    if (!values.delete(value)) values.add(value);
    box.setAttribute("aria-checked", values.has(value));
    const text = [...values].join(",");
    flopwatch.setQuery({ [key]: text || (key === "state" ? "any" : "") });
  });

  flopwatch.clearFilters = () => {
    const query = new URLSearchParams(location.search);
    const cleared = { state: "any", gpus: "any" };
    for (const key of query.keys()) if (!["cluster", "sort", "state", "gpus"].includes(key)) cleared[key] = "";
    flopwatch.setQuery(cleared);
  };

  // Search: "user:kadri", "account:nlp", the id of a job, else a part of a name, a user or an id.
  const typed = { user: "user", account: "account", partition: "partition" };
  const JOB_ID = /^\d+([_+]\d+)?$/;
  const list = (text) => {
    const [, kind, rest] = text.match(/^(user|account|partition):\s*(.+)$/) ?? [];
    const query = new URLSearchParams(kind ? { [typed[kind]]: rest, state: "any" } : { q: text });
    const cluster = document.querySelector(".picker[data-cluster]")?.dataset.cluster;
    if (cluster) query.set("cluster", cluster);
    go("/jobs", text ? `?${query}` : "");
  };

  // Who types the whole id of a job means that job; what is none, or not theirs to see, is looked for.
  const find = async (text) => {
    const cluster = document.querySelector("#context [data-cluster]")?.dataset.cluster;
    if (!cluster || !JOB_ID.test(text)) return list(text);
    const place = `${encodeURIComponent(cluster)}/${encodeURIComponent(text)}`;
    const answer = await fetch(`/api/v1/jobs/${place}`).catch(() => null);
    if (answer?.ok) go(`/jobs/${place}`, "");
    else list(text);
  };

  document.addEventListener("keydown", (event) => {
    const box = document.getElementById("search");
    if (event.target === box && event.key === "Enter") find(box.value.trim());
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      box.focus();
    }
  });

  // After every change of address or page: controls, rail and title follow.
  const arrived = (pathname) => {
    const query = new URLSearchParams(location.search);
    for (const group of document.querySelectorAll(".segment")) {
      const buttons = [...group.querySelectorAll("[data-set]")];
      const value = query.get(buttons[0]?.dataset.set) ?? "";
      const known = buttons.some((button) => button.dataset.value === value);
      for (const button of buttons)
        button.setAttribute("aria-pressed", button.dataset.value === (known ? value : ""));
    }
    for (const link of document.querySelectorAll("[data-nav]")) {
      const path = link.dataset.nav;
      const here = path === "/" ? pathname === "/" : pathname.startsWith(path);
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.body.classList.remove("drawer-open");
    document.querySelector(".picker[open]")?.removeAttribute("open");
    const title = document.querySelector("#main h1")?.textContent;
    document.title = title ? `${title} · Flopwatch` : "Flopwatch";
  };

  window.dash_clientside = window.dash_clientside ?? {};
  dash_clientside.flopwatch = dash_clientside.flopwatch ?? {};
  dash_clientside.flopwatch.arrived = (pathname) => {
    requestAnimationFrame(() => arrived(pathname ?? "/"));
    return dash_clientside.no_update;
  };
})();
