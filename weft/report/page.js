"use strict";
(() => {
  const tip = document.getElementById("tip");
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const hide = () => { tip.hidden = true; };
  const place = (event) => {
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = event.clientX + 16 + width > innerWidth;
    tip.style.left = Math.max(4, right ? event.clientX - width - 14 : event.clientX + 16) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 6)) + "px";
  };
  const hidden = new Set();

  // Bars and blocks hold their own text.
  document.addEventListener("pointermove", (event) => {
    const target = event.target.closest && event.target.closest("[data-tip]");
    if (target) {
      const [head, ...lines] = target.dataset.tip.split("\n");
      tip.replaceChildren(make("b", "", head), ...lines.map((line) => make("div", "", line)));
      place(event);
    } else if (!(event.target.closest && event.target.closest("[data-plot]"))) hide();
  });
  document.addEventListener("scroll", hide, { passive: true });

  // Curves show the nearest epoch of every line.
  const follow = (box) => {
    const lines = JSON.parse(box.dataset.plot);
    const cross = make("i", "cross hidden");
    const marks = lines.map((line) => make("i", `at ${line.c} hidden`));
    box.append(cross, ...marks);
    const clear = () => { [cross, ...marks].forEach((e) => e.classList.add("hidden")); hide(); };
    const nearest = (points, x) => points.reduce((a, b) => (Math.abs(b[1] - x) < Math.abs(a[1] - x) ? b : a));
    box.addEventListener("pointermove", (event) => {
      const area = box.getBoundingClientRect();
      const x = (100 * (event.clientX - area.left)) / area.width;
      const shown = lines.map((line) => (hidden.has(line.r) || !line.p.length ? null : nearest(line.p, x)));
      const known = shown.filter((point) => point);
      if (!known.length) return clear();
      const at = nearest(known, x);
      cross.classList.remove("hidden");
      cross.style.left = at[1] + "%";
      const rows = [make("b", "", `epoch ${at[0]}`)];
      lines.forEach((line, index) => {
        const point = shown[index];
        const near = point && Math.abs(point[1] - at[1]) < 1.5;
        marks[index].classList.toggle("hidden", !near);
        if (!near) return;
        marks[index].style.left = point[1] + "%";
        marks[index].style.top = Math.max(0, Math.min(100, point[2])) + "%";
        const row = make("div");
        const name = make("span");
        name.append(make("i", `swatch ${line.c}`), line.n);
        row.append(name, make("span", "", point[3]));
        rows.push(row);
      });
      tip.replaceChildren(...rows);
      place(event);
    });
    box.addEventListener("pointerleave", clear);
  };

  // A run's name shows or hides it everywhere.
  const show = (button) => {
    const run = Number(button.dataset.toggle);
    const off = hidden.has(run);
    button.setAttribute("aria-pressed", String(!off));
    document.querySelectorAll(`[data-run="${run}"]`).forEach((e) => e.classList.toggle("hidden", off));
  };
  const toggle = (button) => {
    button.addEventListener("click", () => {
      const run = Number(button.dataset.toggle);
      if (hidden.has(run)) hidden.delete(run); else hidden.add(run);
      show(button);
    });
    if (hidden.has(Number(button.dataset.toggle))) show(button);
  };

  // A page that `weft watch` serves gets new content while it is open.
  const bind = () => {
    hide();
    document.querySelectorAll("[data-plot]").forEach(follow);
    document.querySelectorAll(".runs button").forEach(toggle);
  };
  document.addEventListener("newcontent", bind);
  bind();
})();
