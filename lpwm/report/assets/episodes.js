// Planned episodes: the world as vectors, the path so far, and the latent distance to the goal beneath.
(function (lpwm) {
  "use strict";
  const RATE = 20; // raw steps a second when playing
  const make = lpwm.make;

  function Player() {
    const entries = lpwm.data.episodes;
    this.cells = [];
    entries.forEach((e, i) => {
      const several = new Set(entries.map((x) => x.evaluation)).size > 1;
      const name = e.goals + " goals, horizon " + e.horizon + ", executes " + e.receding + (several ? ", evaluation " + e.evaluation : "");
      let cell = this.cells.find((c) => c.name === name && JSON.stringify(c.world) === JSON.stringify(e.world));
      if (!cell) { cell = { name: name, world: e.world, scene: lpwm.data.scenes[i], entries: [] }; this.cells.push(cell); }
      cell.entries.push(e);
    });
    this.cells = this.cells.filter((c) => c.scene && c.entries.some((e) => !e.control));
    this.cell = document.getElementById("episode-cell");
    this.number = document.getElementById("episode-number");
    this.slider = document.getElementById("episode-step");
    this.play = document.getElementById("episode-play");
    this.now = document.getElementById("episode-now");
    this.place = document.getElementById("episode-panels");
    this.cells.forEach((c, i) => make("option", { value: i, text: c.name.charAt(0).toUpperCase() + c.name.slice(1) }, this.cell));
    this.cell.addEventListener("change", () => this.open());
    this.number.addEventListener("change", () => this.build());
    this.slider.addEventListener("input", () => { this.stop(); this.show(+this.slider.value); });
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.run()));
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      const t = this.t;
      this.build();
      this.show(t);
    });
    this.open();
  }
  Player.prototype.open = function () {
    this.stop();
    this.current = this.cells[+this.cell.value || 0];
    const first = this.current.entries.find((e) => !e.control);
    this.number.textContent = "";
    first.ids.forEach((id, i) => {
      const at = first.success[i].indexOf("1");
      make("option", { value: i, text: (i + 1) + (at < 0 ? ": not reached" : ": reached at step " + (at + 1)) }, this.number);
    });
    this.build();
  };
  Player.prototype.build = function () {
    this.stop();
    const i = +this.number.value || 0;
    this.place.textContent = "";
    this.panels = this.current.entries.map((e) => new Panel(this.place, e, i, this.current.scene));
    this.steps = Math.max(...this.panels.map((p) => p.path.length)) - 1;
    this.slider.max = this.steps;
    this.show(this.steps); // the whole path, until it is played or scrubbed
  };
  Player.prototype.show = function (t) {
    this.t = Math.min(t, this.steps);
    this.slider.value = this.t;
    const text = this.t + " of " + this.steps;
    this.slider.setAttribute("aria-valuetext", "step " + text);
    this.now.textContent = text;
    this.panels.forEach((p) => p.show(this.t));
  };
  Player.prototype.run = function () {
    if (this.t >= this.steps) this.show(0);
    this.play.textContent = "Pause";
    this.play.setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => {
      this.show(this.t + 1);
      if (this.t >= this.steps) this.stop();
    }, 1000 / RATE);
  };
  Player.prototype.stop = function () {
    if (this.timer) clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
    this.play.setAttribute("aria-pressed", "false");
  };

  function Panel(parent, entry, i, scene) {
    this.path = entry.path[i];
    this.distance = entry.distance[i];
    this.success = entry.success[i];
    this.entry = entry;
    const color = entry.color;
    const box = make("div", { class: "panel" }, parent), title = make("h3", {}, box);
    title.textContent = entry.name;
    if (!entry.control) make("span", { class: "muted", text: " seed " + entry.seed }, title);
    this.svg = make("svg", { class: "world", viewBox: "0 0 " + scene.frame + " " + scene.frame, role: "img", "aria-label": entry.name + ": the arena, the goal and the path" }, box);
    drawScene(this.svg, scene);
    const f = scene.frame / 224, goal = entry.goal[i];
    make("circle", { cx: goal[0], cy: goal[1], r: scene.within || 4 * f, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 * f, "stroke-dasharray": 3 * f + " " + 2 * f }, this.svg);
    make("circle", { cx: goal[0], cy: goal[1], r: 2 * f, fill: "var(--ink)" }, this.svg);
    make("polyline", { points: points(this.path), fill: "none", stroke: "var(--zone)", "stroke-width": 1.4 * f, "stroke-linejoin": "round" }, this.svg);
    this.trail = make("polyline", { class: "s" + color, fill: "none", "stroke-width": 2 * f, "stroke-linejoin": "round", "stroke-linecap": "round" }, this.svg);
    make("circle", { cx: this.path[0][0], cy: this.path[0][1], r: 3.4 * f, fill: "var(--paper)", class: "s" + color, "stroke-width": 1.4 * f }, this.svg);
    this.agent = make("circle", { class: "agent f" + color, r: scene.dot, "fill-opacity": 0.9, stroke: "var(--paper)", "stroke-width": f }, this.svg);
    this.chart(box, entry, i, color);
    this.status = make("p", { class: "status" }, box);
  }
  Panel.prototype.chart = function (box, entry, i, color) {
    const W = Math.max(140, box.clientWidth || 300), H = 100, L = 30, B = 16, top = 20, T = this.path.length - 1;
    const svg = make("svg", { class: "trace", viewBox: "0 0 " + W + " " + H, role: "img" }, box);
    const latent = entry.latent && entry.latent[i], forecast = (entry.predicted && entry.predicted[i]) || [];
    const most = Math.max(1e-9, ...(latent || this.distance), ...(latent ? forecast : []));
    const x = (t) => L + (W - L - 4) * t / T, y = (v) => top + (H - B - top) * (1 - v / most);
    const block = (k) => x(Math.min(k * entry.frameskip, T)), label = latent ? "Latent distance" : "State distance";
    const text = (at, anchor, words, line) => make("text", { x: at, y: line, "font-size": 10.5, "text-anchor": anchor, text: words }, svg);
    make("line", { x1: L, x2: W - 4, y1: H - B, y2: H - B, stroke: "var(--rule)" }, svg);
    make("line", { x1: L, x2: W - 4, y1: top, y2: top, stroke: "var(--rule)" }, svg);
    text(0, "start", label, 11);
    text(L - 4, "end", short(most), top + 4);
    text(L - 4, "end", "0", H - B + 4);
    text(L, "start", "0", H - 3);
    text(W - 4, "end", T + " steps", H - 3);
    const line = latent ? latent.map((v, k) => block(k) + "," + y(v)) : this.distance.map((v, t) => x(t) + "," + y(v));
    make("polyline", { points: line.join(" "), fill: "none", class: "s" + (latent ? color : -1), "stroke-width": 1.6 }, svg);
    if (latent) {
      forecast.forEach((v, k) => make("circle", { cx: block(k + 1), cy: y(v), r: 2.2, fill: "var(--paper)", class: "s" + color, "stroke-width": 1 }, svg));
    }
    svg.setAttribute("aria-label", entry.name + ": " + label.toLowerCase() + " to the goal over the episode");
    this.cursor = make("line", { y1: top - 3, y2: H - B, stroke: "var(--ink)", "stroke-width": 1, "stroke-dasharray": "2 2" }, svg);
    this.x = x;
  };
  Panel.prototype.show = function (t) {
    t = Math.min(t, this.path.length - 1);
    const at = this.path[t];
    this.agent.setAttribute("cx", at[0]);
    this.agent.setAttribute("cy", at[1]);
    this.trail.setAttribute("points", points(this.path.slice(0, t + 1)));
    this.cursor.setAttribute("x1", this.x(t));
    this.cursor.setAttribute("x2", this.x(t));
    const inside = t > 0 && this.success[t - 1] === "1", first = this.success.indexOf("1");
    this.status.innerHTML = "Distance to the goal <b>" + this.distance[t].toFixed(1) + "</b>" +
      (inside ? ", <b>at the goal</b>" : first >= 0 && t > first ? ", was there at step " + (first + 1) : "");
  };

  function short(v) { return v >= 100 ? v.toFixed(0) : String(+v.toPrecision(2)); }
  function points(path) { return path.map((p) => p[0] + "," + p[1]).join(" "); }
  function drawScene(svg, s) {
    const f = s.frame / 224;
    s.lines.forEach((l) => make("line", { x1: l[0], y1: l[1], x2: l[2], y2: l[3], stroke: "var(--zone)", "stroke-width": f, "stroke-dasharray": 4 * f + " " + 3 * f }, svg));
    s.pushes.forEach((p) => {
      const k = 6, x = p[0] + p[2] * k, y = p[1] + p[3] * k, a = Math.atan2(p[3], p[2]);
      if (!p[2] && !p[3]) return;
      const wing = (d) => (x - 5 * f * Math.cos(a + d)) + "," + (y - 5 * f * Math.sin(a + d));
      make("polyline", { points: (p[0] - p[2] * k) + "," + (p[1] - p[3] * k) + " " + x + "," + y, fill: "none", stroke: "var(--zone)", "stroke-width": 1.6 * f }, svg);
      make("polyline", { points: wing(0.5) + " " + x + "," + y + " " + wing(-0.5), fill: "none", stroke: "var(--zone)", "stroke-width": 1.6 * f }, svg);
    });
    s.walls.forEach((w) => make("rect", { x: w[0], y: w[1], width: w[2], height: w[3], fill: "var(--wall)" }, svg));
  }
  lpwm.startEpisodes = function () {
    if (document.getElementById("episode-panels")) lpwm.player = new Player();
  };
})(window.lpwm);
