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
  showMore: ["已显示 {shown} / {count} 个字符，继续显示", "{shown} of {count} characters shown, show more"],
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
  usedMemories: ["用到 {count} 条记忆", "Memories used: {count}"],
  savedMemories: ["记住了 {count} 条", "Remembered: {count}"],
  finished: ["回答完毕", "The answer is complete"],
  chatMissing: ["找不到这个对话", "This chat does not exist"],
  chatMissingMore: ["它可能已被删除，或属于另一个用户。", "It may have been deleted, or belongs to somebody else."],
  loadFailed: ["没能加载消息：{reason}", "Could not load the messages: {reason}"],
  running: ["正在回答", "answering"],
  waiting: ["等待许可", "waiting for permission"],
  fresh: ["有新内容", "something new"],
  find: ["查找", "Find"],
  search: ["搜索对话", "Search chats"],
  titles: ["标题", "Titles"],
  messages: ["消息", "Messages"],
  noneFound: ["没有找到", "Nothing found"],
  chatMenu: ["“{title}”的操作", "Actions for “{title}”"],
  actions: ["操作：{title}", "Actions: {title}"],
  rename: ["重命名", "Rename"],
  title: ["标题", "Title"],
  fork: ["从这里分叉", "Fork"],
  exportMarkdown: ["导出为 Markdown", "Export as Markdown"],
  exportJson: ["导出为 JSON", "Export as JSON"],
  exportAll: ["导出全部", "Export all"],
  delete: ["删除", "Delete"],
  deleted: ["已删除“{title}”", "Deleted “{title}”"],
  undo: ["撤销", "Undo"],
  save: ["保存", "Save"],
  cancel: ["取消", "Cancel"],
  close: ["关闭", "Close"],
  edit: ["编辑", "Edit"],
  editMessage: ["编辑后重新发送", "Edit and send again"],
  sendBranch: ["在分支中发送", "Send in a branch"],
  branched: ["已在新的分支中继续，原来的对话保持不变", "Goes on in a new branch; the earlier chat stays as it was"],
  regenerate: ["重新回答", "Answer again"],
  quote: ["引用", "Quote"],
  commands: ["命令", "Commands"],
  cmd_new: ["开始新对话", "begin a new chat"],
  cmd_rename: ["改标题", "give this chat a title"],
  cmd_fork: ["分叉这个对话", "fork this chat"],
  cmd_clear: ["让模型忘掉上文", "let the model forget the chat"],
  cmd_compact: ["把上文压缩成摘要", "put a summary in its place"],
  cmd_model: ["查看或更换模型", "show or switch the model"],
  cmd_remember: ["记住一件事", "save a memory"],
  cmd_memories: ["查看或搜索记忆", "list or search memories"],
  cmd_skills: ["打开一项技能", "switch a skill on"],
  cmd_tools: ["列出工具", "list the tools"],
  cmd_timers: ["列出定时任务", "list the timers"],
  cmd_stats: ["查看用量", "show the usage"],
  cmd_help: ["所有命令", "all commands"],
  files: ["附件", "Files"],
  attach: ["添加文件", "Attach files"],
  removeFile: ["移除 {name}", "Remove {name}"],
  seeFiles: ["请看附件。", "See the attached files."],
  noUploads: ["这个服务器不收文件", "this server takes no files"],
  shortcuts: ["键盘快捷键", "Keyboard shortcuts"],
  keyLine: ["换行", "New line"],
  keySlash: ["命令菜单（在行首）", "Menu of commands (at the start)"],
  keyEdit: ["编辑上一条消息（输入框为空时）", "Edit the last message (when the box is empty)"],
  keyEscape: ["关闭面板，或停止回答", "Close the panel, or stop the answer"],
  keyCopy: ["复制最后的回答", "Copy the last answer"],
  panels: ["面板", "Panels"],
  memory: ["记忆", "Memory"],
  skills: ["技能", "Skills"],
  tools: ["工具", "Tools"],
  usagePanel: ["用量", "Usage"],
  inbox: ["待办", "Inbox"],
  settings: ["设置", "Settings"],
  nothingHere: ["这里还没有内容", "Nothing here yet"],
  noMemories: ["还没有记住任何事", "Nothing is remembered yet"],
  addMemory: ["添加记忆", "Add a memory"],
  deleteMemory: ["删除这条记忆？", "Delete this memory?"],
  supersede: ["用新内容取代", "Replace by a newer one"],
  confirm: ["确认", "Confirm"],
  content: ["内容", "Content"],
  context: ["来由", "Context"],
  category: ["类别", "Category"],
  cat_fact: ["事实", "fact"],
  cat_preference: ["偏好", "preference"],
  cat_task: ["任务", "task"],
  cat_sensitive: ["敏感", "sensitive"],
  by_agent: ["助手记下", "noted by the assistant"],
  by_tool: ["来自工具", "from a tool"],
  proposed: ["待确认", "proposed"],
  until: ["{time} 到期", "until {time}"],
  similar: ["和这条相近：{content}", "Close to: {content}"],
  on: ["已打开", "on"],
  unusable: ["不可用", "cannot be used"],
  matched: ["上一条消息提到了它：{reason}", "Fits the last message: {reason}"],
  switchOn: ["打开", "Switch on"],
  switchOff: ["关闭", "Switch off"],
  skillsNeedChat: ["打开一个对话后，可以为它打开技能。", "Open a chat to switch skills on for it."],
  mcpServers: ["MCP 服务器", "MCP servers"],
  allTools: ["全部工具", "All tools"],
  toolProblems: ["没能加载的工具", "Tools that could not be loaded"],
  toolCount: ["{count} 个工具", "{count} tools"],
  restarts: ["重启过 {count} 次", "restarted {count} times"],
  failedTag: ["出错", "failed"],
  mcp_ready: ["就绪", "ready"],
  mcp_starting: ["正在启动", "starting"],
  mcp_waiting: ["等待重试", "waiting to try again"],
  mcp_login: ["需要登录", "needs a login"],
  mcp_failed: ["出错", "failed"],
  mcp_off: ["已关闭", "off"],
  risk_read: ["只读", "reads"],
  risk_write: ["会先询问", "asks first"],
  risk_depends: ["视参数而定", "depends"],
  risk_forbidden: ["禁止", "forbidden"],
  noUsage: ["还没有用量", "Nothing used yet"],
  usageTotal: ["共 {tokens} token · {cost}", "{tokens} tokens in all · {cost}"],
  model: ["模型", "Model"],
  input: ["输入", "In"],
  output: ["输出", "Out"],
  cost: ["费用", "Cost"],
  approvals: ["等待许可", "Waiting for permission"],
  noApprovals: ["没有等待许可的调用", "No call waits for permission"],
  openChat: ["打开对话", "Open the chat"],
  deliveries: ["投递", "Deliveries"],
  noDeliveries: ["没有未送达的回答", "Every answer was delivered"],
  givenUp: ["未送达", "not delivered"],
  onItsWay: ["正在投递", "on its way"],
  attempts: ["试过 {count} 次", "tried {count} times"],
  timers: ["定时任务", "Timers"],
  noTimers: ["没有定时任务", "No timers"],
  cancelTimer: ["取消任务", "Cancel the timer"],
  modelOfChat: ["本次对话的模型", "Model of this chat"],
  modelMore: ["只影响当前对话。", "It holds for the chat that is open."],
  modelNeedsChat: ["打开一个对话后，可以为它换模型。", "Open a chat to switch its model."],
  languageSetting: ["语言", "Language"],
  theme: ["主题", "Theme"],
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
/** The day and minute of a time in RFC 3339. */
export const date = (text) => new Intl.DateTimeFormat(current, { dateStyle: "medium", timeStyle: "short" }).format(new Date(text));
export const clock = (date) => new Intl.DateTimeFormat(current, { hour: "2-digit", minute: "2-digit" }).format(date);
