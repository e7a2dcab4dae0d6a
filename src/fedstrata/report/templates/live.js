"use strict";
const ended = document.getElementById("ended");
const tags = {};
let shown = null;

// What was chosen and how far was read stays as it was.
const keep = (before, after) => {
  for (const old of before.document.querySelectorAll("input[id], select[id]")) {
    const control = after.document.getElementById(old.id);
    if (!control || control.value === old.value) continue;
    control.value = old.value;
    control.dispatchEvent(new Event("input"));
  }
  const folds = after.document.querySelectorAll("details");
  before.document.querySelectorAll("details").forEach((old, place) => { if (folds[place]) folds[place].open = old.open; });
  after.scrollTo(before.scrollX, before.scrollY);
};

// The new page is drawn behind the old one, which goes when it is whole.
const renew = path => new Promise((done, fail) => {
  const next = document.createElement("iframe");
  next.className = "coming";
  next.addEventListener("load", () => {
    try {
      if (shown) keep(shown.contentWindow, next.contentWindow);
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

const look = async () => {
  try {
    const path = shown ? shown.contentWindow.location.pathname : document.body.dataset.page;
    const answer = await fetch(path, { method: "HEAD", cache: "no-store" });
    const tag = answer.headers.get("ETag");
    if (answer.ok && tag !== tags[path] && !document.hidden) {
      await renew(path);
      tags[path] = tag;
    }
    ended.hidden = true;
  } catch {
    ended.hidden = false;
  }
  setTimeout(look, 1000);
};
look();
