// The page as a whole: which view is shown, and one round of questions a second for it.

import { AccessDialog, accessPage } from "./access.js";
import { AccessError, AwayError, get, RefusedError } from "./api.js";
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
 * A view is `{ title, element, refresh(overview, signal), close() }`, made anew each time its page
 * is entered. `wantsOverview` if it shows what the overview tells, each second.
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
// The page that is marked where one has no entry of its own.
const PARENTS = { stream: "streams" };
// Views that do not show the overview need it for access and restarts only.
const OVERVIEW_MILLIS = 5000;

const main = document.getElementById("main");
const connection = new Connection();
const poll = new Poll(refresh);
const dialog = new AccessDialog(begin);

let overview = null;
let overviewAt = -Infinity;
// By how much the broker's clock is ahead of ours.
let skewMillis = 0;
let view = null;

/** What views may use of the page. */
const app = {
  now: () => Date.now() + skewMillis,
  refresh: () => poll.now(),
  askForToken: (reason) => dialog.open(overview, reason),
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

/** Begins anew, with another token: what another one saw is not shown any more. */
function begin() {
  overviewAt = -Infinity;
  show(parseRoute(location.hash));
  poll.now();
}

async function refresh(signal) {
  try {
    const isDue = view.wantsOverview || performance.now() - overviewAt > OVERVIEW_MILLIS;
    if (isDue) await refreshOverview(signal);
    await view.refresh(overview, signal);
    main.setAttribute("aria-busy", "false");
    // A broker that was away may be another one by now.
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
  if (error instanceof AwayError) {
    connection.show("away", error.said);
    return;
  }
  // Asking again gives the same answer until somebody does something.
  poll.hold();
  if (error instanceof AccessError) {
    connection.show("held");
    replaceView(accessPage(error, begin));
    return;
  }
  // Any other is a mistake of this page: it is said here, and told in full on the console.
  if (!(error instanceof RefusedError)) reportError(error);
  connection.show("live");
  const again = element("button", { type: "button", onclick: begin }, "Try again");
  replaceView(
    element(
      "section",
      { class: "stack" },
      heading("That did not work"),
      element("p", { class: "note bad" }, error.message),
      element("div", { class: "row" }, again),
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
    title: "No such page",
    element: element(
      "section",
      {},
      heading("There is no such page"),
      emptyPart("The pages are listed above."),
    ),
    refresh() {},
  };
}

function isTyping(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}

addEventListener("hashchange", () => {
  if (takeTokenFromAddress()) begin();
  else {
    show(parseRoute(location.hash));
    // Whoever reads with their ears or their keyboard is on the new page now.
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
  // The address names a page here, and no place on it.
  event.preventDefault();
  main.focus();
});

document.getElementById("token-button").addEventListener("click", () => dialog.open(overview));

takeTokenFromAddress();
begin();
