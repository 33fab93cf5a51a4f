/* One turn: what the user said and everything the agent answered, in order of arrival. */

import { ApprovalPart, ReasoningPart, ToolPart } from "./cards.js";
import { announce, h } from "./dom.js";
import { ending, note } from "./ending.js";
import { say, t } from "./i18n.js";
import { TextPart } from "./text.js";

const TERMINAL = new Set(["turn.finished", "turn.failed", "turn.cancelled"]);

export const isTerminal = (eventName) => TERMINAL.has(eventName);

export class Turn {
  #bubble = h("div", { class: "bubble" });
  #body = h("div", { class: "answer", role: "group", label: "answer" });
  #pulseText = h("span", { t: "sending" });
  #pulse = h("div", { class: "pulse", "aria-live": "off" }, h("span", { class: "dot" }), this.#pulseText);
  #foot = h("div", { class: "foot" }, this.#pulse);
  #parts = [];

  /** `decide` answers an approval. A turn without an id waits for the server to take its message. */
  constructor(id, decide) {
    this.id = id;
    this.decide = decide;
    /** waiting | running | asking | ended */
    this.state = "waiting";
    this.attempt = 0;
    this.seq = 0;
    /** What is shown is not all of it, or not rendered: it is read again from the log when the turn ends. */
    this.isDirty = false;
    /** It seems to have ended without an answer; an event may prove that wrong. */
    this.isGuess = false;
    this.userText = null;
    const user = h("div", { class: "user", role: "group", label: "youSaid" }, this.#bubble);
    this.element = h("article", { class: "turn" }, user, this.#body, this.#foot);
    this.element.dataset.state = this.state;
  }

  get hasEnded() {
    return this.state === "ended";
  }

  /** The answer's text as it came. */
  get text() {
    return this.#texts.map((part) => part.text.trim()).filter(Boolean).join("\n\n");
  }

  get #texts() {
    return this.#parts.filter((part) => part instanceof TextPart);
  }

  setUser(text) {
    if (this.userText !== null || typeof text !== "string") return;
    this.userText = text;
    this.#bubble.textContent = text;
  }

  /** Say below the message where it is. */
  wait(key, fill) {
    say(this.#pulseText, key, fill);
  }

  /** Begin again: the next events tell all of it. */
  restart() {
    Object.assign(this, { attempt: 0, seq: 0, isDirty: false });
    this.#clear();
  }

  /** The message was not taken. */
  refuse(reason, again, discard) {
    this.#setState("ended");
    this.#foot.replaceChildren(
      note("problem", "notSent", { reason }),
      h("div", { class: "choices" }, h("button", { type: "button", t: "sendAgain", onclick: again }), h("button", { type: "button", t: "discard", onclick: discard })),
    );
  }

  /**
   * Take an event in its order.
   * @returns `gap` when events are missing before it, `lost` when only a new snapshot can help, else nothing
   */
  take({ name, attempt, seq, data }) {
    if (this.isGuess) this.#reopen();
    if (this.hasEnded) return this.#late(name, data);
    if (attempt > 0 && seq > 0) {
      if (attempt < this.attempt) return undefined;
      if (name === "turn.snapshot") {
        Object.assign(this, { attempt, seq: data.seq ?? seq });
        return this.#replace(data);
      }
      if (attempt > this.attempt) {
        if (this.attempt) this.#withdraw();
        Object.assign(this, { attempt, seq: 0 });
      }
      if (name === "text.block") return seq > this.seq ? "gap" : this.#block(data, seq);
      if (seq <= this.seq) return undefined;
      if (seq > this.seq + 1) {
        if (!isTerminal(name)) return "gap";
        this.isDirty = true;
      }
      this.seq = seq;
    }
    return this.#apply(name, data);
  }

  /** Show what the log holds of a turn; `isOver` = nothing more is expected. */
  fill(messages, isOver) {
    this.#clear();
    this.isDirty = false;
    for (const message of messages) this.#fromLog(message);
    const last = messages.at(-1);
    const hasAnswer = last?.role === "assistant" && !last.tool_calls?.length;
    if (this.outcome) this.#close(this.outcome.name, this.outcome.data);
    else if (hasAnswer) this.#end();
    else if (isOver) {
      this.#add(note("note", "noAnswer"));
      this.#end();
      this.isGuess = true;
    }
  }

  #fromLog(message) {
    if (message.role === "user") this.setUser(message.content ?? "");
    if (message.role === "tool") this.#tool(message.tool_call_id)?.finish(message);
    if (message.role !== "assistant") return;
    if (message.reasoning) this.#add(new ReasoningPart(message.reasoning));
    if (message.content) {
      const html = [message.html ?? []].flat();
      this.#add(new TextPart(message.content, html, html.length ? "" : message.content));
    }
    for (const { id, function: call } of message.tool_calls ?? []) {
      this.#add(new ToolPart({ call_id: id, name: call.name, arguments: call.arguments }));
    }
  }

  #apply(name, data) {
    switch (name) {
      case "turn.queued":
        this.wait(data.position > 0 ? "queued" : "queuedNext", data);
        break;
      case "turn.started":
        this.setUser(data.text);
        this.#setState("running");
        this.wait(this.attempt > 1 ? "retried" : "thinking", { attempt: this.attempt });
        break;
      case "text.delta":
        (this.#last(TextPart) ?? this.#add(new TextPart())).add(data.text);
        this.#setState("running", true);
        break;
      case "reasoning.delta":
        (this.#last(ReasoningPart) ?? this.#add(new ReasoningPart())).add(data.text);
        this.#setState("running");
        this.wait("thinking");
        break;
      case "tool.started":
        this.#start(data);
        break;
      case "tool.finished":
        (this.#tool(data.call_id) ?? this.#add(new ToolPart(data))).finish(data);
        this.#setState("running");
        this.wait("working");
        break;
      case "approval.requested":
        this.#ask(data);
        break;
      case "approval.resolved":
        this.#parts.find((part) => part.id === data.approval_id)?.resolve(data.decision);
        this.#setState("running");
        this.wait("working");
        break;
      default:
        if (isTerminal(name)) this.#finish(name, data);
    }
    return undefined;
  }

  #start(call) {
    const known = this.#tool(call.call_id);
    if (known) known.restart();
    else this.#add(new ToolPart(call));
    this.#setState("running");
    this.wait("working");
  }

  #ask(request) {
    this.#add(new ApprovalPart(request, this.decide));
    this.#setState("asking");
    this.wait("awaiting");
    announce(t("approvalNeeded", { tool: request.tool }));
  }

  #block(data, seq) {
    const part = this.#texts.at(-1);
    if (!part) return "lost";
    // A block of an older moment that is missing here: what follows it has been shown already.
    if (seq < this.seq && data.index >= part.count) return "lost";
    return part.block(data) ? undefined : "lost";
  }

  /** A snapshot is all of it; text before the last tool comes without HTML, and is read again at the end. */
  #replace({ text = "", segment = text, reasoning, tools = [], approval, html = [], rest }) {
    this.#clear();
    const before = text.endsWith(segment) ? text.slice(0, text.length - segment.length) : "";
    this.isDirty = Boolean(before.trim());
    if (reasoning) this.#add(new ReasoningPart(reasoning));
    if (this.isDirty) this.#add(new TextPart(before));
    for (const tool of tools) {
      const part = this.#add(new ToolPart(tool));
      if (tool.ok !== undefined && tool.ok !== null) part.finish(tool);
    }
    if (segment) this.#add(new TextPart(segment, html, html.length ? (rest ?? "") : segment));
    this.#setState("running", Boolean(segment));
    if (!segment) this.wait(tools.length ? "working" : "thinking");
    if (approval) this.#ask(approval);
  }

  /** A new attempt keeps what was stored, which ends with a tool's result, and says the rest again. */
  #withdraw() {
    const kept = this.#parts.findLastIndex((part) => part instanceof ToolPart && part.isDone) + 1;
    for (const part of this.#parts.splice(kept)) part.element.remove();
  }

  #finish(name, data) {
    if (name === "turn.finished") this.#finishText(data);
    if (name === "turn.cancelled" && data.text && !this.text) this.#add(new TextPart(data.text));
    this.#close(name, data);
    announce(t({ "turn.finished": "finished", "turn.failed": "failed" }[name] ?? "cancelled", { reason: data.message ?? "" }));
  }

  /** The end's text is what was streamed last; where it is not, the log knows. */
  #finishText({ text = "", html }) {
    const bare = (value) => value.replace(/\s+/g, "");
    const shown = bare(this.text);
    const last = this.#last(TextPart);
    if (!shown && text) this.#add(new TextPart(text, [html ?? []].flat(), html ? "" : text));
    else if (!shown.endsWith(bare(text))) this.isDirty = true;
    else if (last && bare(last.text) === bare(text)) last.finish(html);
    else if (last?.open.trim()) this.isDirty = true;
  }

  /** The end of a turn that the log showed: only what stands below the answer is new. */
  #late(name, data) {
    if (isTerminal(name) && !this.outcome) this.#close(name, data);
    return undefined;
  }

  /** What seemed to be over goes on. */
  #reopen() {
    this.isGuess = false;
    this.#parts.pop().element.remove();
    this.#foot.replaceChildren(this.#pulse);
    this.#setState("waiting");
  }

  #close(name, data) {
    this.outcome = { name, data };
    if (name === "turn.failed") this.#add(note("problem", "failed", { reason: data.message || data.code }));
    if (name === "turn.cancelled") this.#add(note("note", "cancelled"));
    if (data.stopped_by) this.#add(note("note", `stopped_${data.stopped_by}`));
    this.#end(data);
  }

  #end(data) {
    for (const part of this.#parts) {
      part.abandon?.();
      if (part instanceof ApprovalPart) part.resolve();
    }
    this.#setState("ended");
    this.#foot.replaceChildren(ending(() => this.text, data));
  }

  #setState(state, isWriting = false) {
    this.state = state;
    this.element.dataset.state = state;
    this.element.classList.toggle("writing", isWriting);
  }

  #last(kind) {
    const part = this.#parts.at(-1);
    return part instanceof kind ? part : undefined;
  }

  #tool(callId) {
    return this.#parts.findLast((part) => part instanceof ToolPart && part.id === callId);
  }

  #add(part) {
    const element = part.element ?? part;
    this.#body.append(element);
    this.#parts.push(part.element ? part : { element });
    return part;
  }

  #clear() {
    this.#parts = [];
    this.#body.replaceChildren();
    this.#foot.replaceChildren(this.#pulse);
    this.#setState("waiting");
    this.wait("thinking");
  }
}
