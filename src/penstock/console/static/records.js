// The tail and the search of a topic's records: rows come as HTML over server-sent events.

const table = document.getElementById("records");
const body = table.tBodies[0];
const ROWS_MAX = 500;

function add(html, atTop) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const rows = [...holder.content.querySelectorAll("tr")];
  body.querySelector(".empty")?.remove();
  rows.forEach((row) => row.classList.add("fresh"));
  if (atTop) body.prepend(...rows);
  else body.append(...rows);
  while (body.rows.length > ROWS_MAX) (atTop ? body.lastElementChild : body.firstElementChild).remove();
}

function tail() {
  const button = document.getElementById("tail");
  const status = document.getElementById("tailing");
  let source = null;
  button.hidden = false;
  function stop(words) {
    source.close();
    source = null;
    button.textContent = "Follow the tail";
    button.setAttribute("aria-pressed", "false");
    status.textContent = words;
  }
  button.addEventListener("click", () => {
    if (source) return stop("Stopped.");
    source = new EventSource(table.dataset.tail);
    button.textContent = "Stop";
    button.setAttribute("aria-pressed", "true");
    status.hidden = false;
    status.textContent = "Connecting…";
    let count = 0;
    source.addEventListener("ready", () => { status.textContent = "New records appear at the top."; });
    source.addEventListener("records", (event) => add(event.data, true));
    source.addEventListener("count", (event) => {
      const before = count;
      count = Number(event.data);
      if (!before || Math.floor(count / 100) > Math.floor(before / 100)) status.textContent = `${count} new records.`;
    });
    source.addEventListener("failed", (event) => stop(event.data));
    source.addEventListener("end", () => stop("The end."));
    source.onerror = () => { if (source) status.textContent = "The connection broke, and is tried again."; };
  });
}

function search() {
  const part = document.getElementById("search");
  if (!part) return;
  const bar = part.querySelector("progress");
  const words = document.getElementById("found");
  const cancel = document.getElementById("cancel");
  const source = new EventSource(part.dataset.stream);
  const number = new Intl.NumberFormat("en");
  let last = { read: 0, total: 0, found: 0, rate: 0 };
  const end = (sentence) => {
    source.close();
    cancel.hidden = true;
    words.textContent = sentence;
    part.dataset.done = "1";
  };
  cancel.hidden = false;
  cancel.addEventListener("click", () => end(`Cancelled after ${number.format(last.read)} records; ${last.found} found.`));
  source.addEventListener("records", (event) => add(event.data, false));
  source.addEventListener("progress", (event) => {
    last = JSON.parse(event.data);
    bar.max = Math.max(1, last.total);
    bar.value = last.read;
    words.textContent = `${number.format(last.read)} of ${number.format(last.total)} records, ${last.found} found` +
      (last.rate ? `, ${number.format(last.rate)} in a second.` : ".");
  });
  source.addEventListener("failed", (event) => end(event.data));
  source.addEventListener("end", () => {
    bar.value = bar.max;
    end(last.full
      ? `Stopped at ${last.found} found. Search for something rarer.`
      : `${last.found} found in ${number.format(last.total)} records.`);
  });
  source.onerror = () => end("The connection broke: load the page again to search once more.");
}

tail();
search();
