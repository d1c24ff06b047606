// A small world model in the browser: safetensors, renderer, encoder, predictor, planner and world, nothing else needed.
// It runs in a worker (lpwmEngine(self)) or in the page (lpwmEngine() returns its functions, for tests).
// Numbers are doubles (no conversion at every load); the world rounds to float32 as torch does.
// S candidates, H blocks, A action size, D latent width, N tokens, W encoder width. Matrices are (out, in), rows in order.
function lpwmEngine(scope) {
  "use strict";
  const f32 = Math.fround;

  // Weights -------------------------------------------------------------------------------------------------
  function bytesOf(base64) {
    const text = atob(base64), out = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
    return out;
  }
  function safetensors(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const size = Number(view.getBigUint64(0, true)), begin = 8 + size;
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, begin))), out = {};
    for (const [name, entry] of Object.entries(header)) {
      if (name === "__metadata__") continue;
      const at = begin + entry.data_offsets[0], count = entry.shape.reduce((a, b) => a * b, 1);
      const data = new Float64Array(count), bits = new DataView(new ArrayBuffer(4));
      if (entry.dtype === "F32") for (let i = 0; i < count; i++) data[i] = view.getFloat32(at + 4 * i, true);
      else if (entry.dtype === "BF16") for (let i = 0; i < count; i++) {
        bits.setUint16(0, view.getUint16(at + 2 * i, true));
        data[i] = bits.getFloat32(0);
      } else throw new Error("weights of type " + entry.dtype + " are not handled");
      out[name] = data;
    }
    return out;
  }

  // Linear algebra ------------------------------------------------------------------------------------------
  // out (S, O) = x (S, I) Wᵀ + b, or added to what is there. Two rows of W times four of x share what they load.
  function linear(W, b, x, S, I, O, out, add) {
    let s = 0;
    for (; s + 4 <= S; s += 4) {
      const x0 = s * I, x1 = x0 + I, x2 = x1 + I, x3 = x2 + I;
      let o = 0;
      for (; o + 2 <= O; o += 2) {
        const w0 = o * I, w1 = w0 + I;
        let a = 0, c = 0, d = 0, e = 0, p = 0, q = 0, r = 0, t = 0;
        for (let i = 0; i < I; i++) {
          const u = W[w0 + i], v = W[w1 + i], y0 = x[x0 + i], y1 = x[x1 + i], y2 = x[x2 + i], y3 = x[x3 + i];
          a += u * y0; c += u * y1; d += u * y2; e += u * y3;
          p += v * y0; q += v * y1; r += v * y2; t += v * y3;
        }
        const bo = b ? b[o] : 0, bp = b ? b[o + 1] : 0, k = s * O + o;
        if (add) {
          out[k] += a; out[k + O] += c; out[k + 2 * O] += d; out[k + 3 * O] += e;
          out[k + 1] += p; out[k + O + 1] += q; out[k + 2 * O + 1] += r; out[k + 3 * O + 1] += t;
        } else {
          out[k] = a + bo; out[k + O] = c + bo; out[k + 2 * O] = d + bo; out[k + 3 * O] = e + bo;
          out[k + 1] = p + bp; out[k + O + 1] = q + bp; out[k + 2 * O + 1] = r + bp; out[k + 3 * O + 1] = t + bp;
        }
      }
      for (; o < O; o++) for (let j = 0; j < 4; j++) one(s + j, o);
    }
    for (; s < S; s++) for (let o = 0; o < O; o++) one(s, o);
    return out;
    function one(row, o) {
      let a = 0;
      for (let i = 0; i < I; i++) a += W[o * I + i] * x[row * I + i];
      out[row * O + o] = add ? out[row * O + o] + a : a + (b ? b[o] : 0);
    }
  }
  function compose(W, c, V, b, O, M, I) { // W (O, M) after V (M, I): one map
    const weight = new Float64Array(O * I), bias = new Float64Array(O);
    for (let o = 0; o < O; o++) {
      let k = c ? c[o] : 0;
      for (let m = 0; m < M; m++) k += W[o * M + m] * (b ? b[m] : 0);
      bias[o] = k;
      for (let i = 0; i < I; i++) {
        let a = 0;
        for (let m = 0; m < M; m++) a += W[o * M + m] * V[m * I + i];
        weight[o * I + i] = a;
      }
    }
    return [weight, bias];
  }
  function layerNorm(x, rows, width, weight, bias, eps) {
    const out = new Float64Array(x.length);
    for (let r = 0; r < rows; r++) {
      let mean = 0, square = 0;
      for (let i = 0; i < width; i++) mean += x[r * width + i];
      mean /= width;
      for (let i = 0; i < width; i++) square += (x[r * width + i] - mean) ** 2;
      const scale = 1 / Math.sqrt(square / width + eps);
      for (let i = 0; i < width; i++) out[r * width + i] = (x[r * width + i] - mean) * scale * weight[i] + bias[i];
    }
    return out;
  }
  function erf(x) { // the series near 0, the continued fraction beyond 2.5: about 1e-12
    const z = Math.abs(x);
    if (z > 6) return Math.sign(x);
    if (z < 2.5) {
      let term = z, sum = z;
      for (let n = 1; n < 60; n++) { term *= -z * z / n; sum += term / (2 * n + 1); }
      return Math.sign(x) * sum * 2 / Math.sqrt(Math.PI);
    }
    let k = z;
    for (let n = 40; n > 0; n--) k = z + n / 2 / k;
    return Math.sign(x) * (1 - Math.exp(-z * z) / (k * Math.sqrt(Math.PI)));
  }
  function gelu(x) {
    for (let i = 0; i < x.length; i++) x[i] *= 0.5 * (1 + erf(x[i] / Math.SQRT2));
    return x;
  }

  // The world -----------------------------------------------------------------------------------------------
  // Piecewise: p' = clamp(p + 5 clip(a) + push of the old zone, 21, 203); a red dot on white, drawn at `size`.
  function world(options, size) {
    const g = options.g, scale = options.scale, FRAME = 224, EDGE = 14, RADIUS = 7, ratio = FRAME / size;
    const pushes = Array.from({ length: g * g }, (_, i) => {
      const angle = 2 * Math.PI * i / (g * g);
      return [f32(scale * Math.cos(angle)), f32(scale * Math.sin(angle))];
    });
    const cell = (v) => Math.min(g - 1, Math.max(0, Math.floor((v - EDGE) / (FRAME - 2 * EDGE) * g)));
    const zone = (x, y) => cell(y) * g + cell(x), clip = (a) => Math.min(1, Math.max(-1, a));
    const inside = (v) => Math.min(FRAME - EDGE - RADIUS, Math.max(EDGE + RADIUS, v));
    function step(p, a) {
      const push = pushes[zone(p[0], p[1])];
      return [0, 1].map((k) => inside(f32(f32(p[k] + f32(f32(clip(a[k])) * 5)) + push[k])));
    }
    // The border's area average: a pixel is dark by the share of it that a line covers.
    const dark = new Float64Array(size);
    for (let i = 0; i < size; i++) {
      for (const low of [EDGE - 4, FRAME - EDGE]) dark[i] += Math.max(0, Math.min((i + 1) * ratio, low + 4) - Math.max(i * ratio, low)) / ratio;
    }
    const ground = new Float32Array(size * size), delta = [new Float32Array(size * size), new Float32Array(size * size)];
    for (let r = 0; r < size; r++) for (let c = 0; c < size; c++) {
      const value = 255 * (1 - dark[r]) * (1 - dark[c]), k = r * size + c;
      ground[k] = value + 0.5; delta[0][k] = 255 - value; delta[1][k] = -value;
    }
    const variance = RADIUS * RADIUS + Math.max(0, ratio * ratio - 1) / 12;
    const center = Float32Array.from({ length: size }, (_, i) => (i + 0.5) * ratio - 0.5);
    function render(p) { // (3, size, size) as the model reads it
      const out = new Uint8Array(3 * size * size), line = p.map((v) => {
        const x = f32(v), off = f32(x - Math.min(FRAME - 1, Math.max(0, roundEven(x))));
        const peak = f32(f32(f32(off * off) / (2 * RADIUS * RADIUS)) + f32(0.5 * Math.log(RADIUS * RADIUS / variance)));
        return center.map((c) => { const d = f32(c - x); return Math.exp(f32(peak - f32(f32(d * d) / f32(2 * variance)))); });
      });
      for (let r = 0; r < size; r++) for (let c = 0; c < size; c++) {
        const alpha = Math.min(1, f32(line[1][r] * line[0][c])), k = r * size + c;
        out[k] = ground[k] + delta[0][k] * alpha;
        out[k + size * size] = out[k + 2 * size * size] = ground[k] + delta[1][k] * alpha;
      }
      return out;
    }
    function roundEven(x) { const r = Math.round(x); return Math.abs(x % 1) === 0.5 && r % 2 ? r - 1 : r; }
    return { zone, step, render };
  }

  // The model -----------------------------------------------------------------------------------------------
  function model(config, w) {
    const c = config.model, e = c.encoder, size = e.image_size, p = e.patch, side = size / p, W = e.width, D = c.latent;
    const N = side * side + 1, inner = e.heads * e.head_dim, P = 3 * p * p, sparse = c.link !== "identity", A = config.action_dim;
    const norm = { half: [0.5, 0.5], white: [1, 0.5] }[e.pixels], eps = 1e-6;
    const lags = c.predictor.rung === "lti1" ? 1 : c.predictor.history, mlp = c.predictor.rung === "mlp-lti";

    function encode(frame) { // uint8 (3, size, size) -> D
      const patches = new Float64Array((N - 1) * P);
      for (let t = 0; t < N - 1; t++) for (let k = 0; k < P; k++) {
        const color = Math.floor(k / (p * p)), row = Math.floor(k / p) % p, col = k % p;
        const y = Math.floor(t / side) * p + row, x = (t % side) * p + col;
        patches[t * P + k] = (frame[(color * size + y) * size + x] / 255 - norm[0]) / norm[1];
      }
      let x = new Float64Array(N * W);
      x.set(w["encoder.vit.cls"]);
      linear(w["encoder.vit.embed.weight"], w["encoder.vit.embed.bias"], patches, N - 1, P, W, x.subarray(W));
      for (let i = 0; i < x.length; i++) x[i] += w["encoder.vit.position"][i];
      for (let b = 0; b < e.depth; b++) x = block("encoder.vit.blocks." + b + ".", x);
      x = layerNorm(x.subarray(0, W), 1, W, w["encoder.vit.norm.weight"], w["encoder.vit.norm.bias"], eps);
      const hidden = c.projector.hidden, name = "encoder.project.";
      let h = linear(w[name + "0.weight"], w[name + "0.bias"], x, 1, W, hidden, new Float64Array(hidden));
      h = gelu(layerNorm(h, 1, hidden, w[name + "1.weight"], w[name + "1.bias"], 1e-5));
      return link(linear(w[name + "3.weight"], w[name + "3.bias"], h, 1, hidden, D, new Float64Array(D)));
    }
    function block(name, x) {
      const y = layerNorm(x, N, W, w[name + "norm1.weight"], w[name + "norm1.bias"], eps), d = e.head_dim;
      const qkv = linear(w[name + "qkv.weight"], w[name + "qkv.bias"], y, N, W, 3 * inner, new Float64Array(N * 3 * inner));
      const attended = new Float64Array(N * inner), score = new Float64Array(N);
      for (let h = 0; h < e.heads; h++) for (let n = 0; n < N; n++) {
        let top = -Infinity, total = 0;
        for (let m = 0; m < N; m++) {
          let s = 0;
          for (let i = 0; i < d; i++) s += qkv[n * 3 * inner + h * d + i] * qkv[m * 3 * inner + inner + h * d + i];
          score[m] = s / Math.sqrt(d);
          top = Math.max(top, score[m]);
        }
        for (let m = 0; m < N; m++) total += score[m] = Math.exp(score[m] - top);
        for (let m = 0; m < N; m++) for (let i = 0; i < d; i++) attended[n * inner + h * d + i] += score[m] / total * qkv[m * 3 * inner + 2 * inner + h * d + i];
      }
      const out = linear(w[name + "out.weight"], w[name + "out.bias"], attended, N, inner, W, new Float64Array(N * W));
      for (let i = 0; i < out.length; i++) out[i] += x[i];
      const z = layerNorm(out, N, W, w[name + "norm2.weight"], w[name + "norm2.bias"], eps);
      const up = gelu(linear(w[name + "up.weight"], w[name + "up.bias"], z, N, W, e.mlp, new Float64Array(N * e.mlp)));
      const down = linear(w[name + "down.weight"], w[name + "down.bias"], up, N, e.mlp, W, new Float64Array(N * W));
      for (let i = 0; i < down.length; i++) down[i] += out[i];
      return down;
    }
    function link(u) {
      if (sparse) for (let i = 0; i < u.length; i++) if (!(u[i] > 0)) u[i] = 0;
      return u;
    }

    // u_t = Σ_i A_i z_{t−i} + (B∘E)(a_t) + b, then W relu(u) + c for MLP∘LTI. Maps without a bend between them are one.
    const B = w["predictor.B.weight"], b0 = w["predictor.A.0.bias"];
    const first = c.action_encoder === "linear" ? compose(B, b0, w["embed_action.weight"], w["embed_action.bias"], D, D, A)
      : compose(w["embed_action.1.weight"], w["embed_action.1.bias"], w["embed_action.0.weight"], w["embed_action.0.bias"], 4 * D, w["embed_action.0.bias"].length, A);
    const last = c.action_encoder === "linear" ? null : compose(B, b0, w["embed_action.3.weight"], w["embed_action.3.bias"], D, D, 4 * D);
    const hidden = last ? 4 * D : 0;
    // (S, H, A) actions from one code z -> codes, H arrays (S, D)
    function rollout(z, actions, S, H) {
      const sums = [], codes = [], step = new Float64Array(S * A), h = new Float64Array(S * hidden);
      for (let t = 0; t < H; t++) {
        for (let s = 0; s < S; s++) step.set(actions.subarray((s * H + t) * A, (s * H + t + 1) * A), s * A);
        const u = new Float64Array(S * D);
        if (last) {
          linear(first[0], first[1], step, S, A, hidden, h);
          for (let i = 0; i < h.length; i++) h[i] /= 1 + Math.exp(-h[i]);
          linear(last[0], last[1], h, S, hidden, D, u);
        } else linear(first[0], first[1], step, S, A, D, u);
        if (t < lags) { // the real code reaches as far as the lags do
          const known = linear(w["predictor.A." + t + ".weight"], null, z, 1, D, D, new Float64Array(D));
          for (let s = 0; s < S; s++) for (let i = 0; i < D; i++) u[s * D + i] += known[i];
        }
        sums.push(u);
      }
      for (let t = 0; t < H; t++) {
        let u = sums[t];
        if (mlp) {
          for (let i = 0; i < u.length; i++) if (!(u[i] > 0)) u[i] = 0;
          u = linear(w["predictor.W.weight"], w["predictor.W.bias"], u, S, D, D, new Float64Array(S * D));
        }
        codes.push(link(u));
        for (let i = 0; i < lags && t + 1 + i < H; i++) linear(w["predictor.A." + i + ".weight"], null, u, S, D, D, sums[t + 1 + i], true);
      }
      return codes;
    }
    function costs(codes, goal, S, path) { // mean_d (ẑ − z_goal)² after the last block, or averaged over all
      const out = new Float64Array(S), from = path ? 0 : codes.length - 1;
      for (let t = from; t < codes.length; t++) for (let s = 0; s < S; s++) {
        let sum = 0;
        for (let i = 0; i < D; i++) sum += (codes[t][s * D + i] - goal[i]) ** 2;
        out[s] += sum / D / (codes.length - from);
      }
      return out;
    }
    return { encode, rollout, costs, D, A, size, sparse };
  }

  // The planner ---------------------------------------------------------------------------------------------
  function random(seed) { // normals: mulberry32 and Box–Muller
    let a = seed >>> 0;
    const uniform = () => {
      a = (a + 0x6D2B79F5) | 0;
      let t = Math.imul(a ^ (a >>> 15), 1 | a);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    return { uniform, normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()) };
  }
  // Cross-entropy method: keep the cheapest candidates, refit mean and std, repeat; the plan is the mean.
  function cem(m, z, goal, settings, start, draw, look) {
    const { samples: S, iterations, horizon: H, path } = settings, K = Math.max(2, Math.round(S / 10)), n = H * m.A;
    const mean = start ? Float64Array.from(start) : new Float64Array(n), std = new Float64Array(n).fill(1), actions = new Float64Array(S * n);
    for (let iteration = 0; iteration < iterations; iteration++) {
      for (let s = 0; s < S; s++) for (let i = 0; i < n; i++) {
        const e = draw.normal();
        actions[s * n + i] = mean[i] + (s ? std[i] * e : 0);
      }
      const codes = m.rollout(z, actions, S, H), cost = m.costs(codes, goal, S, path);
      const order = Array.from(cost.keys()).sort((a, b) => cost[a] - cost[b]), elite = order.slice(0, K);
      for (let i = 0; i < n; i++) {
        let sum = 0, square = 0;
        for (const s of elite) sum += actions[s * n + i];
        mean[i] = sum / K;
        for (const s of elite) square += (actions[s * n + i] - mean[i]) ** 2;
        std[i] = Math.sqrt(square / (K - 1));
      }
      if (look) look(iteration, codes, cost, order);
    }
    const codes = m.rollout(z, mean, 1, H);
    return { actions: mean, codes, cost: m.costs(codes, goal, 1, path)[0] };
  }

  // Where a code seems to be: ridge regression of x and y on the codes of a grid of places. For drawing only.
  function locator(m, where) {
    const n = 22, rows = [], D = m.D, K = D + 1;
    for (let r = 0; r < n; r++) for (let c = 0; c < n; c++) {
      const p = [21 + 182 * c / (n - 1), 21 + 182 * r / (n - 1)];
      rows.push([m.encode(where.render(p)), p]);
    }
    const G = Array.from({ length: K }, () => new Float64Array(K + 2));
    for (const [z, p] of rows) {
      const x = [...z, 1];
      for (let i = 0; i < K; i++) {
        for (let j = 0; j < K; j++) G[i][j] += x[i] * x[j];
        G[i][K] += x[i] * p[0]; G[i][K + 1] += x[i] * p[1];
      }
    }
    for (let i = 0; i < K; i++) G[i][i] += 1e-3;
    for (let i = 0; i < K; i++) for (let r = 0; r < K; r++) { // Gauss–Jordan; the matrix is positive definite
      if (r === i) continue;
      const k = G[r][i] / G[i][i];
      for (let j = i; j < K + 2; j++) G[r][j] -= k * G[i][j];
    }
    return (z, at) => [0, 1].map((k) => {
      let v = G[D][K + k] / G[D][D];
      for (let i = 0; i < D; i++) v += z[at * D + i] * G[i][K + k] / G[i][i];
      return v;
    });
  }

  // One model in its world: what a worker holds.
  function player(given) {
    const m = model(given.config, safetensors(bytesOf(given.weights))), where = world(given.config.world.options, m.size);
    const { mean, std } = given.config.normalization, raw = mean.length, skip = given.config.frameskip;
    const see = (p) => Array.from(m.encode(where.render(p)));
    let locate = null;
    const paths = (codes, rows) => rows.map((s) => codes.map((z) => locate(z, s).map((v) => Math.round(v * 10) / 10)));
    // An episode from start towards goal, part by part: every plan with its iterations, then the steps that follow.
    function* episode(start, goal, settings, seed, shown) {
      locate = locate || (shown ? locator(m, where) : null);
      const target = m.encode(where.render(goal)), away = (p) => Math.hypot(p[0] - goal[0], p[1] - goal[1]);
      let p = start, tail = null, reached = away(p) < 16, steps = 0;
      for (let plan = 0; steps < settings.budget; plan++) {
        const z = m.encode(where.render(p)), looks = [];
        const look = shown && ((iteration, codes, cost, order) => {
          const rows = order.filter((_, k) => k % Math.ceil(order.length / shown) === 0);
          looks.push({ iteration, paths: paths(codes, rows), best: cost[order[0]] });
        });
        const best = cem(m, z, target, settings, tail, random(seed + 1000 * plan), look);
        yield { kind: "plan", looks, path: shown ? paths(best.codes, [0])[0] : null, cost: best.cost, code: Array.from(z) };
        const blocks = settings.receding, n = m.A, walked = [];
        for (let t = 0; t < blocks * skip && steps < settings.budget; t++, steps++) {
          p = where.step(p, Array.from({ length: raw }, (_, k) => best.actions[t * raw + k] * std[k] + mean[k]));
          walked.push(p);
          reached = reached || away(p) < 16;
        }
        tail = new Float64Array(best.actions.length);
        tail.set(best.actions.subarray(blocks * n));
        yield { kind: "walk", walked, steps, distance: away(p), reached, code: see(p) };
      }
      yield { kind: "end", distance: away(p), reached, steps };
    }
    return { model: m, world: where, episode, see };
  }

  if (scope && scope.postMessage) {
    let mine = null, running = 0;
    scope.onmessage = (event) => {
      const ask = event.data;
      if (ask.kind === "load") { mine = player(ask); scope.postMessage({ kind: "ready", D: mine.model.D }); }
      if (ask.kind === "see") { running++; scope.postMessage({ kind: "see", run: ask.run, code: mine.see(ask.start), goal: mine.see(ask.goal) }); }
      if (ask.kind === "go") {
        const run = ++running, steps = mine.episode(ask.start, ask.goal, ask.settings, ask.seed, 24);
        const next = () => { // a new task for every part, so that a new request is noticed
          if (run !== running) return;
          const { value, done } = steps.next();
          if (done) return;
          scope.postMessage({ ...value, run: ask.run });
          setTimeout(next, 0);
        };
        next();
      }
    };
  }
  return { safetensors, bytesOf, world, model, cem, player, erf, random };
}
if (typeof module !== "undefined") module.exports = lpwmEngine;
