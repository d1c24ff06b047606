// Planned episodes as they were seen: the camera, the goal, what the model imagined, and the distances beneath.
(function (lpwm) {
  "use strict";
  const RATE = 12; // raw steps a second when playing
  const make = lpwm.make, byId = (id) => document.getElementById("episode-" + id);

  function Player() {
    this.cells = lpwm.data.episodes;
    ["cell", "number", "step", "play", "now", "panels"].forEach((id) => { this[id] = byId(id); });
    this.toggle = this.play;
    this.cells.forEach((c, i) => make("option", { value: i, text: c.name }, this.cell));
    this.cell.addEventListener("change", () => this.open());
    this.number.addEventListener("change", () => this.build());
    this.step.addEventListener("input", () => { this.stop(); this.show(+this.step.value); });
    this.toggle.addEventListener("click", () => (this.timer ? this.stop() : this.run()));
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
    this.current = this.cells[+this.cell.value || 0];
    const first = this.current.methods[0];
    this.number.textContent = "";
    first.success.forEach((line, i) => {
      const at = line.indexOf("1");
      make("option", { value: i, text: (i + 1) + ": " + first.name + (at < 0 ? " not there" : " there at step " + (at + 1)) }, this.number);
    });
    const c = this.current;
    if (!c.images) { // decoded once, when the cell is first opened
      c.images = {};
      for (const name in c.sheets) {
        const image = c.images[name] = new Image();
        image.onload = () => { if (this.current === c) this.show(this.t); };
        image.src = "data:image/webp;base64," + c.sheets[name];
      }
    }
    this.build();
  };
  Player.prototype.build = function () {
    this.stop();
    const i = +this.number.value || 0, c = this.current;
    this.panels.textContent = "";
    const box = make("div", { class: "panel goal" }, this.panels);
    make("h3", { text: "Goal" }, box);
    this.goal = picture(box, "To be seen at the end", "The goal as the camera would see it");
    this.views = c.methods.map((m) => new View(this.panels, m, i, c));
    this.views.forEach((v) => v.chart()); // when all have their width
    this.steps = Math.max(...this.views.map((v) => v.distance.length)) - 1;
    this.step.max = this.steps;
    this.row = i;
    this.show(0);
  };
  Player.prototype.show = function (t) {
    this.t = Math.min(t, this.steps);
    this.step.value = this.t;
    const text = this.t + " of " + this.steps, c = this.current;
    this.step.setAttribute("aria-valuetext", "step " + text);
    this.now.textContent = text;
    draw(this.goal, c.images[c.goal], this.row, 0, c.ids);
    this.views.forEach((v) => v.show(this.t));
  };
  Player.prototype.run = function () {
    if (this.t >= this.steps) this.show(0);
    this.toggle.textContent = "Pause";
    this.toggle.setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => {
      this.show(this.t + 1);
      if (this.t >= this.steps) this.stop();
    }, 1000 / RATE);
  };
  Player.prototype.stop = function () {
    clearInterval(this.timer);
    this.timer = null;
    this.toggle.textContent = "Play";
    this.toggle.setAttribute("aria-pressed", "false");
  };

  function picture(parent, caption, label) {
    const figure = make("figure", { class: "frame" }, parent);
    const canvas = make("canvas", { width: 224, height: 224, role: "img", "aria-label": label }, figure);
    make("figcaption", { text: caption }, figure);
    return canvas;
  }
  function draw(canvas, image, row, column, rows) { // sheets have a row an episode
    canvas.dataset.column = column;
    if (!image || !image.complete || !image.naturalHeight) return;
    const side = image.naturalHeight / rows, g = canvas.getContext("2d");
    g.imageSmoothingQuality = "high";
    g.drawImage(image, column * side, row * side, side, side, 0, 0, canvas.width, canvas.height);
  }

  function View(parent, method, i, cell) {
    this.method = method; this.cell = cell; this.row = i;
    this.distance = method.distance[i];
    this.success = method.success[i];
    const box = make("div", { class: "panel view" + (method.control ? " control" : "") }, parent), title = make("h3", {}, box);
    make("span", { class: "swatch " + (method.color < 0 ? "none" : "c" + method.color), "aria-hidden": "true" }, title);
    title.append(method.name);
    if (!method.control) make("span", { class: "muted", text: " seed " + method.seed }, title);
    const pair = make("div", { class: "frames" }, box);
    this.camera = picture(pair, "Camera", method.name + ": what the camera saw");
    if (method.imagined) this.imagined = picture(pair, "Imagined", method.name + ": what the plan expected, decoded");
    this.box = make("div", {}, box);
    this.status = make("p", { class: "status" }, box);
  }
  View.prototype.chart = function () {
    const m = this.method, W = Math.max(120, this.box.clientWidth || 300), H = 96, L = 34, B = 16, top = 20, T = this.distance.length - 1;
    const svg = make("svg", { class: "trace", viewBox: "0 0 " + W + " " + H, role: "img" }, this.box);
    const latent = m.latent && m.latent[this.row], forecast = (m.predicted && m.predicted[this.row]) || [];
    const most = Math.max(1e-9, ...(latent || this.distance), ...(latent ? forecast : []));
    const x = (t) => L + (W - L - 4) * t / T, y = (v) => top + (H - B - top) * (1 - v / most);
    const block = (k) => x(Math.min(k * m.frameskip, T)), label = latent ? (W < 260 ? "In the code: seen, ○ predicted" : "Distance in the code: seen (line), predicted (rings)") : "Distance to the goal";
    const text = (at, anchor, words, line) => make("text", { x: at, y: line, "font-size": 10.5, "text-anchor": anchor, text: words }, svg);
    [H - B, top].forEach((at) => make("line", { x1: L, x2: W - 4, y1: at, y2: at, stroke: "var(--rule)" }, svg));
    text(0, "start", label, 11);
    text(L - 4, "end", short(most), top + 4);
    text(L - 4, "end", "0", H - B + 4);
    text(L, "start", "0", H - 3);
    text(W - 4, "end", T + " steps", H - 3);
    const line = latent ? latent.map((v, k) => block(k) + "," + y(v)) : this.distance.map((v, t) => x(t) + "," + y(v));
    make("polyline", { points: line.join(" "), fill: "none", class: "s" + (latent ? m.color : -1), "stroke-width": 1.6 }, svg);
    if (latent) forecast.forEach((v, k) => make("circle", { cx: block(k + 1), cy: y(v), r: 2.2, fill: "var(--paper)", class: "s" + m.color, "stroke-width": 1 }, svg));
    svg.setAttribute("aria-label", m.name + ": " + label.toLowerCase() + ", over the episode");
    this.cursor = make("line", { y1: top - 3, y2: H - B, stroke: "var(--ink)", "stroke-width": 1, "stroke-dasharray": "2 2" }, svg);
    this.x = x;
  };
  View.prototype.show = function (t) {
    const m = this.method, c = this.cell;
    t = Math.min(t, this.distance.length - 1);
    let column = 0;
    while (column + 1 < c.steps.length && c.steps[column + 1] <= t) column++;
    draw(this.camera, c.images[m.camera], this.row, column, c.ids);
    const block = Math.min(Math.ceil(t / m.frameskip), Math.floor((this.distance.length - 1) / m.frameskip));
    if (this.imagined) draw(this.imagined, c.images[m.imagined], this.row, block, c.ids);
    this.cursor.setAttribute("x1", this.x(t));
    this.cursor.setAttribute("x2", this.x(t));
    const inside = t > 0 && this.success[t - 1] === "1", first = this.success.indexOf("1");
    this.camera.classList.toggle("reached", inside);
    this.status.textContent = "";
    const say = (words, bold) => make(bold ? "b" : "span", { text: words }, this.status);
    say("Distance to the goal ");
    say(short(this.distance[t]), true);
    const latent = m.latent && m.latent[this.row][block], expected = block > 0 && m.predicted && m.predicted[this.row][block - 1];
    if (latent !== null && typeof expected === "number") say("; in the code " + short(latent) + " at block " + block + ", predicted " + short(expected));
    if (inside) { say(", "); say("at the goal", true); } else if (first >= 0 && t > first) say(", was there at step " + (first + 1));
  };

  function short(v) { return v >= 100 ? v.toFixed(0) : String(+v.toPrecision(2)); }
  lpwm.startEpisodes = function () {
    if (byId("panels")) lpwm.player = new Player();
  };
})(window.lpwm);
