/* Where one writes: several lines, safe with input methods, a draft for each chat. */

import { $, h, icon, local } from "./dom.js";

export class Composer {
  #key = "new";

  /** `on` has `send(text)` and `stop()`. */
  constructor(on) {
    this.on = on;
    this.field = $("message");
    this.send = $("send");
    this.stop = $("stop");
    this.send.append(icon("send"));
    this.stop.append(icon("stop"));
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.stop.addEventListener("click", () => on.stop());
    this.field.addEventListener("input", () => this.#changed());
    this.field.addEventListener("keydown", (event) => this.#pressed(event));
    $("composer").addEventListener("click", (event) => {
      if (!event.target.closest("button")) this.field.focus();
    });
    new ResizeObserver(() => this.#fit()).observe($("composer"));
  }

  /** Show the draft of this chat. */
  open(key) {
    this.#key = key ?? "new";
    this.field.value = local.get(`draft.${this.#key}`, "");
    this.#fit();
    this.#enable();
  }

  /** The chat has got its session: what is being written stays. */
  rename(key) {
    local.set(`draft.${this.#key}`, null);
    this.#key = key;
    this.#changed();
  }

  set isRunning(isRunning) {
    const hadFocus = document.activeElement === this.stop;
    this.stop.hidden = !isRunning;
    if (hadFocus && !isRunning) this.field.focus();
  }

  focus() {
    this.field.focus({ preventScroll: true });
  }

  #pressed(event) {
    // 229 is the key of an input method at work; Safari sends it behind the composition's end. Both are asked
    // of the event itself: a composition whose end never came must not keep Enter from sending.
    const isComposing = event.isComposing || event.keyCode === 229;
    if (event.key !== "Enter" || event.shiftKey || event.altKey || isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = sound(this.field.value).trim();
    if (!text) return;
    this.field.value = "";
    this.#changed();
    this.on.send(text);
  }

  #changed() {
    local.set(`draft.${this.#key}`, this.field.value);
    this.#fit();
    this.#enable();
  }

  #enable() {
    this.send.disabled = !this.field.value.trim();
  }

  #fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
  }
}

/** Without what the protocol refuses: NUL and halves of characters. */
const sound = (text) => (text.toWellFormed?.() ?? text).replaceAll("\0", "");

/** What a chat shows before its first message. */
export function hello(onPick) {
  const pick = (event) => onPick(event.currentTarget.textContent);
  const ideas = ["tryTime", "tryMath", "tryStory", "tryMemory"].map((key) => h("button", { type: "button", t: key, onclick: pick }));
  const mark = h("img", { src: "./static/icon.svg", alt: "", width: 44, height: 44 });
  return h("div", { class: "hello" }, mark, h("h2", { t: "hello" }), h("p", { t: "helloMore" }), h("div", { class: "ideas" }, ...ideas));
}
