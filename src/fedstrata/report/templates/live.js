"use strict";
const stopped = document.getElementById("stopped");
const tags = {};
let shown = null;

// The reader keeps the choices, the unfolded parts and the scroll position.
const restore = (before, after) => {
  for (const old of before.document.querySelectorAll("input[id], select[id]")) {
    const control = after.document.getElementById(old.id);
    if (!control || control.value === old.value) continue;
    control.value = old.value;
    control.dispatchEvent(new Event("input"));
  }
  const chosen = before.document.querySelector('button.client[aria-pressed="true"]');
  if (chosen) after.document.querySelector(`button.client[value="${chosen.value}"]`)?.click();
  const details = after.document.querySelectorAll("details");
  before.document.querySelectorAll("details").forEach((old, place) => { if (details[place]) details[place].open = old.open; });
  after.scrollTo(before.scrollX, before.scrollY);
};

// The new page loads behind the old one, which is removed afterwards.
const replace = path => new Promise((done, fail) => {
  const next = document.createElement("iframe");
  next.className = "next";
  next.addEventListener("load", () => {
    try {
      if (shown) restore(shown.contentWindow, next.contentWindow);
      document.title = next.title = next.contentDocument.title;
    } catch (error) {
      next.remove();
      fail(error);
      return;
    }
    next.className = "";
    if (shown) shown.remove();
    shown = next;
    done();
  }, { once: true });
  next.src = path;
  document.body.append(next);
});

const refresh = async () => {
  try {
    const path = shown ? shown.contentWindow.location.pathname : document.body.dataset.page;
    const answer = await fetch(path, { method: "HEAD", cache: "no-store" });
    const tag = answer.headers.get("ETag");
    if (answer.ok && tag !== tags[path] && !document.hidden) {
      await replace(path);
      tags[path] = tag;
    }
    stopped.hidden = true;
  } catch {
    stopped.hidden = false;
  }
  setTimeout(refresh, 1000);
};
refresh();
