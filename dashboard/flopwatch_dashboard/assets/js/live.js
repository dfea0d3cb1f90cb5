// The live path of the open page: one socket that follows what stands on the screen, and asking
// again and again where none opens (live/socket.py tells what is sent).
//
// Nobody who looks away, pauses or sees what is final follows anything. Coming back, the browser
// tells what it has (a cursor), so that it gets each point that it lacks, and none twice.
(() => {
  "use strict";
  const PATH = "/_live";
  const SIGNED_OUT = 4401;
  const REFUSALS = 3; // sockets that told nothing, before asking without one
  const POLL_MS = 5_000;
  const FIRST_WAIT_MS = 500;
  const LONGEST_WAIT_MS = 30_000;
  const SILENT_MS = 45_000; // the server gives a sign of life every 15 s
  const LONG_AWAY_MS = 15 * 60_000; // after that all points come anew: what was late lies too far back

  const state = { paused: false, signedOut: false };
  let page = null; // {path, search, shape, readAt, cursor, live}, as on the screen
  let number = 0; // of the newest wish: older answers are of something else
  let socket = null;
  let failures = 0; // sockets that told nothing, since the last that did
  let retry = null;
  let silence = null;
  let heardAt = Date.now();

  const follows = () =>
    page !== null && page.live && !state.paused && !state.signedOut && !document.hidden;
  const isOpen = () => socket?.readyState === WebSocket.OPEN;

  const wish = () => {
    const rows = flopwatch.shownRows();
    const { path, search, cursor } = page;
    return JSON.stringify({ type: "follow", number, path, search, cursor, ...(rows && { rows }) });
  };

  const ask = () => {
    number += 1;
    if (Date.now() - heardAt > LONG_AWAY_MS) page.cursor = null;
    if (isOpen()) socket.send(wish());
    else if (failures >= REFUSALS || page.cursor === null) poll();
    if (follows()) connect();
  };

  const leave = () => {
    number += 1;
    if (isOpen()) socket.send(JSON.stringify({ type: "leave" }));
  };

  // What has no cursor was asked for by the reader, and comes even to who is paused.
  const update = () => {
    if (state.signedOut) return;
    if (page !== null && (follows() || page.cursor === null)) ask();
    else leave();
  };

  const again = () => {
    page = null;
    dash_clientside.set_props("again", { data: Date.now() });
  };

  const receive = (frame) => {
    if (frame.number !== number || page === null) return;
    if (frame.gone) return again();
    const { news } = frame;
    if (JSON.stringify(news.shape) !== JSON.stringify(page.shape)) return again();
    page.cursor = news.cursor;
    page.live = news.freshness.live;
    flopwatch.receive(news, page.readAt);
    if (!follows()) leave();
  };

  const signedOut = () => {
    state.signedOut = true;
    clearTimeout(retry);
    flopwatch.showAge();
  };

  const heard = (from, text) => {
    failures = 0;
    heardAt = Date.now();
    clearTimeout(silence);
    silence = setTimeout(() => lost(from), SILENT_MS);
    receive(JSON.parse(text));
  };

  const connect = () => {
    if (socket !== null || retry !== null) return;
    const made = new WebSocket(`${location.origin.replace(/^http/, "ws")}${PATH}`);
    socket = made;
    made.onopen = update;
    made.onmessage = ({ data }) => made === socket && heard(made, data);
    made.onclose = ({ code }) => lost(made, code);
  };

  const lost = (from, code) => {
    if (from !== socket) return;
    socket = null;
    clearTimeout(silence);
    from.close();
    if (code === SIGNED_OUT) return signedOut();
    failures += 1;
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (failures - 1));
    retry = setTimeout(retryNow, wait * (0.5 + Math.random() / 2));
  };

  const retryNow = () => {
    clearTimeout(retry);
    retry = null;
    if (follows()) connect();
  };

  let polling = false;
  const poll = async () => {
    if (polling) return;
    polling = true;
    const asked = number;
    try {
      const answer = await fetch(`${PATH}?wish=${encodeURIComponent(wish())}`);
      if (answer.status === 401) signedOut();
      else if (answer.ok || answer.status === 404) receive(await answer.json());
    } catch {
      // The server is out of reach: the age of what is shown says so, and the next turn tries again.
    } finally {
      polling = false;
    }
    if (asked !== number && page?.cursor === null) update(); // the reader asked for more meanwhile
  };
  setInterval(() => follows() && !isOpen() && failures >= REFUSALS && poll(), POLL_MS);

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) retryNow();
    update();
  });
  addEventListener("online", retryNow);

  // Another page is on the screen, or the reader asks for other figures of the same one.
  dash_clientside.flopwatch.follow = (shown, pathname, search) => {
    const isNew = dash_clientside.callback_context.triggered.some(({ prop_id }) => prop_id === "on-screen.data");
    if (isNew) {
      flopwatch.freshness(shown?.freshness ?? null);
      page = shown?.follows ? { ...shown, readAt: shown.freshness.now, live: shown.freshness.live } : null;
      heardAt = Date.now();
    }
    if (page !== null && page.path !== pathname) page = null; // the page of that path comes
    if (page !== null && page.search !== (search ?? "")) Object.assign(page, { search: search ?? "", cursor: null });
    update();
    return dash_clientside.no_update;
  };

  flopwatch.live = {
    state,
    update,
    // A list has scrolled to other rows.
    moved: () => follows() && ask(),
  };
})();
