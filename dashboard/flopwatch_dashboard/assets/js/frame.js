// The frame: age of the data, pause, colour scheme, drawer, copying.
(() => {
  "use strict";
  const state = { data: null, offset: 0 };
  const element = (id) => document.getElementById(id);

  const age = (seconds) => {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return `${whole} s`;
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) return minutes < 10 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
    if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    return `${Math.floor(minutes / 1440)} d`;
  };

  const show = () => {
    const label = element("age");
    if (!label) return;
    const { data, offset } = state;
    const { paused, signedOut } = flopwatch.live.state;
    let level = "none";
    let text = data ? "no data yet" : "";
    if (data && !data.live) [level, text] = ["none", "final"];
    else if (data && data.newest !== null) {
      // Counted by the server's clock, of which the browser only knows the offset.
      const seconds = Date.now() / 1000 + offset - data.newest;
      text = `${age(seconds)} old`;
      level = seconds > data.old_after ? "old" : seconds > data.late_after ? "late" : "fresh";
    }
    if (paused && data?.live) [level, text] = ["paused", `paused, ${text}`];
    if (signedOut) [level, text] = ["old", "signed out"];
    label.dataset.level = level;
    label.textContent = text;
  };

  // The age counts on by itself: while nothing comes, what is shown gets older.
  flopwatch.freshness = (data) => {
    state.data = data;
    if (data) state.offset = data.now - Date.now() / 1000;
    show();
  };
  flopwatch.showAge = show;
  setInterval(show, 1000);

  const schemeIcons = { system: "sun-moon", light: "sun", dark: "moon" };
  const showScheme = () => {
    const button = element("scheme");
    if (!button) return;
    const chosen = flopwatch.scheme.chosen();
    button.setAttribute("aria-label", `Colour scheme: ${chosen}`);
    button.title = `Colour scheme: ${chosen}`;
    button.firstElementChild.className = `icon icon-${schemeIcons[chosen]}`;
  };
  addEventListener("flopwatch-scheme", showScheme);

  const copied = (button, text) => {
    navigator.clipboard.writeText(text).then(() => {
      const mark = button.querySelector(".icon");
      const before = mark.className;
      mark.className = "icon icon-check";
      setTimeout(() => (mark.className = before), 1500);
    });
  };

  const actions = {
    scheme() {
      const { choices } = flopwatch.scheme;
      const next = (choices.indexOf(flopwatch.scheme.chosen()) + 1) % choices.length;
      flopwatch.scheme.choose(choices[next]);
    },
    pause(button) {
      const { live } = flopwatch;
      live.state.paused = !live.state.paused;
      button.setAttribute("aria-pressed", live.state.paused);
      button.setAttribute("aria-label", live.state.paused ? "Resume live updates" : "Pause live updates");
      button.firstElementChild.className = `icon icon-${live.state.paused ? "play" : "pause"}`;
      live.update();
      show();
    },
    search() {
      document.body.classList.toggle("search-open");
      element("search").focus();
    },
    again: () => dash_clientside.set_props("again", { data: Date.now() }),
    drawer: () => document.body.classList.toggle("drawer-open"),
    facets: () => document.querySelector(".jobs")?.classList.toggle("facets-open"),
    "copy-link": (button) => copied(button, location.href),
    "clear-filters": () => flopwatch.clearFilters(),
    "reset-zoom": (button) => flopwatch.resetZoom(button.closest(".card").querySelector(".dash-graph").id),
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button) actions[button.dataset.action](button);
    const source = event.target.closest("[data-copy]");
    if (source) copied(source, source.dataset.copy);
    for (const picker of document.querySelectorAll(".picker[open]"))
      if (!picker.contains(event.target)) picker.open = false;
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.body.classList.remove("drawer-open");
    for (const picker of document.querySelectorAll(".picker[open]")) picker.open = false;
  });

  dash_clientside.flopwatch.framed = () => {
    requestAnimationFrame(showScheme);
    return dash_clientside.no_update;
  };
})();
