/* Texts in Chinese and English. An element remembers its key, so that switching needs no reload. */

const TEXTS = {
  newChat: ["新对话", "New chat"],
  chats: ["对话", "Chats"],
  untitled: ["未命名对话", "Untitled chat"],
  noChats: ["还没有对话", "No chats yet"],
  today: ["今天", "Today"],
  yesterday: ["昨天", "Yesterday"],
  week: ["最近 7 天", "Last 7 days"],
  earlier: ["更早", "Earlier"],
  menu: ["打开对话列表", "Open the list of chats"],
  closeMenu: ["关闭对话列表", "Close the list of chats"],
  skip: ["跳到输入框", "Skip to the message box"],
  message: ["消息", "Message"],
  placeholder: ["给 miniOpenClaw 发消息…", "Message miniOpenClaw…"],
  keys: ["Enter 发送，Shift + Enter 换行", "Enter sends, Shift + Enter starts a new line"],
  send: ["发送", "Send"],
  stop: ["停止回答", "Stop answering"],
  latest: ["回到最新", "Jump to latest"],
  older: ["加载更早的消息", "Load earlier messages"],
  loading: ["正在加载…", "Loading…"],
  conversation: ["对话内容", "Conversation"],
  youSaid: ["你说", "You said"],
  answer: ["回答", "Answer"],
  hello: ["有什么可以帮你？", "What can I do for you?"],
  helloMore: ["可以提问、查资料、写代码，也可以让我记住一些事情。", "Ask, look things up, write code, or have me remember things."],
  tryTime: ["现在几点了？", "What time is it now?"],
  tryMath: ["算一下 (17.5 × 23 + 8) ÷ 6", "Work out (17.5 × 23 + 8) ÷ 6"],
  tryStory: ["讲一个长一点的故事", "Tell me a long story"],
  tryMemory: ["记住：我喜欢简短的回答", "Remember: I like short answers"],
  themeSystem: ["主题：跟随系统", "Theme: as the system"],
  themeLight: ["主题：浅色", "Theme: light"],
  themeDark: ["主题：深色", "Theme: dark"],
  language: ["Switch to English", "切换到中文"],
  demo: ["演示模式", "Demo mode"],
  demoMore: ["回答由内置的演示程序给出，没有连接真正的模型。要连接模型，请设置好再重新启动：", "Answers come from a built-in demo; no real model is connected. To connect one, set this and start again:"],
  connecting: ["正在连接…", "Connecting…"],
  reconnecting: ["正在重新连接…这时写的消息会留着，届时发送。", "Reconnecting… What you write now is kept and sent then."],
  connected: ["已连接", "Connected"],
  offline: ["网络已断开。恢复后会自动连接；这时写的消息会留着，届时发送。", "You are offline. The page reconnects by itself; what you write now is kept and sent then."],
  lost: ["连接断开，{seconds} 秒后重试。这时写的消息会留着，届时发送。", "Connection lost, trying again in {seconds} s. What you write now is kept and sent then."],
  retryNow: ["立即重试", "Retry now"],
  gateTitle: ["需要登录", "You are not signed in"],
  gateText: ["请打开 miniclaw serve 启动时打印的网址（带有 ?token=…）。打开一次后，这个浏览器就会记住你。", "Open the address that miniclaw serve printed when it started (it carries ?token=…). Once opened, this browser remembers you."],
  gateAgain: ["再试一次", "Try again"],
  sending: ["正在发送…", "Sending…"],
  keptForLater: ["连接恢复后发送", "Will be sent when the connection is back"],
  queued: ["排队中，前面还有 {position} 条", "Queued, {position} ahead"],
  queuedNext: ["排队中", "Queued"],
  thinking: ["正在思考…", "Thinking…"],
  working: ["正在处理…", "Working…"],
  awaiting: ["等待你的决定", "Waiting for your decision"],
  retried: ["中断后继续（第 {attempt} 次尝试）", "Going on after an interruption (attempt {attempt})"],
  notSent: ["没有发出：{reason}", "Not sent: {reason}"],
  tooLong: ["太长了，请拆成几条", "it is too long, please split it"],
  sendAgain: ["重新发送", "Send again"],
  discard: ["删除", "Discard"],
  reasoning: ["思考过程", "Reasoning"],
  arguments: ["参数", "Arguments"],
  result: ["结果", "Result"],
  noArguments: ["没有参数", "No arguments"],
  emptyResult: ["（空）", "(empty)"],
  toolRunning: ["正在运行", "running"],
  toolOk: ["完成", "done"],
  toolFailed: ["失败", "failed"],
  toolUnknown: ["没有结果", "no result"],
  showAll: ["显示全部 {count} 个字符", "Show all {count} characters"],
  approvalTitle: ["允许运行 {tool} 吗？", "Allow {tool} to run?"],
  approvalUntil: ["请在 {time} 前决定", "Decide before {time}"],
  allowOnce: ["允许一次", "Allow once"],
  allowSession: ["本次对话都允许", "Allow in this chat"],
  allowAlways: ["始终允许", "Always allow"],
  deny: ["拒绝", "Deny"],
  approvedOnce: ["已允许一次：{tool}", "Allowed once: {tool}"],
  approvedSession: ["本次对话已允许：{tool}", "Allowed in this chat: {tool}"],
  approvedAlways: ["已始终允许：{tool}", "Always allowed: {tool}"],
  denied: ["已拒绝：{tool}", "Denied: {tool}"],
  approvalOver: ["不再等待决定：{tool}", "No longer waiting: {tool}"],
  approvalNeeded: ["需要你的许可：{tool}", "Your permission is needed: {tool}"],
  failed: ["没能完成：{reason}", "Could not finish: {reason}"],
  commandDone: ["完成", "Done"],
  cancelled: ["已停止", "Stopped"],
  noAnswer: ["这条消息没有得到回答", "This message got no answer"],
  stopped_iterations: ["已达到步数上限，在此停止", "Stopped here: the limit of steps was reached"],
  stopped_tool_calls: ["已达到工具调用上限，在此停止", "Stopped here: the limit of tool calls was reached"],
  stopped_tokens: ["已达到 token 上限，在此停止", "Stopped here: the limit of tokens was reached"],
  stopped_seconds: ["已达到时间上限，在此停止", "Stopped here: the time limit was reached"],
  stopped_money: ["已达到费用上限，在此停止", "Stopped here: the cost limit was reached"],
  copy: ["复制", "Copy"],
  copied: ["已复制", "Copied"],
  copyAnswer: ["复制回答", "Copy the answer"],
  copyFailed: ["无法复制", "Could not copy"],
  usage: ["{input} 输入 · {output} 输出 token", "{input} in · {output} out tokens"],
  usedMemories: ["用到 {count} 条记忆", "{count} memories used"],
  savedMemories: ["记住了 {count} 条", "{count} remembered"],
  finished: ["回答完毕", "The answer is complete"],
  chatMissing: ["找不到这个对话", "This chat does not exist"],
  chatMissingMore: ["它可能已被删除，或属于另一个用户。", "It may have been deleted, or belongs to somebody else."],
  loadFailed: ["没能加载消息：{reason}", "Could not load the messages: {reason}"],
  running: ["正在回答", "answering"],
  waiting: ["等待许可", "waiting for permission"],
  fresh: ["有新内容", "something new"],
  unreachable: ["服务器没有响应", "the server does not answer"],
};

const LANGUAGES = ["zh-CN", "en"];
const values = new WeakMap();
let current = pick();

function pick() {
  let stored = null;
  try {
    stored = localStorage.getItem("miniclaw.language");
  } catch {
    /* no storage: the browser's language */
  }
  return LANGUAGES.includes(stored) ? stored : navigator.language?.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
}

export const language = () => current;

export function t(key, fill = {}) {
  const text = TEXTS[key]?.[LANGUAGES.indexOf(current)] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, field) => fill[field] ?? whole);
}

/** Give an element a text that follows the language. */
export function say(element, key, fill) {
  element.dataset.t = key;
  remember(element, "text", fill);
  element.textContent = t(key, fill);
}

/** Give an element a name (label and tooltip) that follows the language. */
export function name(element, key, fill) {
  element.dataset.tName = key;
  remember(element, "name", fill);
  element.setAttribute("aria-label", t(key, fill));
  if (element.matches("button, a")) element.title = t(key, fill);
}

function remember(element, slot, fill) {
  values.set(element, { ...values.get(element), [slot]: fill });
}

export function translate(root) {
  document.documentElement.lang = current;
  for (const element of root.querySelectorAll("[data-t]")) say(element, element.dataset.t, values.get(element)?.text);
  for (const element of root.querySelectorAll("[data-t-name]")) {
    name(element, element.dataset.tName, values.get(element)?.name);
  }
  for (const element of root.querySelectorAll("[data-t-placeholder]")) {
    element.placeholder = t(element.dataset.tPlaceholder);
  }
}

export function toggleLanguage() {
  current = LANGUAGES[1 - LANGUAGES.indexOf(current)];
  try {
    localStorage.setItem("miniclaw.language", current);
  } catch {
    /* it holds until the page is closed */
  }
  translate(document);
  document.dispatchEvent(new CustomEvent("miniclaw:language"));
}

export const number = (value) => new Intl.NumberFormat(current).format(value);
export const clock = (date) => new Intl.DateTimeFormat(current, { hour: "2-digit", minute: "2-digit" }).format(date);
