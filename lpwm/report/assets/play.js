// A page that plans: drag start and goal; each model imagines candidates, chooses and goes. A worker for every model.
(function (lpwm) {
  "use strict";
  const LOW = 21, HIGH = 203, make = lpwm.make, byId = (id) => document.getElementById(id);
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const draw = (points) => points.map((p) => p[0].toFixed(1) + "," + p[1].toFixed(1)).join(" ");

  function Panel(parent, given, play) {
    this.play = play; this.queue = []; this.run = 0;
    const box = make("div", { class: "panel" }, parent);
    make("h3", { text: given.label }, box);
    const svg = this.svg = make("svg", { class: "world playing", viewBox: "0 0 224 224", role: "group", "aria-label": given.label }, box);
    make("rect", { x: 14, y: 14, width: 196, height: 196, class: "room" }, svg);
    this.zones(given.config.world.options);
    this.candidates = make("g", { class: "candidates" }, svg);
    this.plan = make("polyline", { class: "plan s" + given.color }, svg);
    this.trail = make("polyline", { class: "trail" }, svg);
    this.goal = make("circle", { r: 9, class: "goal", tabindex: 0, role: "button" }, svg);
    this.dot = make("circle", { r: 7, class: "dot", tabindex: 0, role: "button" }, svg);
    this.codes = make("svg", { class: "codes", viewBox: "0 0 " + given.config.model.latent + " 20", preserveAspectRatio: "none", "aria-hidden": "true" }, box);
    this.bars = Array.from({ length: 2 * given.config.model.latent }, (_, i) => make("rect", { x: (i >> 1) + (i & 1 ? 0.5 : 0.1), width: 0.4, class: i & 1 ? "at-goal" : "f" + given.color }, this.codes));
    this.count = make("p", { class: "status" }, box);
    this.status = make("p", { class: "status", role: "status", text: "Drag the dot and the ring." }, box);
    [[this.dot, "start"], [this.goal, "target"]].forEach(([node, name]) => this.handle(node, name));
    const source = "(" + lpwmEngine.toString() + ")(self)";
    this.worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    this.worker.onmessage = (event) => this.hear(event.data);
    this.worker.onerror = (event) => { this.status.textContent = "This model cannot run here: " + event.message; };
    this.worker.postMessage({ kind: "load", config: given.config, weights: given.weights });
  }
  Panel.prototype.zones = function (options) {
    const g = options.g, side = 196 / g;
    for (let k = 1; k < g; k++) {
      make("line", { x1: 14 + k * side, x2: 14 + k * side, y1: 14, y2: 210, class: "border" }, this.svg);
      make("line", { y1: 14 + k * side, y2: 14 + k * side, x1: 14, x2: 210, class: "border" }, this.svg);
    }
    for (let i = 0; i < g * g; i++) {
      const a = 2 * Math.PI * i / (g * g), x = 14 + (i % g + 0.5) * side, y = 14 + (Math.floor(i / g) + 0.5) * side;
      const dx = 8 * Math.cos(a), dy = 8 * Math.sin(a);
      make("path", { class: "push", d: "M" + (x - dx) + " " + (y - dy) + "L" + (x + dx) + " " + (y + dy) + "M" + (x + dx - 0.5 * dx - 0.4 * dy) + " " + (y + dy - 0.5 * dy + 0.4 * dx) + "L" + (x + dx) + " " + (y + dy) + "L" + (x + dx - 0.5 * dx + 0.4 * dy) + " " + (y + dy - 0.5 * dy - 0.4 * dx) }, this.svg);
    }
  };
  Panel.prototype.handle = function (node, name) {
    node.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      node.focus();
      node.setPointerCapture(event.pointerId);
      const move = (e) => {
        const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
        this.play.place(name, [p.x, p.y]);
      };
      const end = () => { node.removeEventListener("pointermove", move); };
      node.addEventListener("pointermove", move);
      node.addEventListener("pointerup", end, { once: true });
      node.addEventListener("pointercancel", end, { once: true });
    });
    node.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -6], ArrowDown: [0, 6] }[event.key];
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.play.go(); }
      if (!by) return;
      event.preventDefault();
      this.play.place(name, this.play[name].map((v, k) => v + by[k]));
    });
  };
  Panel.prototype.reset = function () {
    this.run++; this.queue = [];
    this.worker.postMessage({ kind: "see", start: this.play.start, goal: this.play.target, run: this.run });
    this.candidates.replaceChildren();
    this.plan.setAttribute("points", ""); this.trail.setAttribute("points", "");
    this.walked = [this.play.start];
    this.move(this.play.start);
    const [x, y] = this.play.target;
    this.goal.setAttribute("cx", x); this.goal.setAttribute("cy", y);
    this.goal.setAttribute("aria-label", "Goal at " + x.toFixed(0) + ", " + y.toFixed(0) + ": arrow keys move it, Enter plans");
  };
  Panel.prototype.move = function (p) {
    this.dot.setAttribute("cx", p[0]); this.dot.setAttribute("cy", p[1]);
    this.dot.setAttribute("aria-label", "Start at " + p[0].toFixed(0) + ", " + p[1].toFixed(0) + ": arrow keys move it, Enter plans");
  };
  Panel.prototype.go = function () {
    this.done = false;
    this.worker.postMessage({ kind: "go", start: this.play.start, goal: this.play.target, settings: this.play.settings(), seed: this.play.seed, run: this.run });
    this.status.textContent = "Planning…";
  };
  Panel.prototype.hear = function (said) {
    if (said.kind === "ready") { this.ready = true; return; }
    if (said.run !== this.run) return;
    if (said.kind === "see") { this.show(said.code, said.goal); return; }
    this.queue.push(said);
    if (this.queue.length === 1) this.next();
  };
  Panel.prototype.next = function () { // shows what was said, one thing after the other
    const said = this.queue[0], run = this.run;
    const then = (wait) => setTimeout(() => { if (run !== this.run) return; this.queue.shift(); if (this.queue.length) this.next(); }, still.matches ? 0 : wait);
    if (said.code) this.show(said.code);
    if (said.kind === "plan") this.imagine(said, 0, () => then(60));
    else if (said.kind === "walk") this.walk(said, 0, () => then(0));
    else {
      if (said.kind === "end") {
        this.done = true; this.result = said;
        const where = said.distance < 16 ? "it is at the goal" : said.distance.toFixed(0) + " px away at the end";
        this.status.textContent = (said.reached ? "Reached; " : "Not reached; ") + where + " after " + said.steps + " steps.";
        this.play.ended();
      }
      then(0);
    }
  };
  Panel.prototype.imagine = function (said, k, then) {
    const run = this.run, look = said.looks[still.matches ? said.looks.length - 1 : k];
    this.candidates.replaceChildren();
    look.paths.forEach((path, i) => make("polyline", { points: draw([this.walked[this.walked.length - 1], ...path]), opacity: (0.75 - 0.6 * i / look.paths.length).toFixed(2) }, this.candidates));
    this.status.textContent = "Imagining, iteration " + (look.iteration + 1) + " of " + said.looks.length + ": best predicted cost " + look.best.toFixed(3);
    if (!still.matches && k + 1 < said.looks.length) { setTimeout(() => { if (run === this.run) this.imagine(said, k + 1, then); }, 35); return; }
    this.plan.setAttribute("points", draw([this.walked[this.walked.length - 1], ...said.path]));
    then();
  };
  Panel.prototype.walk = function (said, k, then) {
    const run = this.run, count = still.matches ? said.walked.length : k + 1;
    said.walked.slice(k, count).forEach((p) => this.walked.push(p));
    this.move(this.walked[this.walked.length - 1]);
    this.trail.setAttribute("points", draw(this.walked));
    this.status.textContent = "Step " + (said.steps - said.walked.length + count) + ", " + said.distance.toFixed(0) + " px to go at the end of this plan.";
    if (count < said.walked.length) setTimeout(() => { if (run === this.run) this.walk(said, k + 1, then); }, 24);
    else then();
  };
  Panel.prototype.show = function (code, goal) {
    if (goal) this.goalCode = goal;
    const top = Math.max(1e-9, ...this.goalCode.map(Math.abs), ...code.map(Math.abs)), signed = this.goalCode.some((v) => v < 0);
    this.bars.forEach((bar, i) => {
      const v = (i & 1 ? this.goalCode : code)[i >> 1] / top, height = Math.abs(v) * (signed ? 10 : 20);
      bar.setAttribute("height", height.toFixed(2));
      bar.setAttribute("y", (signed ? (v > 0 ? 10 - height : 10) : 20 - height).toFixed(2));
    });
    this.active = code.filter((v) => v !== 0).length;
    this.count.textContent = this.active + " of " + code.length + " units are " + (signed ? "not zero." : "on.");
  };

  function Play(parent) {
    this.seed = 1; this.start = [50, 60]; this.target = [170, 165];
    this.panels = lpwm.data.play.map((given) => new Panel(parent, given, this));
    byId("play-go").addEventListener("click", () => (this.busy ? this.reset() : this.go()));
    byId("play-new").addEventListener("click", () => this.shuffle());
    ["samples", "iterations", "receding", "cost"].forEach((name) => byId("play-" + name).addEventListener("change", () => this.reset()));
    this.reset();
  }
  Play.prototype.settings = function () {
    const value = (name) => byId("play-" + name).value;
    return { samples: +value("samples"), iterations: +value("iterations"), horizon: 5, receding: +value("receding"), path: value("cost") === "path", budget: 50 };
  };
  Play.prototype.place = function (name, p) {
    this[name] = p.map((v) => Math.min(HIGH, Math.max(LOW, v)));
    this.reset();
  };
  Play.prototype.shuffle = function () {
    const any = () => [LOW, LOW].map((low) => low + (HIGH - low) * Math.random());
    this.start = any(); this.target = any();
    this.reset();
  };
  Play.prototype.label = function () {
    byId("play-go").textContent = this.busy ? "Stop" : "Plan and go";
  };
  Play.prototype.reset = function () { this.busy = false; this.label(); this.panels.forEach((p) => p.reset()); };
  Play.prototype.go = function () {
    this.reset();
    this.seed++; this.busy = true; this.label();
    this.panels.forEach((p) => p.go());
  };
  Play.prototype.ended = function () {
    this.busy = !this.panels.every((p) => p.done);
    this.label();
  };
  lpwm.startPlay = function () {
    const place = byId("play-panels");
    if (place) lpwm.play = new Play(place);
  };
})(window.lpwm);
