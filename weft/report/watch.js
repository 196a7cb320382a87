// Asks whether the runs have gone on, and puts the new content of the page into the one that is open. SHOWN: what it shows.
(() => {
  const badge = document.createElement("div");
  badge.className = "live";
  badge.setAttribute("role", "status");
  document.body.append(badge);
  const say = (text, well) => { badge.textContent = text; badge.classList.toggle("lost", !well); };
  let shown = SHOWN;
  const load = async () => {
    const answer = await fetch("/", { cache: "no-store" });
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details")].map((one) => one.open);
    const top = scrollY;
    document.querySelector("main").replaceWith(next.querySelector("main"));
    document.querySelectorAll("details").forEach((one, index) => { if (index in open) one.open = open[index]; });
    document.title = next.title;
    scrollTo({ top, behavior: "instant" });
    document.dispatchEvent(new Event("newcontent"));
  };
  const ask = async () => {
    let seconds = 2;
    try {
      const state = await (await fetch("/state", { cache: "no-store" })).json();
      seconds = state.seconds;
      if (state.version !== shown) {
        await load();
        shown = state.version;
        say(`updated ${new Date().toLocaleTimeString()}`, true);
      } else if (badge.classList.contains("lost")) say("connected again", true);
    } catch {
      say("weft watch has ended", false);
    }
    setTimeout(ask, 1000 * seconds);
  };
  ask();
})();
