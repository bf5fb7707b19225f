// Making elements. Text goes in as text: nothing in this page is ever parsed as HTML.

/** The element of this id. */
export const find = (id) => document.getElementById(id);

/**
 * A new element. `properties` are set on it (`dataset` and `aria` take objects, `on` listeners by event);
 * `children` are elements or text.
 */
export function make(tag, properties = {}, ...children) {
  const { dataset = {}, aria = {}, on = {}, ...rest } = properties;
  const made = document.createElement(tag);
  Object.assign(made, rest);
  Object.assign(made.dataset, dataset);
  for (const [name, value] of Object.entries(aria)) made.setAttribute(`aria-${name}`, value);
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  made.append(...children);
  return made;
}

/** Text of foreign origin, kept apart from the direction of the text around it. */
export const foreign = (text) => make("bdi", { textContent: text });

/** Write the text where it differs, so that screen readers and selections are left alone. */
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Show a problem in its place, or nothing with an empty text. */
export function problem(target, text, focus = false) {
  target.hidden = !text;
  write(target, text);
  if (text && focus) target.focus();
}

/** Tell screen readers something that is seen elsewhere. */
export function announce(text) {
  find("announcements").textContent = text;
}
