// The dashboard: shows the view of the current route, and refreshes it once a second.

import { AccessDialog, accessPage } from "./access.js";
import { AccessError, get, RejectedError, UnavailableError } from "./api.js";
import { Connection } from "./connection.js";
import { element, setAttribute, setText } from "./dom.js";
import { formatDuration } from "./format.js";
import { emptyPart, heading } from "./parts.js";
import { Poll } from "./poll.js";
import { parseRoute } from "./router.js";
import { takeTokenFromAddress } from "./token.js";
import { eventsView } from "./views/events.js";
import { overviewView } from "./views/overview.js";
import { pipelineView } from "./views/pipeline.js";
import { streamView } from "./views/stream.js";
import { streamsView } from "./views/streams.js";
import { tasksView } from "./views/tasks.js";

/**
 * A view is `{ title, element, refresh(overview, signal), close() }`, created each time its page is
 * entered. `showsOverview` is true if the view needs a new overview every second.
 */
const VIEWS = {
  overview: overviewView,
  streams: streamsView,
  stream: streamView,
  tasks: tasksView,
  pipeline: pipelineView,
  events: eventsView,
  missing: missingView,
};
// The navigation entry of pages without their own entry.
const PARENTS = { stream: "streams" };
// Other views need the overview only for permissions and to detect restarts.
const OVERVIEW_MILLIS = 5000;

const main = document.getElementById("main");
const connection = new Connection();
const poll = new Poll(refresh);
const dialog = new AccessDialog(restart);

let overview = null;
let overviewAt = -Infinity;
// The clock of the broker minus the clock of the browser.
let skewMillis = 0;
let view = null;

/** The functions of the dashboard that views use. */
const app = {
  now: () => Date.now() + skewMillis,
  refresh: () => poll.now(),
  openTokenDialog: (reason) => dialog.open(overview, reason),
};

function show(route) {
  view?.close?.();
  view = VIEWS[route.page](app, route);
  main.replaceChildren(view.element);
  main.setAttribute("aria-busy", "true");
  document.title = view.title === "Overview" ? "Penstock" : `${view.title} · Penstock`;
  const current = PARENTS[route.page] ?? route.page;
  for (const link of document.querySelectorAll("#nav a")) {
    setAttribute(link, "aria-current", link.dataset.page === current ? "page" : null);
  }
}

/** Shows the current route from the start, without data of a previous token. */
function restart() {
  overviewAt = -Infinity;
  show(parseRoute(location.hash));
  poll.now();
}

async function refresh(signal) {
  try {
    const isDue = view.showsOverview || performance.now() - overviewAt > OVERVIEW_MILLIS;
    if (isDue) await refreshOverview(signal);
    await view.refresh(overview, signal);
    main.setAttribute("aria-busy", "false");
    // The broker may have restarted while it was unavailable.
    if (connection.show("live")) overviewAt = -Infinity;
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

async function refreshOverview(signal) {
  overview = await get("/api/overview", {}, signal);
  overviewAt = performance.now();
  skewMillis = overview.now - Date.now();
  setText(document.getElementById("role"), overview.access.role ? `: ${overview.access.role}` : "");
  const uptime = formatDuration(overview.now - overview.startedAt);
  setText(
    document.getElementById("foot"),
    `Penstock ${overview.version} · up ${uptime} · ${overview.root}`,
  );
}

function fail(error) {
  if (error instanceof UnavailableError) {
    connection.show("unavailable", error.reply);
    return;
  }
  // A retry gives the same error until the user acts.
  poll.pause();
  if (error instanceof AccessError) {
    connection.show("token-required");
    replaceView(accessPage(error, restart));
    return;
  }
  // Any other error is a bug of the dashboard: log its stack on the console as well.
  if (!(error instanceof RejectedError)) reportError(error);
  connection.show("live");
  const retry = element("button", { type: "button", onclick: restart }, "Retry");
  replaceView(
    element(
      "section",
      { class: "stack" },
      heading("The page cannot be shown"),
      element("p", { class: "note bad" }, error.message),
      element("div", { class: "row" }, retry),
    ),
  );
}

function replaceView(node) {
  view.close?.();
  view = { title: "", element: node, refresh() {} };
  main.replaceChildren(node);
  main.setAttribute("aria-busy", "false");
  node.querySelector("h1").focus();
}

function missingView() {
  return {
    title: "Page not found",
    element: element(
      "section",
      {},
      heading("Page not found"),
      emptyPart("Choose a page in the navigation above."),
    ),
    refresh() {},
  };
}

function isTyping(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}

addEventListener("hashchange", () => {
  if (takeTokenFromAddress()) restart();
  else {
    show(parseRoute(location.hash));
    // Screen readers and keyboards continue on the new page.
    main.querySelector("h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
    poll.now();
  }
});

addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target))
    return;
  const filter = main.querySelector(".filter");
  if (filter === null) return;
  event.preventDefault();
  filter.focus();
  filter.select();
});

document.getElementById("skip").addEventListener("click", (event) => {
  // The hash of the URL is a route, not an anchor.
  event.preventDefault();
  main.focus();
});

document.getElementById("token-button").addEventListener("click", () => dialog.open(overview));

takeTokenFromAddress();
restart();
