// Times of day in the browser's zone, which is also that of the charts' axes.
(() => {
  "use strict";
  const PARTS = {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
    second: "2-digit", hourCycle: "h23", timeZoneName: "short",
  };
  const numbers = new Intl.DateTimeFormat("en-GB", PARTS);
  const months = new Intl.DateTimeFormat("en-US", { month: "short" });
  const partsOf = (moment) =>
    Object.fromEntries(numbers.formatToParts(moment).map(({ type, value }) => [type, value]));

  const full = (moment) => {
    const { year, month, day, hour, minute, second, timeZoneName } = partsOf(moment);
    return `${year}-${month}-${day} ${hour}:${minute}:${second} ${timeZoneName}`;
  };

  const short = (moment, now) => {
    const { hour, minute } = partsOf(moment);
    if (moment.toDateString() === now.toDateString()) return `${hour}:${minute}`;
    const year = moment.getFullYear() === now.getFullYear() ? "" : ` ${moment.getFullYear()}`;
    return `${moment.getDate()} ${months.format(moment)}${year} ${hour}:${minute}`;
  };

  const write = () => {
    for (const element of document.getElementsByTagName("time")) {
      const moment = new Date(element.dateTime);
      const text = element.classList.contains("full") ? full(moment) : short(moment, new Date());
      if (element.textContent !== text) element.textContent = text;
      if (element.title !== full(moment)) element.title = full(moment);
    }
  };

  // Runs before the next painting, so nobody sees an element without its text.
  new MutationObserver(write).observe(document.body, {
    attributeFilter: ["datetime"], childList: true, subtree: true,
  });
})();
