// CartPole and a policy that acts in it. `?fast` runs episodes at full speed instead, and shows their returns.

const TEXTS = {
  en: {
    title: "CartPole in the browser",
    about: "A policy that Birl trained for 50,000 steps keeps the pole up. It runs in this page, by onnxruntime-web. " +
      "Push the cart with the arrow keys or the buttons, or switch the policy off and balance the pole yourself.",
    return: "return", last: "last", best: "best", episodes: "episodes", left: "← push", right: "push →",
    acts: "the policy acts", own: "Your own CartPole policy, an ONNX file:",
    arrows: "Blue arrow: the policy’s mean force. Green arrow: yours.",
    fell: "fell", whole: "500 of 500", drawing: "a cart with a pole on it",
    missing: "onnxruntime-web is missing. In a clone of Birl run “python docs/demo/fetch.py”, " +
      "then load this page again.",
    unfit: "This file is no policy for CartPole: ", fast: "returns at full speed: ",
  },
  zh: {
    title: "浏览器里的 CartPole",
    about: "这个策略由 Birl 训练了 50,000 步，能让杆一直立着。它用 onnxruntime-web 在本页里运行。" +
      "用方向键或按钮推小车；也可以关掉策略，自己来保持平衡。",
    return: "回报", last: "上一回合", best: "最高", episodes: "回合数", left: "← 推", right: "推 →",
    acts: "由策略行动", own: "你自己的 CartPole 策略（ONNX 文件）：", arrows: "蓝色箭头：策略的平均推力。绿色箭头：你的推力。",
    fell: "倒了", whole: "500 / 500", drawing: "一辆小车，上面立着一根杆",
    missing: "缺少 onnxruntime-web。请在 Birl 的克隆里运行 “python docs/demo/fetch.py”，再重新打开本页。",
    unfit: "这个文件不是 CartPole 的策略：", fast: "全速运行的回报：",
  },
};
const language = navigator.language.startsWith("zh") ? "zh" : "en";
const text = TEXTS[language];
const at = (selector) => document.querySelector(selector);

// CartPole-v1: the equations, limits and starting states of Gymnasium.

const TICK = 0.02, FORCE = 10, LIMIT = 500; // seconds, newtons, steps
const FARTHEST = 2.4, STEEPEST = (12 * 2 * Math.PI) / 360;

function step([x, speed, angle, spin], force) {
  const gravity = 9.8, pole = 0.1, mass = 1.1, half = 0.5; // half: of the pole's length
  const sin = Math.sin(angle), cos = Math.cos(angle);
  const push = (force + pole * half * spin ** 2 * sin) / mass;
  const turn = (gravity * sin - cos * push) / (half * (4 / 3 - (pole * cos ** 2) / mass));
  const pull = push - (pole * half * turn * cos) / mass;
  return [x + TICK * speed, speed + TICK * pull, angle + TICK * spin, spin + TICK * turn];
}

function fell([x, , angle]) {
  return Math.abs(x) > FARTHEST || Math.abs(angle) > STEEPEST;
}

function start(random) {
  return Array.from({ length: 4 }, () => 0.1 * random() - 0.05);
}

function randomFrom(seed) { // mulberry32: the same seed, the same numbers
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// The policy: any that takes CartPole's observations, with memory or without.

const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

async function startRuntime() { // from scripts only, so that the page also works without a server
  const packed = new Blob([bytesOf(ORT_FILES.wasm)]).stream();
  ort.env.wasm.wasmBinary = await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(new Blob([ORT_FILES.mjs], { type: "text/javascript" })) };
  ort.env.wasm.numThreads = 1; // threads need a server that sends special headers
}

async function openPolicy(bytes) {
  const session = await ort.InferenceSession.create(bytes);
  const feeds = {};
  for (const { name, type, shape } of session.inputMetadata) {
    const size = shape.reduce((product, length) => product * length, 1);
    feeds[name] = new ort.Tensor(type, type === "float32" ? new Float32Array(size) : new Uint8Array(size), shape);
  }
  const shape = String(feeds.observation?.dims);
  if (shape !== "1,4") throw Error(`observation [${shape}], not [1,4]`);
  const action = session.outputMetadata.find(({ name }) => name === "action");
  if (action?.type !== "int64") throw Error(`action ${action?.type}, not int64`);

  return async function act(observation, episodeBegins) { // 0 or 1: to the left or to the right
    feeds.observation = new ort.Tensor("float32", observation, [1, 4]);
    if (feeds.resets) feeds.resets = new ort.Tensor("bool", [episodeBegins], [1]);
    const results = await session.run(feeds);
    for (const name of Object.keys(feeds)) if (name.startsWith("memory")) feeds[name] = results[`new_${name}`];
    return Number(results.action.data[0]);
  };
}

// An episode, and what is seen of it.

const episode = { state: [0, 0, 0, 0], steps: 0, mean: 0, rest: 0, said: "" }; // mean: of the policy's force
const score = { last: null, best: null, episodes: 0 };
const held = new Set(); // what pushes: keys and buttons
let act = null;

function begin(random) {
  Object.assign(episode, { state: start(random), steps: 0, mean: 0, rest: 0, said: "" });
}

const pushing = () => [...held].reduce((sum, direction) => sum + direction, 0);

async function tick() { // a step of the environment; after an episode, a second of rest
  if (episode.rest > 0) {
    if (--episode.rest === 0) begin(Math.random);
    return;
  }
  const force = act && at("#acts").checked ? FORCE * (2 * (await act(episode.state, episode.steps === 0)) - 1) : 0;
  episode.state = step(episode.state, force + FORCE * pushing());
  episode.mean += 0.1 * (force - episode.mean);
  episode.steps++;
  if (fell(episode.state) || episode.steps === LIMIT) {
    episode.said = fell(episode.state) ? text.fell : text.whole;
    episode.rest = 1 / TICK;
    score.last = episode.steps;
    score.best = Math.max(score.best ?? 0, episode.steps);
    score.episodes++;
  }
}

async function play() {
  let owed = 0, last = performance.now();
  for (;;) {
    const now = await new Promise(requestAnimationFrame);
    owed = Math.min(owed + (now - last) / 1000, 0.1); // a page that was hidden does not catch up
    for (last = now; owed >= TICK; owed -= TICK) await tick();
    show();
  }
}

async function playFast(seeds) {
  const returns = [];
  for (const seed of seeds) {
    begin(randomFrom(seed));
    while (!episode.said) await tick();
    returns.push(episode.steps);
  }
  show();
  at("#message").textContent = text.fast + returns.join(" ");
  return returns;
}

function show() {
  at("#return").textContent = episode.steps;
  at("#episodes").textContent = score.episodes;
  for (const name of ["last", "best"]) at(`#${name}`).textContent = score[name] ?? "–";
  draw(at("canvas"));
}

function draw(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, density = devicePixelRatio;
  if (canvas.width !== Math.round(width * density)) canvas.width = Math.round(width * density);
  if (canvas.height !== Math.round(height * density)) canvas.height = Math.round(height * density);
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const metre = width / 5.4, floor = height * 0.8;
  const [x, , angle] = episode.state, cart = width / 2 + x * metre, top = floor - 0.3 * metre;
  const colour = (name) => style.getPropertyValue(`--${name}`);
  const line = (name, thick, ...points) => {
    pen.strokeStyle = colour(name);
    pen.lineWidth = thick;
    pen.beginPath();
    points.forEach(([px, py]) => pen.lineTo(px, py));
    pen.stroke();
  };
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.lineCap = pen.lineJoin = "round";
  line("line", 3, [width / 2 - FARTHEST * metre, floor], [width / 2 + FARTHEST * metre, floor]);
  for (const side of [-1, 1]) { // where the track ends
    const end = width / 2 + side * FARTHEST * metre;
    line("soft", 3, [end, floor - 0.1 * metre], [end, floor + 0.1 * metre]);
  }
  pen.fillStyle = colour("cart");
  pen.beginPath();
  pen.roundRect(cart - 0.25 * metre, top, 0.5 * metre, 0.3 * metre, 0.06 * metre);
  pen.fill();
  line("pole", 0.1 * metre, [cart, top], [cart + Math.sin(angle) * metre, top - Math.cos(angle) * metre]);
  pen.fillStyle = colour("raised");
  pen.beginPath();
  pen.arc(cart, top, 0.025 * metre, 0, 2 * Math.PI);
  pen.fill();
  arrow(line, cart, floor + 0.18 * metre, episode.mean / FORCE, "cart", metre);
  arrow(line, cart, floor + 0.34 * metre, Math.sign(pushing()), "push", metre);
  if (episode.said) {
    pen.fillStyle = colour("text");
    pen.font = `600 ${Math.max(18, 0.22 * metre)}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.fillText(episode.said, width / 2, 0.3 * metre + 6);
  }
}

function arrow(line, x, y, force, name, metre) { // as long as the force is strong
  if (Math.abs(force) < 0.05) return;
  const tip = x + force * 0.6 * metre, back = tip - Math.sign(force) * 0.06 * metre, barb = 0.045 * metre;
  line(name, Math.max(2, 0.025 * metre), [x, y], [tip, y], [back, y - barb], [tip, y], [back, y + barb]);
}

// Keys, buttons, files.

const KEYS = { ArrowLeft: -1, ArrowRight: 1 };
addEventListener("keydown", (event) => {
  if (!(event.key in KEYS)) return;
  held.add(KEYS[event.key]);
  event.preventDefault();
});
addEventListener("keyup", (event) => held.delete(KEYS[event.key]));
addEventListener("blur", () => held.clear());
for (const button of document.querySelectorAll("[data-push]")) {
  const direction = Number(button.dataset.push);
  button.addEventListener("pointerdown", () => held.add(direction));
  for (const kind of ["pointerup", "pointercancel", "pointerleave"])
    button.addEventListener(kind, () => held.delete(direction));
}
at("#file").addEventListener("change", async (event) => {
  try {
    act = await openPolicy(new Uint8Array(await event.target.files[0].arrayBuffer()));
    at("#message").textContent = "";
    begin(Math.random);
  } catch (problem) {
    at("#message").textContent = text.unfit + problem.message;
  }
});

document.documentElement.lang = language;
document.title = text.title;
for (const node of document.querySelectorAll("[data-text]")) node.textContent = text[node.dataset.text];
at("canvas").setAttribute("aria-label", text.drawing);
begin(Math.random);
show();

const ready = (async () => {
  if (typeof ort === "undefined") {
    at("#message").textContent = text.missing;
    return;
  }
  await startRuntime();
  act = await openPolicy(bytesOf(POLICY));
})();
const fast = new URLSearchParams(location.search).has("fast");
ready.then(() => (fast && act ? playFast([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) : play()));
